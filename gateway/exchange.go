package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-retryablehttp"
)

const (
	// maxErrorBody is how much of an error answer is read.
	maxErrorBody = 64 << 10
	// maxErrorMessage is how much of its message an error keeps.
	maxErrorMessage = 1 << 10
	// maxIgnoredBody is how much of an answer that nobody needs is read, so
	// that the connection can be used again.
	maxIgnoredBody = 64 << 10
)

// request is one call as an operation describes it.
type request struct {
	op     string
	method string
	url    string
	header http.Header
	// open opens the body, size is its exact size; nil without a body.
	open func() (io.ReadCloser, error)
	size int64
	// inMemory says that the body never blocks.
	inMemory bool
	// ignoreBody says that the answer's status is all that counts.
	ignoreBody bool
	// streaming leaves the body of a good answer to the caller and bounds only
	// the time up to its head, by timeout.
	streaming bool
	// accept checks the head of an answer that is to be streamed.
	accept  func(*http.Response) error
	timeout time.Duration
	once    bool // one attempt
}

// exchange is the life of one call: all its attempts, under go-retryablehttp.
// It is the transport of its own http.Client, so that each attempt passes one
// place, [exchange.RoundTrip], that waits for the rate limit, adds the token,
// and bounds the time.
type exchange struct {
	c   *Client
	req request
	// next is what attempts go through: authorized calls, or payload hosts.
	next func(*exchange, *http.Request) (*http.Response, error)

	refreshed bool // the one repetition after a 401 has been made
	bodies    sync.WaitGroup
	bodyErr   atomic.Pointer[error]

	attempts   int
	status     int
	header     http.Header
	body       []byte
	stream     *attemptBody
	retryAfter time.Duration
	failure    *Error
}

// call makes an authorized call to the service and returns when it has an
// answer of status 2xx or an error. The error is an [*Error].
func (c *Client) call(ctx context.Context, req request) (*exchange, error) {
	return c.run(ctx, req, (*exchange).authorized)
}

func (c *Client) run(ctx context.Context, req request, next func(*exchange, *http.Request) (*http.Response, error)) (*exchange, error) {
	x := &exchange{c: c, req: req, next: next}
	if err := c.invalidCall(ctx, req.op, nil); err != nil {
		return nil, err
	}
	var body any
	if req.open != nil && req.size > 0 {
		// A body of a type with Len is the one form besides []byte that goes
		// out with its Content-Length and without being read into memory.
		body = retryablehttp.ReaderFunc(func() (io.Reader, error) { return x.newBody(), nil })
	}
	hr, err := retryablehttp.NewRequestWithContext(ctx, req.method, req.url, body)
	if err != nil {
		return nil, &Error{Op: req.op, Err: invalid("URL", "is malformed")}
	}
	for name, values := range req.header {
		hr.Header[name] = values
	}
	hr.Header.Set("User-Agent", c.cfg.UserAgent)

	rc := &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport:     x,
			CheckRedirect: x.checkRedirect,
		},
		Logger:       nil, // it prints URLs with their queries
		RetryMax:     c.cfg.Retry.retries(),
		CheckRetry:   x.check,
		Backoff:      x.backoff,
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	if req.once {
		rc.RetryMax = 0
	}
	resp, err := rc.Do(hr)
	if resp != nil && x.stream == nil {
		// Read and closed before, in check; once more costs nothing.
		_ = resp.Body.Close()
	}
	if req.inMemory {
		// The transport may still be reading the payload after an early
		// answer. The caller gets his bytes back only when nobody reads them.
		x.bodies.Wait()
	}
	return x.result(ctx, err)
}

func (x *exchange) result(ctx context.Context, err error) (*exchange, error) {
	if x.failure == nil && err == nil {
		return x, nil
	}
	failure := x.failure
	if ctx.Err() != nil {
		// Ended while waiting between two attempts, or during one.
		e := &Error{Op: x.req.op, Attempts: x.attempts, Err: ctx.Err()}
		if failure != nil {
			last := *failure
			last.Attempts = 0
			e.last = &last
		}
		return nil, e
	}
	if failure == nil {
		failure = &Error{Op: x.req.op, Attempts: x.attempts, Err: transportCause(err)}
	}
	return nil, failure
}

