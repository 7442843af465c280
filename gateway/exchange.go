package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/agrimill/agrimill/internal/backoff"
)

// request describes one call of an operation.
type request struct {
	op     string
	method string
	url    string
	// like is instead of method and url: a request without header and body, of which each attempt sends a copy.
	like   *http.Request
	header http.Header
	// open opens the body and size is its exact size; nil without a body, and with content.
	open func() (io.ReadCloser, error)
	size int64
	// content is the body if it is in memory, and shared whether it belongs to the caller.
	content []byte
	shared  bool
	// ignoreBody means that only the response's status matters.
	ignoreBody bool
	// streaming leaves the body of a successful response to the caller; timeout then bounds only its head.
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

func (r *request) hasBody() bool { return (r.open != nil || r.content != nil) && r.size > 0 }

// inMemory reports whether the body is a copy in memory, which package http writes together with the head.
func (r *request) inMemory() bool { return len(r.content) > 0 && !r.shared }

// exchange is the lifetime of one call: all its attempts. Each is made by [exchange.try].
// go-retryablehttp decides when those that follow the first are due, and whether there are any left.
type exchange struct {
	c   *Client
	req request

	requests  int    // that have been made, also for redirects and after a 401
	refreshed bool   // the single retry after a 401 has been made
	token     string // of the latest attempt, which an answer may echo
	bodies    sync.WaitGroup
	callerErr atomic.Pointer[error] // an error of the caller's body

	attempts   int
	sentAt     time.Time // start of the latest attempt
	status     int
	header     http.Header
	media      string // media type of the response
	body       []byte
	stream     *attemptBody
	retryAfter time.Duration
	done       bool // the latest attempt succeeded
	again      bool // the latest attempt failed in a way that may resolve itself
	failure    *Error
}

// call makes a call and returns when it has a 2xx response or an error. The error is an [*Error].
func (c *Client) call(ctx context.Context, req request) (*exchange, error) {
	if err := c.invalidCall(ctx, req.op, nil); err != nil {
		return nil, err
	}
	if req.like == nil {
		var err error
		if req.like, err = http.NewRequestWithContext(ctx, req.method, req.url, http.NoBody); err != nil {
			return nil, &Error{Op: req.op, Err: invalid("URL", "is malformed")}
		}
	}
	req.header["User-Agent"] = c.common[0:1:1]
	req.header["Accept-Encoding"] = c.common[1:2:2]
	x := &exchange{c: c, req: req}
	x.try(ctx)
	if retries := x.retries(ctx); x.again && retries > 0 {
		x.retry(ctx, retries)
	}
	if req.shared {
		// After an early response the transport may still be reading the caller's bytes.
		x.bodies.Wait()
	}
	return x.result(ctx)
}

// retries is how many attempts may follow the first.
func (x *exchange) retries(ctx context.Context) int {
	if x.req.once || singleAttempt(ctx) {
		return 0
	}
	return x.c.cfg.Retry.retries()
}

// retry has go-retryablehttp make more attempts, after the wait that the first one wants. Most calls
// need none, and then not the copies of request and header that it and http.Client make.
func (x *exchange) retry(ctx context.Context, retries int) {
	slot := backoff.SlotOf(ctx)
	rc := &retryablehttp.Client{
		HTTPClient: &http.Client{Transport: &retryTransport{x: x, slot: slot}},
		Logger:     nil, // it would print URLs with their queries
		RetryMax:   retries,
		CheckRetry: func(context.Context, *http.Response, error) (bool, error) { return x.again, nil },
		Backoff: func(_, _ time.Duration, attempt int, _ *http.Response) time.Duration {
			slot.Free()
			return x.c.cfg.Retry.backoff(attempt, x.retryAfter)
		},
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	resp, err := rc.Do(&retryablehttp.Request{Request: x.req.like.WithContext(ctx)})
	if err == nil {
		_ = resp.Body.Close() // that of retryTransport
	}
}

// retryTransport makes an attempt for each request of go-retryablehttp but the first, which stands for
// the attempt that has been made. What comes of an attempt is in the exchange.
type retryTransport struct {
	x       *exchange
	slot    backoff.Slot
	started bool
}

// errAttempt stands for the failure of an attempt.
var errAttempt = errors.New("the attempt failed")

// RoundTrip makes an attempt.
func (t *retryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.started {
		if err := t.slot.Take(req.Context()); err != nil {
			t.x.again = false
			return nil, err
		}
		t.x.try(req.Context())
	}
	t.started = true
	if !t.x.done {
		return nil, errAttempt
	}
	return &http.Response{Body: http.NoBody}, nil
}

// try makes an attempt, takes what comes of it, and decides whether another one is worthwhile.
func (x *exchange) try(ctx context.Context) {
	before := x.sentAt
	resp, err := x.follow(ctx)
	if !x.sentAt.Equal(before) || x.attempts > 0 && ctx.Err() == nil { // else nothing was sent yet, or it has only waited
		x.attempts++
	}
	x.retryAfter, x.again = 0, false
	failure := x.take(resp, err)
	if failure != nil && resp == nil && ctx.Err() != nil {
		// The failure before this one is worth reporting and is kept; result adds the context's error.
		return
	}
	x.done, x.failure = failure == nil, failure
	x.c.answers.attempted(x.req.op, x.req.streaming, failure, time.Now())
	if failure == nil {
		return
	}
	failure.Attempts = x.attempts
	if ctx.Err() != nil {
		return
	}
	retry, reason := decideRetry(failure)
	x.again = retry
	x.c.cfg.Logger.DebugContext(ctx, "gateway: request failed",
		"operation", x.req.op, "attempt", x.attempts, "status", failure.StatusCode, "retryable", retry, "reason", reason)
}

func (x *exchange) result(ctx context.Context) (*exchange, error) {
	switch {
	case x.done:
		return x, nil
	case ctx.Err() == nil:
		return nil, x.failure
	}
	// The context ended during an attempt or between two.
	e := &Error{Op: x.req.op, Attempts: x.attempts, Err: ctx.Err()}
	if x.failure != nil {
		last := *x.failure
		last.Attempts = 0
		e.last, e.RetryAfter = &last, last.RetryAfter
	}
	return nil, e
}

// requestTimeout returns the timeout for one attempt with a body of size bytes.
func (c *Client) requestTimeout(size int64) time.Duration {
	if c.cfg.RequestTimeout == Off {
		return 0
	}
	return c.cfg.RequestTimeout + time.Duration(float64(size)/float64(c.cfg.MinTransferRate)*float64(time.Second))
}
