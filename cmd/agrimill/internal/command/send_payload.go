package command

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/agrimill/agrimill/internal/spool"
)

const stdinName = "-"

// openPayload prepares a file to be sent. It reads only stdin; spoolDir is where large
// input is kept, empty for the system's temporary directory.
func (p *program) openPayload(ctx context.Context, name, spoolDir string, limit int64) (*spool.Payload, error) {
	if name == stdinName {
		return p.spool(ctx, spoolDir, limit)
	}
	info, err := os.Stat(name)
	if failed := (*os.PathError)(nil); errors.As(err, &failed) {
		return nil, failed.Err // the line has the name
	} else if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	return &spool.Payload{
		Size:  info.Size(),
		Open:  func() (io.ReadCloser, error) { return os.Open(name) },
		Close: func() error { return nil },
	}, nil
}

// spool buffers stdin: its size must be known before the first byte is sent, and a retry
// has to read it again.
func (p *program) spool(ctx context.Context, dir string, limit int64) (*spool.Payload, error) {
	return spool.Buffer(func(read func(io.Reader) error) error { return p.readStdin(ctx, read) }, "stdin", spool.Limits{Max: limit, Dir: dir})
}
