package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agrimill/agrimill/gateway"
)

// stdinName is the file name for stdin.
const stdinName = "-"

// payload is a file that can be read from the start any number of times.
type payload struct {
	size  int64
	open  func() (io.ReadCloser, error)
	close func() error
	// at reads stdin, for whoever needs more than a stream; nil for a file.
	at io.ReaderAt
}

// spoolMemory is how much of stdin is kept in memory, in bytes. Larger input goes into a
// temporary file; the container image has no directory for one.
const spoolMemory = 16 << 20

// openPayload prepares a file to be sent. It reads only stdin; spoolDir is where large
// input is kept, empty for the system's temporary directory.
func (p *program) openPayload(ctx context.Context, name, spoolDir string, limit int64) (*payload, error) {
	if name == stdinName {
		return p.spool(ctx, spoolDir, limit)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return &payload{
		size:  info.Size(),
		open:  func() (io.ReadCloser, error) { return os.Open(name) },
		close: func() error { return nil },
	}, nil
}

// spool buffers stdin: its size must be known before the first byte is sent, and a retry
// has to read it again.
func (p *program) spool(ctx context.Context, dir string, limit int64) (*payload, error) {
	var head bytes.Buffer
	if err := p.readStdin(ctx, func(stdin io.Reader) error {
		_, err := io.CopyN(&head, stdin, spoolMemory+1)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	switch size := int64(head.Len()); {
	case size > limit:
		return nil, tooLarge(limit)
	case size > spoolMemory:
		return p.spoolFile(ctx, &head, dir, limit)
	default:
		return &payload{
			size:  size,
			open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(head.Bytes())), nil },
			close: func() error { return nil },
			at:    bytes.NewReader(head.Bytes()),
		}, nil
	}
}

func tooLarge(limit int64) error {
	return fmt.Errorf("stdin: %w: more than %d bytes", gateway.ErrTooLarge, limit)
}

// spoolFile buffers stdin, of which head was already read, in a temporary file.
func (p *program) spoolFile(ctx context.Context, head io.Reader, dir string, limit int64) (_ *payload, err error) {
	file, err := os.CreateTemp(dir, "agrimill-stdin-*")
	if err != nil {
		return nil, fmt.Errorf("stdin exceeds the %d MiB that fit in memory, and no temporary file can be created: %w; "+
			"set a directory with --spool-dir or TMPDIR", spoolMemory>>20, err)
	}
	// Where an open file can be removed, nothing is left behind even if the process is
	// killed; elsewhere discard removes it.
	removed := os.Remove(file.Name()) == nil
	discard := func() error {
		err := file.Close()
		if !removed {
			err = errors.Join(err, os.Remove(file.Name()))
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, discard())
		}
	}()
	var size int64
	if err := p.readStdin(ctx, func(stdin io.Reader) error {
		n, err := io.Copy(file, io.LimitReader(io.MultiReader(head, stdin), limit+1))
		size = n
		return err
	}); err != nil {
		return nil, err
	}
	if size > limit {
		return nil, tooLarge(limit)
	}
	return &payload{
		size:  size,
		open:  func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(file, 0, size)), nil },
		close: discard,
		at:    file,
	}, nil
}
