package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-retryablehttp"
)

const (
	// maxErrorBody is how much of an error response is read, in bytes.
	maxErrorBody = 64 << 10
	// maxErrorBodyTime bounds reading an error response if no other limit does.
	maxErrorBodyTime = 5 * time.Second
	// maxErrorMessage is how much of an error message is kept, in bytes.
	maxErrorMessage = 1 << 10
	// maxIgnoredBody is how much of an ignored response body is read, so
	// that the connection can be reused.
	maxIgnoredBody = 64 << 10
	// sniffed is how much of a response is examined to detect a web page.
	sniffed = 512
)

// request describes one call of an operation.
type request struct {
	op     string
	method string
	url    string
	// like is instead of url where that is always the same: a request without header and body,
	// of which copies are made.
	like   *http.Request
	header http.Header
	// open opens the body and size is its exact size; nil without a body, and with content.
	open func() (io.ReadCloser, error)
	size int64
	// content is the body if it is in memory, and shared whether it belongs to the caller.
	content []byte
	shared  bool
	// oneShot is the body if it can be read only once.
	oneShot *oneShot
	// ignoreBody means that only the response's status matters.
	ignoreBody bool
	// streaming leaves the body of a successful response to the caller; timeout then
	// bounds only the time up to the response head.
	streaming bool
	// accept checks the head of a response that is to be streamed.
	accept  func(*http.Response) error
	timeout time.Duration
	once    bool // no retries
	// sent, if set, is called when the request has been written; timeout then bounds
	// the time until that, and headIdle the wait for the head; zero means no limit.
	sent     func()
	headIdle time.Duration
}

// exchange is the lifetime of one call: all its attempts. The first is made by
// [exchange.begin]; what follows it, and streams, is driven by go-retryablehttp. The
// exchange is the transport of its http.Client, so that every attempt goes through next,
// which waits for the rate limit, adds the token, and applies the timeout.
type exchange struct {
	c   *Client
	req request
	// next performs the attempts: authorized calls, or requests to payload hosts.
	next func(*exchange, *http.Request) (*http.Response, error)
	// first is the outcome of the attempt that begin has made, until go-retryablehttp has it.
	first *firstAttempt
	// own is the attempt that begin makes, until it is over; nil otherwise. Its request and its
	// context belong to the exchange, which need not make others for it.
	own *ownAttempt

	refreshed bool   // the single retry after a 401 has been made
	token     string // of the latest attempt, which an answer may echo
	bodies    sync.WaitGroup
	callerErr atomic.Pointer[error] // an error of the caller's body or editor
	// lost means that a 401 was not retried because the body had been read.
	lost bool

	attempts   int
	sentAt     time.Time // start of the latest attempt
	status     int
	header     http.Header
	media      string // media type of the response
	body       []byte
	stream     *attemptBody
	retryAfter time.Duration
	failure    *Error
}

// call makes an authorized call to the service and returns when it has a
// 2xx response or an error. The error is an [*Error].
func (c *Client) call(ctx context.Context, req request) (*exchange, error) {
	return c.run(ctx, req, (*exchange).authorized)
}

func (c *Client) run(ctx context.Context, req request, next func(*exchange, *http.Request) (*http.Response, error)) (*exchange, error) {
	x := &exchange{c: c, req: req, next: next}
	if err := c.invalidCall(ctx, req.op, nil); err != nil {
		return nil, err
	}
	var err error
	if req.streaming {
		err = x.retry(ctx)
	} else if err = x.begin(ctx); x.first != nil {
		err = x.retry(ctx)
	}
	if req.shared {
		// After an early response the transport may still be reading the payload.
		// The caller gets its bytes back only when nothing reads them anymore.
		x.bodies.Wait()
	}
	return x.result(ctx, err)
}

// firstAttempt is the outcome of the first attempt of a call that needs more of them.
type firstAttempt struct {
	resp *http.Response
	err  error
	// checked means that the outcome has been to check, which wants a retry. Otherwise it is a
	// redirect, for http.Client to judge.
	checked bool
}

// ownAttempt is what begin's attempt needs, in one allocation: how its context ends, and the
// parent of that, and parts of its request and of its response.
type ownAttempt struct {
	call    context.Context
	cancel  context.CancelCauseFunc
	url     url.URL
	content bytes.Reader
	token   [1]string
	attemptEnd
}

