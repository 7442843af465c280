package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// attempt is one request on its way, with what it needs in one allocation.
type attempt struct {
	x     *exchange
	call  context.Context // without the attempt's own end
	abort context.CancelCauseFunc
	req   *http.Request

	url     url.URL
	content bytes.Reader
	token   [1]string
	limit   attemptLimit
	body    attemptBody

	mu   sync.Mutex
	sent []sentBody // the bodies that were opened for it
}

// sentBody is a body that is read while it is sent.
type sentBody interface {
	io.ReadCloser
	// unread reports whether something of it has not been read: then nobody can have all of it.
	unread() bool
}

// newAttempt makes a request of the call, to the same or to another address.
func (x *exchange) newAttempt(ctx context.Context, to *url.URL) *attempt {
	a := &attempt{x: x, call: ctx, url: *to}
	ctx, a.abort = context.WithCancelCause(ctx)
	a.req = x.req.like.WithContext(ctx)
	a.req.URL = &a.url // not every RoundTripper leaves it as it is
	if to != x.req.like.URL {
		a.req.Host = ""
	}
	a.req.Header = x.req.header
	if x.requests++; x.requests > 1 {
		a.req.Header = x.req.header.Clone()
		a.req.Header.Del("Authorization") // each request has its own
	}
	if !x.req.hasBody() {
		return a
	}
	a.req.ContentLength = x.req.size
	if x.req.inMemory() {
		a.content.Reset(x.req.content)
		a.req.Body = io.NopCloser(&a.content)
		a.req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.req.content)), nil }
		return a
	}
	a.req.Body = a.newBody()
	a.req.GetBody = func() (io.ReadCloser, error) { return a.newBody(), nil }
	return a
}

// newBody opens a body for the request. The HTTP/2 transport opens another one when the connection
// that it chose turns out to be dead, and forgets to close the previous one; waiting until all bodies
// are closed would then block forever.
func (a *attempt) newBody() io.ReadCloser {
	var body sentBody
	if a.x.req.open != nil {
		body = newSourceBody(a.x)
	} else {
		a.x.bodies.Add(1)
		content := &contentBody{bodies: &a.x.bodies}
		content.rest.Reset(a.x.req.content)
		body = content
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = append(a.sent, body)
	return body
}

// closeBodies closes the bodies that are no longer needed once there is a response or an error: all of
// them if the request failed, otherwise all but the last, which the transport may still be reading
// after an early response.
func (a *attempt) closeBodies(failed bool) {
	a.mu.Lock()
	list := a.sent
	a.mu.Unlock()
	if !failed && len(list) > 0 {
		list = list[:len(list)-1]
	}
	for _, body := range list {
		_ = body.Close() // the attempt is over
	}
}

// answeredEarly reports whether a response accepts what has not been sent completely.
func (a *attempt) answeredEarly(resp *http.Response) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return isGood(resp.StatusCode) && len(a.sent) > 0 && a.sent[len(a.sent)-1].unread()
}

// discard ends an attempt that has no response.
func (a *attempt) discard() {
	a.closeBodies(true)
	a.abort(nil)
}

// send performs the request with the timeout of one attempt. The timeout applies
// until the response body is closed, or only up to the head if it is streamed.
func (a *attempt) send(next http.RoundTripper) (*http.Response, error) {
	x, limit, ctx := a.x, &a.limit, a.req.Context()
	limit.abort = a.abort
	limit.set(x.req.timeout, errAttemptTimeout)
	if x.req.sent != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
			// The response may have arrived before this callback.
			if info.Err == nil && limit.set(x.req.headIdle, ErrIdle) {
				x.req.sent()
			}
		}})
		a.req = a.req.WithContext(ctx)
	}
	if body, ok := a.req.Body.(*sourceBody); ok {
		// Package http waits for a Read of the body that hangs.
		context.AfterFunc(ctx, func() { _ = body.Close() })
	}
	resp, err := next.RoundTrip(a.req)
	a.closeBodies(err != nil)
	if err == nil && resp.Request != nil && resp.Request.Response != a.req.Response {
		// A RoundTripper that follows redirects cannot be trusted: it is unknown
		// where it has been and what it has sent there.
		_ = resp.Body.Close()
		err = ErrRedirect
	}
	if err == nil && a.answeredEarly(resp) {
		_ = resp.Body.Close()
		err = errAnsweredEarly
	}
	if err == nil && x.req.streaming {
		if cause := limit.stop(); cause != nil {
			_ = resp.Body.Close()
			err = cause
		}
	}
	if err != nil {
		if cause := limit.stop(); cause != nil && a.call.Err() == nil {
			err = limitError(cause)
		}
		a.abort(nil)
		return nil, err
	}
	a.body = attemptBody{body: resp.Body, ctx: ctx, abort: a.abort, limit: limit}
	resp.Body = &a.body
	return resp, nil
}

