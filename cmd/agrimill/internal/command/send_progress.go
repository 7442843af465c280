package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// newBar shows on a terminal how far something is, with the time that is left. Errors of the terminal have nowhere to be reported.
func (p *program) newBar(name string, most int64, more ...progressbar.Option) *progressbar.ProgressBar {
	return progressbar.NewOptions64(max(most, 1), append(more,
		progressbar.OptionSetVisibility(most > 0 && p.isTerminal(p.stderr)),
		progressbar.OptionSetWriter(p.stderr), progressbar.OptionSetDescription(shorten(name, 40)), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(20), progressbar.OptionSetRenderBlankState(true))...)
}

// errUnread: the file could not be read to its end.
var errUnread = errors.New("the file cannot be read")

var errChanged = errors.New("it changed meanwhile: send it again when it is complete")

// unread makes an error of reading an errUnread. Its file is named elsewhere.
func unread(err error) error {
	if failed := (*os.PathError)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Errorf("%w: %w", errUnread, err)
}

func showing(bar *progressbar.ProgressBar, size int64, open func() (io.ReadCloser, error)) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		source, err := open()
		if err != nil {
			return nil, unread(err)
		}
		_ = bar.Set64(0)
		return &watched{ReadCloser: source, bar: bar, left: size}, nil
	}
}

type watched struct {
	io.ReadCloser
	bar  *progressbar.ProgressBar
	left int64
}

// Read reads. The last byte is not shown before the gateway has responded.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.left -= int64(n)
	_ = w.bar.Set64(w.bar.GetMax64() - max(w.left, 1))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		err = unread(err)
	case w.left < 0, err != nil && w.left > 0:
		return 0, unread(errChanged)
	}
	return n, err
}