// attemptEnd is what ends an attempt: a limit, or the end of the response.
type attemptEnd struct {
	limit attemptLimit
	body  attemptBody
}

// begin makes the first attempt, and with it most calls. go-retryablehttp and http.Client would
// copy the request and its header three times on the way, to repeat it if need be. If they have
// to, begin sets x.first.
func (x *exchange) begin(ctx context.Context) error {
	attempt := ctx
	if x.c.cfg.EditRequest == nil { // which might replace the context
		x.own = &ownAttempt{call: ctx}
		attempt, x.own.cancel = context.WithCancelCause(ctx)
	}
	hr, err := x.newRequest(attempt)
	if err != nil {
		x.endOwn()
		x.failure = &Error{Op: x.req.op, Err: invalid("URL", "is malformed")}
		return nil
	}
	if x.hasBody() {
		hr.Body, hr.ContentLength = x.firstBody(), x.req.size
		if x.req.oneShot == nil {
			hr.GetBody = func() (io.ReadCloser, error) { return x.openBody(), nil }
		}
	}
	hr.Header = x.req.header
	x.c.setCommon(hr.Header)
	resp, err := x.next(x, hr)
	if err != nil {
		x.endOwn()
	}
	x.own = nil // closing the response ends it
	if err == nil && isRedirect(resp.StatusCode) {
		x.first = &firstAttempt{resp: resp}
		return nil
	}
	retry, _ := x.check(ctx, resp, err)
	if err == nil {
		_ = resp.Body.Close() // check has read and closed it
	}
	if retry && x.retries(ctx) > 0 {
		x.first = &firstAttempt{resp: resp, err: err, checked: true}
	}
	return err
}

func (x *exchange) endOwn() {
	if x.own != nil {
		x.own.cancel(nil)
	}
}

// newRequest returns the request without its header and its body.
func (x *exchange) newRequest(ctx context.Context) (*http.Request, error) {
	if x.req.like != nil {
		hr := x.req.like.WithContext(ctx)
		// Not every RoundTripper leaves it as it is.
		if x.own != nil {
			x.own.url = *hr.URL
			hr.URL = &x.own.url
		} else {
			address := *hr.URL
			hr.URL = &address
		}
		return hr, nil
	}
	return http.NewRequestWithContext(ctx, x.req.method, x.req.url, http.NoBody)
}

// firstBody returns the body of the first attempt.
func (x *exchange) firstBody() io.ReadCloser {
	if x.own == nil || !x.inMemory() {
		return x.openBody()
	}
	x.own.content.Reset(x.req.content)
	return io.NopCloser(&x.own.content)
}

// openBody returns the body of the first attempt once more.
func (x *exchange) openBody() io.ReadCloser {
	if x.inMemory() {
		return io.NopCloser(bytes.NewReader(x.req.content))
	}
	return x.newBody()
}

// inMemory reports whether the body is a copy in memory. Package http writes the type that is
// made of it together with the head.
func (x *exchange) inMemory() bool { return len(x.req.content) > 0 && !x.req.shared }

func (x *exchange) hasBody() bool {
	return (x.req.open != nil || x.req.content != nil) && x.req.size > 0
}

// retries is how many attempts may follow the first.
func (x *exchange) retries(ctx context.Context) int {
	if x.req.once || singleAttempt(ctx) {
		return 0
	}
	return x.c.cfg.Retry.retries()
}

// setCommon sets the headers of every request.
func (c *Client) setCommon(h http.Header) {
	h["User-Agent"] = c.common[0:1:1]
	h["Accept-Encoding"] = c.common[1:2:2]
}

// retry has go-retryablehttp make the attempts, of which the first may have been made.
func (x *exchange) retry(ctx context.Context) error {
	req := &x.req
	var body any
	if x.hasBody() {
		// Besides []byte, only a body type with a Len method is sent with its
		// Content-Length and without being read into memory.
		body = retryablehttp.ReaderFunc(func() (io.Reader, error) { return x.newBody(), nil })
	}
	address := req.url
	if req.like != nil {
		address = req.like.URL.String()
	}
	hr, err := retryablehttp.NewRequestWithContext(ctx, req.method, address, body)
	if err != nil {
		x.failure = &Error{Op: req.op, Err: invalid("URL", "is malformed")}
		return nil
	}
	if req.oneShot != nil {
		// Package http would retry a request whose connection was lost, and report
		// the failure of that retry instead.
		hr.GetBody = nil
	}
	for name, values := range req.header {
		if name != "Authorization" { // each attempt has its own
			hr.Header[name] = values
		}
	}
	x.c.setCommon(hr.Header)

	rc := &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport:     x,
			CheckRedirect: x.checkRedirect,
		},
		Logger:       nil, // it would print URLs with their queries
		RetryMax:     x.retries(ctx),
		CheckRetry:   x.check,
		Backoff:      x.backoff,
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	resp, err := rc.Do(hr)
	if resp != nil && x.stream == nil {
		// check has already read and closed it; closing again is free.
		_ = resp.Body.Close()
	}
	return err
}

