package gateway

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
)

// contentBody is the body of one attempt with bytes that belong to the caller.
type contentBody struct {
	bodies *sync.WaitGroup

	mu     sync.Mutex // held by Read, so that Close returns only once nothing reads the bytes anymore
	rest   bytes.Reader
	closed bool
}

// Read is called by the transport.
func (b *contentBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, ErrClosed
	}
	return b.rest.Read(p)
}

func (b *contentBody) unread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rest.Len() > 0
}

// Close is called by the transport and at the end of the attempt, at least once.
func (b *contentBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.bodies.Done()
	}
	return nil
}

// sourceBody is the body of one attempt that is read from a source, which may hang.
type sourceBody struct {
	x     *exchange
	pipe  *io.PipeReader
	start func() // opens the source, once
	read  atomic.Int64

	mu     sync.Mutex
	source io.ReadCloser // nil until opened and after it was closed
	closed bool
}

func newSourceBody(x *exchange) *sourceBody {
	r, w := io.Pipe()
	b := &sourceBody{x: x, pipe: r}
	// Ends with the source, or after Close as soon as that returns from its current operation.
	b.start = sync.OnceFunc(func() { go b.run(w) })
	return b
}

// Read is called by the transport. An error of the source ends the call.
func (b *sourceBody) Read(p []byte) (int, error) {
	b.start()
	n, err := b.pipe.Read(p)
	b.read.Add(int64(n))
	if err != nil && err != io.EOF { //nolint:errorlint // one that wraps it is no end
		b.mu.Lock()
		defer b.mu.Unlock()
		// After Close the attempt is over, and the error is only a consequence of that.
		if !b.closed {
			b.x.callerErr.Store(&err)
		}
	}
	return n, err
}

func (b *sourceBody) unread() bool { return b.read.Load() < b.x.req.size }

func (b *sourceBody) run(w *io.PipeWriter) {
	out := &exactWriter{to: w, left: b.x.req.size}
	err := b.copy(out)
	if (err == nil || err == io.EOF) && out.left > 0 { //nolint:errorlint // from whoever opens it, that is no end either
		err = invalid("Size", "must be the exact size of Body: it is shorter")
	}
	// Close first: a reader that sees the end can rely on the source being closed.
	b.closeSource()
	if err == nil && len(out.last) > 0 {
		_, err = w.Write(out.last)
	}
	_ = w.CloseWithError(err) // nil is io.EOF
}

func (b *sourceBody) copy(to io.Writer) error {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return ErrClosed
	}
	rc, err := b.x.req.open()
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.source, closed = rc, b.closed
	b.mu.Unlock()
	if closed {
		return ErrClosed
	}
	_, err = io.CopyBuffer(to, struct{ io.Reader }{rc}, make([]byte, 64<<10))
	return err
}

// exactWriter keeps the last bytes back until the source has ended with them: a request whose source is longer or
// shorter than announced is never completed.
type exactWriter struct {
	to   io.Writer
	left int64
	last []byte
}

// Write implements [io.Writer].
func (w *exactWriter) Write(p []byte) (int, error) {
	switch w.left -= int64(len(p)); {
	case w.left < 0:
		return 0, invalid("Size", "must be the exact size of Body: it is longer")
	case w.left == 0:
		w.last = bytes.Clone(p)
		return len(p), nil
	}
	return w.to.Write(p)
}

func (b *sourceBody) closeSource() {
	b.mu.Lock()
	rc := b.source
	b.source = nil
	b.mu.Unlock()
	if rc != nil {
		// All relevant bytes have been read, or they are no longer needed.
		_ = rc.Close()
	}
}

// Close makes Read return, and closes the source without waiting for it.
func (b *sourceBody) Close() error {
	b.mu.Lock()
	b.closed = true
	open := b.source != nil
	b.mu.Unlock()
	_ = b.pipe.CloseWithError(ErrClosed)
	if open {
		// Some sources block in Close until their Read returns.
		go b.closeSource()
	}
	return nil
}

// verifyEmpty makes sure that a source of no bytes has none: the request is sent without reading it.
func (x *exchange) verifyEmpty(caller context.Context) error {
	if x.req.open == nil || x.req.size > 0 {
		return nil
	}
	ctx, cancel := caller, context.CancelFunc(func() {})
	if x.req.timeout > 0 {
		ctx, cancel = context.WithTimeout(caller, x.req.timeout)
	}
	defer cancel()
	source := newSourceBody(x)
	defer func() { _ = source.Close() }()
	defer context.AfterFunc(ctx, func() { _ = source.Close() })()
	_, err := source.Read(make([]byte, 1))
	switch {
	case err == io.EOF: //nolint:errorlint // one that wraps it is no end
		return nil
	case caller.Err() != nil:
		return caller.Err()
	case ctx.Err() != nil:
		err = invalid("Size", "must be the exact size of Body: it does not end")
		x.callerErr.Store(&err)
	}
	return err
}
