package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agrimill/agrimill/gateway"
)

// stdinName stands for stdin among files.
const stdinName = "-"

// payload is a file that can be read from its beginning as often as it takes.
type payload struct {
	size  int64
	open  func() (io.ReadCloser, error)
	close func() error
}

// openPayload finds out what a file is. Only stdin is read by then.
func (p *program) openPayload(ctx context.Context, name string, limit int64) (*payload, error) {
	if name == stdinName {
		return p.spool(ctx, limit)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return &payload{
		size:  info.Size(),
		open:  func() (io.ReadCloser, error) { return os.Open(name) },
		close: func() error { return nil },
	}, nil
}

// spool keeps stdin in a temporary file: its size has to be known before the
// first byte is sent, and it has to be read again when an attempt fails.
func (p *program) spool(ctx context.Context, limit int64) (_ *payload, err error) {
	file, err := os.CreateTemp("", "bridge-stdin-*")
	if err != nil {
		return nil, err
	}
	// Where an open file can be removed, nothing is left even when the program is
	// killed; elsewhere the second attempt does it.
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
		n, err := io.Copy(file, io.LimitReader(stdin, limit+1))
		size = n
		return err
	}); err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("stdin: %w: more than %d bytes", gateway.ErrTooLarge, limit)
	}
	return &payload{
		size:  size,
		open:  func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(file, 0, size)), nil },
		close: discard,
	}, nil
}

// readStdin returns when read does, which reads stdin, or when ctx ends. A terminal
// or a pipe cannot be made to give up a read: then the goroutine of read ends
// with stdin, or with the program.
func (p *program) readStdin(ctx context.Context, read func(stdin io.Reader) error) error {
	done := make(chan error, 1)
	go func() { done <- read(p.stdin) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return err
	}
}
