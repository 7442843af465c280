package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// transfer shows the progress of an upload if stderr is a terminal.
type transfer struct {
	mu  sync.Mutex
	bar *progressbar.ProgressBar // nil: nothing is shown, or not anymore
	max int64
}

func (p *program) newTransfer(name string, size int64) *transfer {
	return &transfer{max: size, bar: p.newBar(name, size, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))}
}

// newBar shows how far something is, with the time that is left; nil, unless stderr is a terminal.
func (p *program) newBar(name string, most int64, more ...progressbar.Option) *progressbar.ProgressBar {
	if most <= 0 || !p.isTerminal(p.stderr) {
		return nil
	}
	return progressbar.NewOptions64(most, append(more,
		progressbar.OptionSetWriter(p.stderr), progressbar.OptionSetDescription(shorten(name, 40)), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(20), progressbar.OptionSetRenderBlankState(true))...)
}

// set updates the number of bytes read in the current attempt. The last byte is withheld
// until the gateway has responded. Errors of the terminal have nowhere to be reported.
func (t *transfer) set(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Set64(min(n, t.max-1))
	}
}

// end removes the bar. Abandoned attempts may still be reading.
func (t *transfer) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Finish()
		t.bar = nil
	}
}

// errUnread: the file could not be read to its end.
var errUnread = errors.New("the file cannot be read")

// unread makes an error of reading an errUnread. Its file is named elsewhere.
func unread(err error) error {
	if failed := (*os.PathError)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Errorf("%w: %w", errUnread, err)
}

// watch counts what each attempt reads of the payload.
func (t *transfer) watch(open func() (io.ReadCloser, error)) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		source, err := open()
		if err != nil {
			return nil, unread(err)
		}
		t.set(0)
		return &watched{ReadCloser: source, transfer: t}, nil
	}
}

type watched struct {
	io.ReadCloser
	transfer *transfer
	n        int64
}

// Read reads.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.n += int64(n)
	w.transfer.set(w.n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = unread(err)
	}
	return n, err
}