// attemptBody is the body of a response. Closing it ends its attempt.
type attemptBody struct {
	body  io.ReadCloser
	ctx   context.Context
	abort context.CancelCauseFunc
	limit *attemptLimit
}

// Read returns the cause for which the attempt was aborted, also instead of io.EOF: a service that notices the
// end first may terminate its response as if it were complete.
func (b *attemptBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err == nil {
		return n, nil
	}
	switch cause := context.Cause(b.ctx); {
	case errors.Is(cause, errAttemptTimeout), errors.Is(cause, ErrIdle):
		err = limitError(cause)
	case errors.Is(cause, ErrClosed):
		err = ErrClosed
	case cause != nil && errors.Is(err, io.EOF):
		err = b.ctx.Err()
	}
	return n, err
}

// limitError returns the error for an attempt that timed out.
func limitError(cause error) error {
	if errors.Is(cause, errAttemptTimeout) {
		return &transportError{cause: cause}
	}
	return cause
}

// Close may be called while Read blocks; Read then returns.
func (b *attemptBody) Close() error {
	_ = b.limit.stop()
	// Cancel first: closing would wait for a Read that hangs.
	b.abort(ErrClosed)
	return b.body.Close()
}

// idleReader ends the attempt when a single Read waits longer than timeout; the time between reads does not count.
type idleReader struct {
	body    io.Reader
	timeout time.Duration
	timer   *time.Timer
	heard   atomic.Pointer[time.Time] // when a byte last came, at first when it was made
}

func newIdleReader(body *attemptBody, timeout time.Duration) *idleReader {
	r := &idleReader{body: body, timeout: timeout}
	r.heard.Store(new(time.Now()))
	if timeout > 0 {
		r.timer = time.AfterFunc(timeout, func() { body.abort(ErrIdle) })
		r.timer.Stop()
	}
	return r
}

// Read aborts the attempt if the source is silent for too long.
func (r *idleReader) Read(p []byte) (int, error) {
	if r.timer != nil {
		r.timer.Reset(r.timeout)
		defer r.timer.Stop()
	}
	n, err := r.body.Read(p)
	if n > 0 {
		r.heard.Store(new(time.Now()))
	}
	return n, err
}

// attemptLimit bounds an attempt, or the step of it that is set: a stream waits for its request to be written, and
// then for its response head.
type attemptLimit struct {
	abort context.CancelCauseFunc

	mu      sync.Mutex
	timer   *time.Timer // of the current limit, nil if there is none
	cause   error       // of the abortion when the current limit expires
	over    bool
	expired bool
}

// set replaces the limit; zero means none. It returns false if the attempt is already over.
func (l *attemptLimit) set(limit time.Duration, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.timer != nil && !l.timer.Stop() {
		return false
	}
	l.timer, l.cause = nil, cause
	if limit > 0 {
		l.timer = time.AfterFunc(limit, func() { l.abort(cause) })
	}
	return true
}

// stop ends the limit and returns its cause if it had already expired.
func (l *attemptLimit) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over = true
		l.expired = l.timer != nil && !l.timer.Stop()
	}
	if l.expired {
		return l.cause
	}
	return nil
}