// check is the retry policy as go-retryablehttp wants it: it takes in the
// answer or the error of one attempt and asks [decideRetry].
func (x *exchange) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	x.attempts++
	x.retryAfter = 0
	failure := x.take(resp, err)
	if failure != nil && resp == nil && ctx.Err() != nil {
		// The attempt failed because the context ended. What is worth telling
		// is the failure before it, which stays; result adds the context's.
		return false, nil
	}
	x.failure = failure
	if failure == nil {
		return false, nil
	}
	failure.Attempts = x.attempts
	if ctx.Err() != nil {
		return false, nil
	}
	retry, reason := decideRetry(x.failure)
	x.c.cfg.Logger.DebugContext(ctx, "gateway: request failed",
		"operation", x.req.op, "attempt", x.attempts, "status", x.failure.StatusCode, "retryable", retry, "reason", reason)
	return retry, nil
}

// take reads an answer whole, unless it is to be streamed, and closes it.
func (x *exchange) take(resp *http.Response, err error) *Error {
	if p := x.bodyErr.Swap(nil); p != nil {
		if resp != nil {
			_ = resp.Body.Close()
		}
		return &Error{Op: x.req.op, Err: *p}
	}
	if err != nil {
		e := &Error{Op: x.req.op, Err: transportCause(err)}
		if resp != nil { // a redirect that was refused
			_ = resp.Body.Close()
			e.StatusCode = resp.StatusCode
		}
		return e
	}
	x.status, x.header = resp.StatusCode, resp.Header
	good := resp.StatusCode >= 200 && resp.StatusCode <= 299
	if stream, ok := resp.Body.(*attemptBody); ok && good && x.req.streaming {
		if err := x.req.accept(resp); err != nil {
			_ = resp.Body.Close()
			return &Error{Op: x.req.op, StatusCode: resp.StatusCode, Err: err}
		}
		x.stream = stream
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case !good:
		x.retryAfter = x.c.cfg.Retry.retryAfter(resp.Header, time.Now())
		return x.statusError(resp)
	case x.req.ignoreBody:
		// The status says it all; what the body does cannot undo that.
		_, _ = io.CopyN(io.Discard, resp.Body, maxIgnoredBody)
		return nil
	}
	limit := x.c.cfg.MaxResponseSize
	if limit == math.MaxInt64 {
		limit--
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return &Error{Op: x.req.op, Err: transportCause(err)}
	}
	if int64(len(body)) > limit {
		return &Error{Op: x.req.op, Err: &ResponseError{Reason: "longer than the limit"}}
	}
	x.body = body
	return nil
}

