package gateway

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
)

// UnlimitedAttempts lets a call retry until its context ends.
const UnlimitedAttempts = -1

// RetryConfig is the retry policy. What is retried is fixed (see [Retryable]); how often and how fast is configured here.
type RetryConfig struct {
	// MaxAttempts is how many attempts there are at most, including the first; 1 means no retry. Default 5;
	// [UnlimitedAttempts] retries until the context ends. The single retry after a 401 is not counted.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the first wait; it doubles with every attempt up to MaxBackoff. Each
	// wait is chosen at random from its upper half. Default 500 ms.
	InitialBackoff time.Duration `yaml:"initial_backoff"`
	// MaxBackoff is the longest wait. Default 30 s.
	MaxBackoff time.Duration `yaml:"max_backoff"`
	// MaxRetryAfter caps a Retry-After sent by the peer. Default
	// 5 minutes; [Off] ignores the header.
	MaxRetryAfter time.Duration `yaml:"-"`
}

// WithDefaults returns the configuration with the defaults filled in.
func (c RetryConfig) WithDefaults() RetryConfig {
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.InitialBackoff = cmp.Or(c.InitialBackoff, 500*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, 5*time.Minute)
	return c
}

func (c RetryConfig) validate() error {
	var e validate.Errors
	e.Check(c.MaxAttempts >= 1 || c.MaxAttempts == UnlimitedAttempts, "MaxAttempts", "must be positive, or -1 for no limit")
	e.Check(c.InitialBackoff > 0, "InitialBackoff", "must be positive")
	e.Check(c.MaxBackoff >= c.InitialBackoff, "MaxBackoff", "must not be less than %s", validate.Field("InitialBackoff"))
	e.Check(c.MaxRetryAfter >= 0 || c.MaxRetryAfter == Off, "MaxRetryAfter", "must not be negative, except -1 to disable it")
	return e.Err(ErrConfig)
}

// backoff returns the wait after failed attempt n, counted from 0, never shorter than what the peer requested.
func (c RetryConfig) backoff(n int, asked time.Duration) time.Duration {
	return max(backoff.Policy{Initial: c.InitialBackoff, Max: c.MaxBackoff}.Delay(n), asked)
}

// retries converts MaxAttempts for go-retryablehttp.
func (c RetryConfig) retries() int {
	if c.MaxAttempts == UnlimitedAttempts {
		return math.MaxInt
	}
	return c.MaxAttempts - 1
}

// Retryable reports whether err is a failure that may resolve itself, so that repeating the same request is
// worthwhile. It is the single decision that every retry of this package follows. Nil is not retryable.
func Retryable(err error) bool {
	retry, _ := decideRetry(err)
	return retry
}

// decideRetry decides and returns the reason.
func decideRetry(err error) (retry bool, reason string) {
	e, _ := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return false, "nothing failed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false, "the caller's context ended"
	case errors.Is(err, ErrClosed):
		return false, "the client is closed"
	case errors.Is(err, ErrInvalid):
		return false, "the request is invalid"
	case errors.Is(err, ErrPartialDelivery):
		return false, "the reachable recipients already have the message"
	case errors.Is(err, ErrPayloadExpired):
		return false, "an expired URI stays expired"
	case errors.Is(err, ErrPayloadTruncated), errors.Is(err, ErrPayloadSize):
		return true, "the next download may be complete"
	case errors.Is(err, ErrIdle):
		return true, "a new connection may work"
	case errors.Is(err, ErrRedirect):
		return false, "the redirect would be refused again"
	case errors.Is(err, ErrCertificate):
		return false, "a certificate does not change within seconds"
	case errors.Is(err, ErrToken):
		if errors.Is(err, ErrUnauthorized) {
			return false, "the token endpoint refused the credentials"
		}
		return true, "the token endpoint is down or its answer is invalid"
	case errors.Is(err, ErrIntermediary):
		return true, "an intermediary answered instead of the service"
	case e != nil && e.StatusCode != 0:
		return decideStatus(e.StatusCode)
	case errors.Is(err, ErrBadResponse):
		return false, "the response violates the specification"
	case errors.Is(err, ErrUnavailable):
		return true, "the connection failed"
	}
	return false, "unknown failures are not retried"
}

func decideStatus(status int) (retry bool, reason string) {
	switch status {
	case http.StatusTooManyRequests:
		return true, "the rate limit is temporary"
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return true, "the service asks for a retry"
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false, "the service does not support such requests"
	case http.StatusUnauthorized:
		return false, "a fresh token was refused as well"
	}
	switch {
	case status >= 500:
		return true, "internal and upstream errors are temporary"
	case status >= 400:
		return false, "the service refused the request itself"
	}
	return false, "the response violates the specification"
}

// retryAfter parses Retry-After, in seconds or as an HTTP date, and caps it. Zero
// means that there is none, or that it is to be ignored. A date is by the clock of the
// peer, whose Date tells what that shows now.
func (c RetryConfig) retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" || c.MaxRetryAfter == Off {
		return 0
	}
	var d time.Duration
	if s, err := strconv.ParseUint(v, 10, 63); err == nil {
		// Compare in seconds: a huge number must not overflow a Duration.
		if s > uint64(c.MaxRetryAfter/time.Second) {
			return c.MaxRetryAfter
		}
		d = time.Duration(s) * time.Second
	} else if strings.Trim(v, "0123456789") == "" {
		return c.MaxRetryAfter
	} else if t, err := http.ParseTime(v); err == nil {
		if date, err := http.ParseTime(h.Get("Date")); err == nil {
			now = date
		}
		d = t.Sub(now)
	}
	return min(max(d, 0), c.MaxRetryAfter)
}

type singleAttemptKey struct{}

// SingleAttempt returns a context with which a call makes one attempt, whatever [Config.Retry] says. The repetition after a
// 401 with a fresh token, and the wait for the rate limit, are part of the attempt.
func SingleAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, singleAttemptKey{}, true)
}

func singleAttempt(ctx context.Context) bool { return ctx.Value(singleAttemptKey{}) != nil }

// Refused reports whether err is a permanent refusal: the request violates a rule of the specification, or the service
// itself has rejected it (400, 403, 404, 413). The same request would always get the same answer, while others may succeed.
//
// Errors that do not concern the request are not refusals, whatever their status: [ErrUnavailable] and everything that
// matches it, such as a 403 while the operation succeeds for no request; [ErrToken], [ErrUnauthorized] and
// [ErrRateLimited]; and [ErrPayloadExpired]. An error may be neither refused nor [Retryable]: what is not retried within a
// call may succeed later.
func Refused(err error) bool {
	return matchesAny(err, ErrInvalid, ErrBadRequest, ErrForbidden, ErrNotFound, ErrTooLarge, ErrNoRecipients, ErrPartialDelivery) &&
		!matchesAny(err, ErrUnavailable, ErrIntermediary, ErrToken, ErrUnauthorized, ErrRateLimited, ErrPayloadExpired)
}

func matchesAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