func (x *exchange) result(ctx context.Context, err error) (*exchange, error) {
	if x.failure == nil && err == nil {
		return x, nil
	}
	failure := x.failure
	if ctx.Err() != nil {
		// The context ended during an attempt or between two.
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

// check is the retry policy for go-retryablehttp: it processes the
// response or the error of one attempt and consults [decideRetry].
func (x *exchange) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if x.first != nil {
		checked := x.first.checked
		x.first = nil
		if checked {
			return true, nil
		}
	}
	x.attempts++
	x.retryAfter = 0
	failure := x.take(resp, err)
	if failure != nil && resp == nil && ctx.Err() != nil {
		// The attempt failed because the context ended. The failure before it is
		// the one worth reporting and is kept; result adds the context's error.
		return false, nil
	}
	x.failure = failure
	x.note(failure)
	if failure == nil {
		return false, nil
	}
	failure.Attempts = x.attempts
	if ctx.Err() != nil {
		return false, nil
	}
	failure.consumed = x.lost || x.req.oneShot.used() && Retryable(failure)
	retry, reason := decideRetry(x.failure)
	x.c.cfg.Logger.DebugContext(ctx, "gateway: request failed",
		"operation", x.req.op, "attempt", x.attempts, "status", x.failure.StatusCode, "retryable", retry, "reason", reason)
	return retry, nil
}

// note records what an attempt reveals about who answers the operation. The
// token source does that for the token endpoint, and payload hosts are not part of
// the service.
func (x *exchange) note(failure *Error) {
	now := time.Now()
	if !x.req.streaming {
		x.c.answers.called(failure, now)
	}
	switch {
	case x.req.op == opPayload:
	case failure == nil:
		x.c.answers.take(x.req.op, nil, now)
	case !errors.Is(failure, ErrToken):
		x.c.answers.take(x.req.op, failure, now)
	}
}

// take reads and closes a response, unless it is to be streamed.
func (x *exchange) take(resp *http.Response, err error) *Error {
	if p := x.callerErr.Swap(nil); p != nil {
		if resp != nil {
			_ = resp.Body.Close()
		}
		return &Error{Op: x.req.op, Err: *p}
	}
	if err != nil {
		e := &Error{Op: x.req.op, Err: transportCause(err)}
		if resp != nil { // a refused redirect
			_ = resp.Body.Close()
			e.StatusCode = resp.StatusCode
		}
		return e
	}
	x.status, x.header, x.media = resp.StatusCode, resp.Header, mediaType(resp.Header)
	good := resp.StatusCode >= 200 && resp.StatusCode <= 299
	if good && isWebPage(x.media) && x.req.op != opPayload {
		_ = resp.Body.Close()
		return x.webPage()
	}
	if stream, ok := resp.Body.(*attemptBody); ok && good && x.req.streaming {
		return x.takeStream(resp, stream)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case !good:
		x.retryAfter = x.c.cfg.Retry.retryAfter(resp.Header, time.Now())
		return x.statusError(resp)
	case x.req.op == opConfirm && x.status == http.StatusMultiStatus:
		return &Error{Op: x.req.op, StatusCode: x.status, Err: &ResponseError{Reason: "it does not accept all confirmations"}}
	case x.req.ignoreBody:
		return x.takeStatus(resp)
	}
	return x.takeBody(resp)
}

// takeStream leaves the body of a response to the caller, or closes it if it is not what was asked for.
func (x *exchange) takeStream(resp *http.Response, stream *attemptBody) *Error {
	err := checkEncoding(resp.Header)
	if err == nil {
		err = x.req.accept(resp)
	}
	if err != nil {
		_ = resp.Body.Close()
		return &Error{Op: x.req.op, StatusCode: resp.StatusCode, ContentType: withoutEcho(x.media, strings.ToLower(x.token)), Err: err}
	}
	x.stream = stream
	return nil
}

// takeStatus takes a response of which only the status counts, unless an intermediary sent it; whatever
// the body does cannot change that.
func (x *exchange) takeStatus(resp *http.Response) *Error {
	if body, ok := resp.Body.(*attemptBody); ok && body.body == http.NoBody {
		return nil
	}
	head, _ := io.ReadAll(io.LimitReader(resp.Body, sniffed))
	_, _ = io.CopyN(io.Discard, resp.Body, maxIgnoredBody)
	if sniffWebPage(x.media, head) {
		return x.webPage()
	}
	return nil
}

// takeBody reads the body of a response, within MaxResponseSize.
func (x *exchange) takeBody(resp *http.Response) *Error {
	if err := checkEncoding(resp.Header); err != nil {
		return &Error{Op: x.req.op, StatusCode: resp.StatusCode, Err: err}
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
	if sniffWebPage(x.media, body) {
		return x.webPage()
	}
	x.body = body
	return nil
}

func (x *exchange) webPage() *Error {
	return &Error{Op: x.req.op, StatusCode: x.status, ContentType: cmp.Or(x.media, "text/html"), Err: errWebPage()}
}

// statusError reads an error response, up to a limit.
func (x *exchange) statusError(resp *http.Response) *Error {
	e := &Error{Op: x.req.op, StatusCode: resp.StatusCode, ContentType: withoutEcho(x.media, strings.ToLower(x.token))}
	if x.req.op == opPayload && isExpired(resp.StatusCode) {
		e.Err = ErrPayloadExpired
	}
	if x.req.streaming {
		// The timeout applied to the head; the rest may hang.
		defer time.AfterFunc(maxErrorBodyTime, func() { _ = resp.Body.Close() }).Stop()
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || x.req.op == opPayload {
		// The status is sufficient without its text, and the text of a payload
		// host may quote the URL that grants access.
		return e
	}
	e.Message, e.ErrorResponse = errorMessage(body, x.token)
	if resp.StatusCode == http.StatusForbidden && e.ErrorResponse && x.req.op != opEvents {
		e.unproven = !x.c.answers.proven(x.req.op, x.sentAt, time.Now())
	}
	if x.req.op == opSend && resp.StatusCode == http.StatusBadRequest {
		e.routing = routingFailureOf(e.Message)
	}
	return e
}

// errorMessage extracts the message of an ErrorResponse, truncated and without credentials. ok reports
// whether the body is one; a web page, for example, is not.
func errorMessage(body []byte, token string) (message string, ok bool) {
	var r struct {
		Message *string `json:"message"`
	}
	if json.Unmarshal(body, &r) != nil || r.Message == nil {
		return "", false
	}
	m := withoutEcho(*r.Message, token)
	if len(m) > maxErrorMessage {
		m = m[:maxErrorMessage]
		for len(m) > 0 && !utf8.ValidString(m[max(0, len(m)-utf8.UTFMax):]) {
			m = m[:len(m)-1]
		}
		m += "…"
	}
	return m, true
}

func (x *exchange) backoff(_, _ time.Duration, attempt int, _ *http.Response) time.Duration {
	return x.c.cfg.Retry.backoff(attempt, x.retryAfter)
}

// checkRedirect allows redirects that stay at the service and keep the
// method: a POST that becomes a GET is answered 200 and delivers nothing.
func (x *exchange) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 5 || req.Method != via[0].Method || !sameOrigin(req.URL, x.c.origin) {
		return ErrRedirect
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	if a.Scheme == b.Scheme && a.Host == b.Host {
		return true // as nearly always, and without taking the hosts apart
	}
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

// RoundTrip makes one attempt, or returns the outcome of the one that begin has made.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	if f := x.first; f != nil && (f.resp != nil || f.err != nil) {
		closeRequestBody(req)
		resp, err := f.resp, f.err
		f.resp, f.err = nil, nil // what follows a redirect is another request
		return resp, err
	}
	return x.next(x, req)
}

// callContext returns the context of the call that req is an attempt of.
func (x *exchange) callContext(req *http.Request) context.Context {
	if x.own != nil {
		return x.own.call
	}
	return req.Context()
}

// authorized makes one attempt at the service with the token, and another one
// with a fresh token if the first is refused.
func (x *exchange) authorized(req *http.Request) (*http.Response, error) {
	resp, token, err := x.attempt(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || x.refreshed {
		return x.refusedAgain(resp, token, err)
	}
	x.refreshed = true
	retry, dropped := x.c.tokens.invalidate(token)
	if !retry {
		return resp, nil
	}
	again := req.Clone(x.callContext(req))
	x.own = nil
	if req.Body != nil && req.Body != http.NoBody {
		if x.req.oneShot.used() {
			x.lost = true
			return resp, nil
		}
		if again.Body, err = x.reopen(req); err != nil {
			return nil, err
		}
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxIgnoredBody)
	_ = resp.Body.Close()
	resp, token, err = x.attempt(again)
	if dropped && err == nil {
		x.c.tokens.replaced(resp.StatusCode != http.StatusUnauthorized)
	}
	return x.refusedAgain(resp, token, err)
}

// reopen returns the body of req once more.
func (x *exchange) reopen(req *http.Request) (io.ReadCloser, error) {
	if _, ok := req.Body.(*sendBody); ok {
		return x.newBody(), nil
	}
	return req.GetBody()
}

// refusedAgain turns a 401 for a token that was refused before into an outage: it
// says nothing about any other token.
func (x *exchange) refusedAgain(resp *http.Response, token string, err error) (*http.Response, error) {
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !x.c.tokens.again(token) {
		return resp, err
	}
	_ = resp.Body.Close()
	x.c.tokens.invalidate(token)
	return nil, errSameToken()
}

// edit calls the caller's editor and verifies that the request is still the
// same.
func (x *exchange) edit(req *http.Request) error {
	if x.c.cfg.EditRequest == nil {
		return nil
	}
	before, address := *req, *req.URL
	err := x.c.cfg.EditRequest(req)
	if err == nil && (req.URL == nil || *req.URL != address || req.Host != before.Host || req.Method != before.Method ||
		req.Body != before.Body || req.ContentLength != before.ContentLength || req.Header == nil) {
		req.Body = before.Body
		err = invalid("EditRequest", "must not change URL, host, method or body")
	}
	if err != nil {
		x.callerErr.Store(&err)
	}
	return err
}

// attempt sends one request and returns the token it used.
func (x *exchange) attempt(req *http.Request) (_ *http.Response, used string, err error) {
	fail := func(err error) (*http.Response, string, error) {
		closeRequestBody(req)
		return nil, "", err
	}
	if !sameOrigin(req.URL, x.c.origin) { // already ensured by checkRedirect; double-checked because of the token
		return fail(ErrRedirect)
	}
	out := req
	if x.own == nil {
		out = req.Clone(req.Context())
	}
	if err := x.edit(out); err != nil {
		return fail(err)
	}
	started, err := x.c.limiter.wait(req.Context())
	if err != nil {
		return fail(err)
	}
	token, err := x.c.tokens.get(req.Context())
	if err != nil {
		return fail(err)
	}
	// A process may have been stopped while it waited, and the context know that its time is over before
	// Done says so.
	if err := x.callContext(req).Err(); err != nil {
		return fail(err)
	}
	next := x.c.callTransport
	if x.req.streaming {
		next = x.c.streamTransport
	}
	x.token = token.value
	if x.own != nil {
		x.own.token[0] = token.header
		out.Header["Authorization"] = x.own.token[:]
	} else {
		out.Header["Authorization"] = []string{token.header}
	}
	x.sentAt = time.Now()
	resp, err := x.send(next, out)
	if err != nil {
		return nil, token.value, err
	}
	tenant := x.c.tenantOf(req)
	if resp.StatusCode == http.StatusTooManyRequests {
		x.c.limiter.reject(started, tenant, x.c.cfg.Retry.retryAfter(resp.Header, time.Now()))
	} else {
		x.c.limiter.accept(started, tenant)
	}
	return resp, token.value, nil
}

// send performs a request with the timeout of one attempt. The timeout applies
// until the response body is closed, or only up to the head if it is streamed.
func (x *exchange) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	call, ctx := x.callContext(req), req.Context()
	var (
		cancel context.CancelCauseFunc
		made   *attemptEnd
	)
	if x.own != nil {
		cancel, made = x.own.cancel, &x.own.attemptEnd
	} else {
		ctx, cancel = context.WithCancelCause(call)
		made = &attemptEnd{}
	}
	limit := &made.limit
	limit.abort = cancel
	limit.set(x.req.timeout, errAttemptTimeout)
	if x.req.sent != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
			// The response may have arrived before this callback.
			if info.Err == nil && limit.set(x.req.headIdle, ErrIdle) {
				x.req.sent()
			}
		}})
	}
	if body, ok := req.Body.(*sendBody); ok && x.req.open != nil {
		// Package http waits for a Read of the body that hangs, regardless of the
		// context.
		context.AfterFunc(ctx, func() { _ = body.Close() })
	}
	out := req
	if ctx != req.Context() {
		out = req.WithContext(ctx)
	}
	var bodies *attemptBodies
	if body, ok := req.Body.(*sendBody); ok && req.GetBody != nil {
		bodies = &attemptBodies{open: req.GetBody}
		bodies.add(body)
		out.GetBody = bodies.get
	}
	resp, err := next.RoundTrip(out)
	bodies.close(err != nil)
	if err == nil && resp.Request != nil && resp.Request.Response != req.Response {
		// A RoundTripper that follows redirects cannot be trusted: it is unknown
		// where it has been and what it has sent there.
		_ = resp.Body.Close()
		err = ErrRedirect
	}
	if err == nil && x.req.streaming {
		if cause := limit.stop(); cause != nil {
			_ = resp.Body.Close()
			err = cause
		}
	}
	if err != nil {
		if cause := limit.stop(); cause != nil && call.Err() == nil {
			err = limitError(cause)
		}
		cancel(nil)
		return nil, err
	}
	made.body = attemptBody{body: resp.Body, ctx: ctx, abort: cancel, limit: limit}
	resp.Body = &made.body
	return resp, nil
}