// statusError reads an error answer, a bounded part of it.
func (x *exchange) statusError(resp *http.Response) *Error {
	e := &Error{Op: x.req.op, StatusCode: resp.StatusCode}
	if x.req.op == opPayload && isExpired(resp.StatusCode) {
		e.Err = ErrPayloadExpired
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || x.req.op == opPayload {
		// Without its text the status still says enough; and what a payload
		// host writes may quote the address that grants access.
		return e
	}
	e.Message = errorMessage(body)
	if x.req.op == opSend && resp.StatusCode == http.StatusBadRequest {
		e.routing = routingFailureOf(e.Message)
	}
	return e
}

// errorMessage takes the message out of an ErrorResponse. Anything else, for
// example a web page, gives nothing.
func errorMessage(body []byte) string {
	var r ErrorResponse
	if json.Unmarshal(body, &r) != nil {
		return ""
	}
	m := r.Message
	if len(m) > maxErrorMessage {
		m = m[:maxErrorMessage]
		for len(m) > 0 && !utf8.ValidString(m[max(0, len(m)-utf8.UTFMax):]) {
			m = m[:len(m)-1]
		}
		m += "…"
	}
	return m
}

func (x *exchange) backoff(_, _ time.Duration, attempt int, _ *http.Response) time.Duration {
	return x.c.cfg.Retry.backoff(attempt, x.retryAfter)
}

// checkRedirect lets a redirect pass that stays at the service and keeps the
// method: a POST that becomes a GET is answered 200 and delivers nothing.
func (x *exchange) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 5 || req.Method != via[0].Method || !sameOrigin(req.URL, x.c.origin) {
		return ErrRedirect
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// RoundTrip makes one attempt.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) { return x.next(x, req) }

// authorized makes one attempt at the service: with the token, and once more
// with a fresh one when the first is refused.
func (x *exchange) authorized(req *http.Request) (*http.Response, error) {
	resp, token, err := x.attempt(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || x.refreshed {
		return resp, err
	}
	x.refreshed = true
	again := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, nil
		}
		body, err := req.GetBody()
		if err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		again.Body = body
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxIgnoredBody)
	_ = resp.Body.Close()
	x.c.tokens.invalidate(token)
	resp, _, err = x.attempt(again)
	return resp, err
}

// attempt sends one request and returns the token it used.
func (x *exchange) attempt(req *http.Request) (_ *http.Response, token string, err error) {
	fail := func(err error) (*http.Response, string, error) {
		closeRequestBody(req)
		return nil, "", err
	}
	if !sameOrigin(req.URL, x.c.origin) { // checkRedirect has seen to it; the token makes sure
		return fail(ErrRedirect)
	}
	started, err := x.c.limiter.wait(req.Context())
	if err != nil {
		return fail(err)
	}
	token, err = x.c.tokens.get(req.Context())
	if err != nil {
		return fail(err)
	}
	next := x.c.callTransport
	if x.req.streaming {
		next = x.c.streamTransport
	}
	out := req.Clone(req.Context())
	out.Header.Set("Authorization", "Bearer "+token)
	resp, err := x.send(next, out)
	if err != nil {
		return nil, token, err
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		x.c.limiter.reject(started, x.c.cfg.Retry.retryAfter(resp.Header, time.Now()))
	} else {
		x.c.limiter.accept(started)
	}
	return resp, token, nil
}

// send passes a request on with the time limit of one attempt. The limit holds
// until the answer's body is closed, or only up to its head when it is streamed.
func (x *exchange) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := func() bool { return true }
	if x.req.timeout > 0 {
		stop = time.AfterFunc(x.req.timeout, func() { cancel(errAttemptTimeout) }).Stop
	}
	if body, ok := req.Body.(*sendBody); ok && !x.req.inMemory {
		// Package http waits for a Read of the body that hangs, whatever the
		// context says.
		context.AfterFunc(ctx, func() { _ = body.Close() })
	}
	resp, err := next.RoundTrip(req.WithContext(ctx))
	if err == nil && x.req.streaming && !stop() {
		_ = resp.Body.Close()
		err = errAttemptTimeout
	}
	if err != nil {
		stop()
		if req.Context().Err() == nil && errors.Is(context.Cause(ctx), errAttemptTimeout) {
			err = &transportError{cause: errAttemptTimeout}
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &attemptBody{body: resp.Body, ctx: ctx, abort: cancel, stop: stop}
	return resp, nil
}

// attemptBody is the body of an answer. It ends its attempt when it is closed,
// and tells why the attempt was ended when that was not the caller's context.
type attemptBody struct {
	body  io.ReadCloser
	ctx   context.Context
	abort context.CancelCauseFunc
	stop  func() bool
}

// Read returns the cause for which the attempt was given up, where there is one.
func (b *attemptBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	switch cause := context.Cause(b.ctx); {
	case errors.Is(cause, errAttemptTimeout):
		err = &transportError{cause: errAttemptTimeout}
	case errors.Is(cause, ErrIdle):
		err = ErrIdle
	case errors.Is(cause, ErrClosed):
		err = ErrClosed
	}
	return n, err
}

// Close may be called while Read blocks, which then returns.
func (b *attemptBody) Close() error {
	b.stop()
	// Canceled first: closing would wait for a Read that hangs.
	b.abort(ErrClosed)
	return b.body.Close()
}

// idleReader ends the attempt when one Read waits longer than timeout. The time
// between reads does not count: a reader that is held up further down is not a
// stream that went silent.
type idleReader struct {
	body    *attemptBody
	timeout time.Duration
	timer   *time.Timer
}

func newIdleReader(body *attemptBody, timeout time.Duration) *idleReader {
	r := &idleReader{body: body, timeout: timeout}
	if timeout > 0 {
		r.timer = time.AfterFunc(timeout, func() { body.abort(ErrIdle) })
		r.timer.Stop()
	}
	return r
}

// Read gives the attempt up when the source is silent for too long.
func (r *idleReader) Read(p []byte) (int, error) {
	if r.timer != nil {
		r.timer.Reset(r.timeout)
		defer r.timer.Stop()
	}
	return r.body.Read(p)
}

func closeRequestBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// requestTimeout bounds one attempt with a body of size bytes.
func (c *Client) requestTimeout(size int64) time.Duration {
	if c.cfg.RequestTimeout == NoTimeout {
		return 0
	}
	return c.cfg.RequestTimeout + time.Duration(float64(size)/float64(c.cfg.MinTransferRate)*float64(time.Second))
}

// sendBody is the body of one attempt. It opens its source at the first read,
// and makes sure of the size before it hands out the last bytes: a request
// whose source is longer or shorter than announced is never complete.
type sendBody struct {
	x *exchange

	reading sync.Mutex // held by Read
	left    int64
	err     error

	mu     sync.Mutex
	rc     io.ReadCloser
	closed bool
}

func (x *exchange) newBody() *sendBody {
	x.bodies.Add(1)
	return &sendBody{x: x, left: x.req.size}
}

// Len is what go-retryablehttp takes the Content-Length from.
func (b *sendBody) Len() int { return int(b.x.req.size) }

// Read is called by the transport.
func (b *sendBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	n, err := b.read(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.err = io.EOF
		return n, nil
	}
	b.err = err
	b.mu.Lock()
	defer b.mu.Unlock()
	// After Close the attempt is over, and the error only its echo.
	if !b.closed {
		b.x.bodyErr.Store(&err)
	}
	return 0, err
}

// read returns io.EOF together with the last bytes.
func (b *sendBody) read(p []byte) (int, error) {
	rc, err := b.source()
	if err != nil {
		return 0, err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := io.ReadAtLeast(rc, p, 1)
	b.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF):
		return 0, invalid("Size", "must be the exact size of Body: it is shorter")
	case err != nil:
		return 0, err
	case b.left > 0:
		return n, nil
	}
	var one [1]byte
	switch m, err := io.ReadAtLeast(rc, one[:], 1); {
	case m > 0:
		return 0, invalid("Size", "must be the exact size of Body: it is longer")
	case !errors.Is(err, io.EOF):
		return 0, err
	}
	return n, io.EOF
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
	if b.x.req.inMemory {
		rc, err := b.x.req.open()
		if err != nil {
			return nil, err
		}
		b.rc = rc
	} else {
		b.rc = newPump(b.x.req.open)
	}
	return b.rc, nil
}

// Close is called by the transport and at the end of the attempt, once or more,
// perhaps during a Read, which then returns.
func (b *sendBody) Close() error {
	b.mu.Lock()
	rc, again := b.rc, b.closed
	b.closed = true
	b.mu.Unlock()
	if again {
		return nil
	}
	defer b.x.bodies.Done()
	if b.x.req.inMemory {
		// Only now is nobody reading the caller's bytes any more.
		b.reading.Lock()
		defer b.reading.Unlock()
	}
	if rc != nil {
		return rc.Close()
	}
	return nil
}

// pump reads a source in a goroutine of its own, so that a Read can be left
// although the source hangs.
type pump struct {
	*io.PipeReader

	mu     sync.Mutex
	source io.ReadCloser // nil until it is open, and again when it is closed
	closed bool
}

func newPump(open func() (io.ReadCloser, error)) *pump {
	r, w := io.Pipe()
	p := &pump{PipeReader: r}
	// Ends at the end of the source, or after Close, as soon as the source
	// returns from what it is doing.
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
		// Closed first: who reads the end knows that the source is closed.
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
		// The bytes that count have been read, or nobody wants them any more.
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
		// Of some sources Close waits for their Read.
		go p.closeSource()
	}
	return nil
}

// bytesBody is the body of a payload in memory, which is not copied.
func bytesBody(p []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}
