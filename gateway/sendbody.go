package gateway

import (
	"bytes"
	"context"
	"io"
	"sync"
)

// sendBody is the body of one attempt. It opens its source on the first read,
// and verifies the size before it hands out the last bytes: a request
// whose source is longer or shorter than announced is never completed.
type sendBody struct {
	x *exchange

	reading sync.Mutex // held by Read
	left    int64
	err     error

	mu      sync.Mutex
	rc      io.ReadCloser
	content contentReader
	closed  bool
}

// contentReader reads a body in memory.
type contentReader struct{ bytes.Reader }

// Close does nothing.
func (*contentReader) Close() error { return nil }

// Read is called by the transport.
func (b *sendBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	n, last, err := b.read(p)
	switch {
	case last:
		b.err = io.EOF
		return n, nil
	case err == nil:
		return n, nil
	}
	b.err = err
	b.mu.Lock()
	defer b.mu.Unlock()
	// After Close the attempt is over, and the error is only a consequence of that.
	if !b.closed {
		b.x.callerErr.Store(&err)
	}
	return 0, err
}

// read also reports whether these were the last bytes. An error that only wraps io.EOF, as those of
// connections do, is not the end.
func (b *sendBody) read(p []byte) (n int, last bool, err error) {
	rc, err := b.source()
	if err != nil {
		return 0, false, err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err = io.ReadAtLeast(rc, p, 1)
	b.left -= int64(n)
	switch {
	case err == io.EOF: //nolint:errorlint // one that wraps it is no end
		return 0, false, invalid("Size", "must be the exact size of Body: it is shorter")
	case err != nil:
		return 0, false, err
	case b.left > 0:
		return n, false, nil
	}
	var one [1]byte
	switch m, err := io.ReadAtLeast(rc, one[:], 1); {
	case m > 0:
		return 0, false, invalid("Size", "must be the exact size of Body: it is longer")
	case err != io.EOF:
		return 0, false, err
	}
	return n, true, nil
}

func (b *sendBody) source() (io.Reader, error) {
	b.mu.Lock()
	rc, closed := b.rc, b.closed
	b.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case rc != nil:
		return rc, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	switch open := b.x.req.open; {
	case open == nil:
		b.content.Reset(b.x.req.content)
		b.rc = &b.content
	default:
		b.rc = newPump(open)
	}
	return b.rc, nil
}

// Close is called by the transport and at the end of the attempt, at least once,
// possibly during a Read, which then returns.
func (b *sendBody) Close() error {
	b.mu.Lock()
	rc, again := b.rc, b.closed
	b.closed = true
	b.mu.Unlock()
	if again {
		return nil
	}
	defer b.x.bodies.Done()
	if b.x.req.content != nil {
		// Return only once nothing reads the caller's bytes anymore.
		b.reading.Lock()
		defer b.reading.Unlock()
	}
	if rc != nil {
		return rc.Close()
	}
	return nil
}

// verifyEmpty makes sure that a source of no bytes has none: the request is sent without reading it.
func (x *exchange) verifyEmpty(ctx context.Context) error {
	if x.req.open == nil || x.req.size > 0 {
		return nil
	}
	source := newPump(x.req.open)
	defer func() { _ = source.Close() }()
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, x.req.timeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = source.Close() })()
	_, err := io.ReadFull(source, make([]byte, 1))
	switch {
	case err == io.EOF: //nolint:errorlint // one that wraps it is no end
		return nil
	case caller.Err() != nil:
		return caller.Err()
	case ctx.Err() != nil:
		err = invalid("Size", "must be the exact size of Body: it does not end")
	case err == nil:
		err = invalid("Size", "must be the exact size of Body: it is longer")
	}
	x.callerErr.Store(&err)
	return err
}

// pump reads a source in its own goroutine, so that a Read can return even if
// the source hangs.
type pump struct {
	*io.PipeReader

	mu     sync.Mutex
	source io.ReadCloser // nil until opened and after it was closed
	closed bool
}

func newPump(open func() (io.ReadCloser, error)) *pump {
	r, w := io.Pipe()
	p := &pump{PipeReader: r}
	// Ends at the end of the source, or after Close as soon as the source
	// returns from its current operation.
	go p.run(open, w)
	return p
}

func (p *pump) run(open func() (io.ReadCloser, error), w *io.PipeWriter) {
	rc, err := open()
	if err == nil {
		p.mu.Lock()
		p.source = rc
		closed := p.closed
		p.mu.Unlock()
		if !closed {
			_, err = io.CopyBuffer(w, struct{ io.Reader }{rc}, make([]byte, 64<<10))
		}
		// Close first: a reader that sees the end can rely on the source being closed.
		p.closeSource()
	}
	_ = w.CloseWithError(err) // nil is io.EOF
}

func (p *pump) closeSource() {
	p.mu.Lock()
	rc := p.source
	p.source = nil
	p.mu.Unlock()
	if rc != nil {
		// All relevant bytes have been read, or they are no longer needed.
		_ = rc.Close()
	}
}

// Close makes Read return, and closes the source without waiting for it.
func (p *pump) Close() error {
	_ = p.CloseWithError(ErrClosed)
	p.mu.Lock()
	p.closed = true
	open := p.source != nil
	p.mu.Unlock()
	if open {
		// Some sources block in Close until their Read returns.
		go p.closeSource()
	}
	return nil
}