// attemptBodies are the request bodies of one attempt. The HTTP/2 transport opens another
// one when the connection that it chose turns out to be dead, and forgets to close the
// previous one; waiting until all bodies are closed would then block forever.
type attemptBodies struct {
	open func() (io.ReadCloser, error)

	mu    sync.Mutex
	list  []io.Closer
	first [1]io.Closer // of list, which seldom has more
}

func (b *attemptBodies) add(body io.Closer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.list == nil {
		b.list = b.first[:0]
	}
	b.list = append(b.list, body)
}

// get is Request.GetBody.
func (b *attemptBodies) get() (io.ReadCloser, error) {
	body, err := b.open()
	if err == nil {
		b.add(body)
	}
	return body, err
}

// close closes the bodies that are no longer needed after the attempt: all of them if it
// failed, otherwise all but the last, which the transport may still be reading after an
// early response.
func (b *attemptBodies) close(all bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	list := b.list
	b.mu.Unlock()
	if !all && len(list) > 0 {
		list = list[:len(list)-1]
	}
	for _, body := range list {
		_ = body.Close() // the attempt is over
	}
}

// attemptBody is the body of a response. Closing it ends its attempt. It reports
// why the attempt was ended, unless that was the caller's context.
type attemptBody struct {
	body  io.ReadCloser
	ctx   context.Context
	abort context.CancelCauseFunc
	limit *attemptLimit
}

// Read returns the cause for which the attempt was aborted, if any. It does so even
// instead of io.EOF, because a service that notices the end first may terminate its
// response as if it were complete.
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

// idleReader ends the attempt when a single Read waits longer than timeout. The time
// between reads does not count: a slow consumer does not make the stream
// idle.
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

// Read aborts the attempt if the source is silent for too long.
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

// requestTimeout returns the timeout for one attempt with a body of size bytes.
func (c *Client) requestTimeout(size int64) time.Duration {
	if c.cfg.RequestTimeout == NoTimeout {
		return 0
	}
	return c.cfg.RequestTimeout + time.Duration(float64(size)/float64(c.cfg.MinTransferRate)*float64(time.Second))
}

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

func (x *exchange) newBody() *sendBody {
	x.bodies.Add(1)
	return &sendBody{x: x, left: x.req.size}
}

// Len is where go-retryablehttp gets the Content-Length from.
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
	// After Close the attempt is over, and the error is only a consequence of that.
	if !b.closed {
		b.x.callerErr.Store(&err)
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
