package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

// UnlimitedAttempts lets a call retry until its context ends.
const UnlimitedAttempts = -1

// NoRetryAfter makes the client ignore Retry-After.
const NoRetryAfter time.Duration = -1

// RetryConfig is the retry policy. What is retried is fixed (see [Retryable]);
// how often and how fast is set here.
type RetryConfig struct {
	// MaxAttempts is the number of requests of one call, the first included.
	// Default 5; 1 means no retry; [UnlimitedAttempts] leaves it to the context.
	// The one repetition after a 401 is not counted.
	MaxAttempts int
	// MinBackoff is the first wait; it doubles with every attempt up to
	// MaxBackoff, and each wait is drawn from its upper half. Defaults 500 ms, 30 s.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// MaxRetryAfter caps a Retry-After that the other side sends. Default
	// 5 minutes; [NoRetryAfter] ignores the header.
	MaxRetryAfter time.Duration
}

func (c *RetryConfig) setDefaults() {
	def(&c.MaxAttempts, 5)
	def(&c.MinBackoff, 500*time.Millisecond)
	def(&c.MaxBackoff, 30*time.Second)
	def(&c.MaxRetryAfter, 5*time.Minute)
}

func (c RetryConfig) validate() error {
	switch {
	case c.MaxAttempts < 1 && c.MaxAttempts != UnlimitedAttempts:
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "Retry.MaxAttempts", Rule: "must be positive or UnlimitedAttempts"})
	case c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "Retry.MaxBackoff", Rule: "must not be less than MinBackoff, and that must be positive"})
	case c.MaxRetryAfter < 0 && c.MaxRetryAfter != NoRetryAfter:
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "Retry.MaxRetryAfter", Rule: "must not be negative; -1 is off"})
	}
	return nil
}

// backoff is the wait after failed attempt n, counted from 0: exponential,
// drawn from the upper half so that clients spread, and never shorter than what
// the other side asked for.
func (c RetryConfig) backoff(n int, asked time.Duration) time.Duration {
	return max(backoff.Policy{Min: c.MinBackoff, Max: c.MaxBackoff}.Delay(n), asked)
}

// retries is MaxAttempts in terms of go-retryablehttp.
func (c RetryConfig) retries() int {
	if c.MaxAttempts == UnlimitedAttempts {
		return math.MaxInt
	}
	return c.MaxAttempts - 1
}

// Retryable reports whether the failure that err tells of may go away by
// itself, so that the same request is worth repeating. It is the one decision
// that every retry of this package follows. A nil error is not retryable.
func Retryable(err error) bool {
	retry, _ := decideRetry(err)
	return retry
}

// decideRetry decides and says why.
func decideRetry(err error) (retry bool, reason string) {
	var e *Error
	switch {
	case err == nil:
		return false, "nothing failed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false, "the caller's context has ended"
	case errors.Is(err, ErrClosed):
		return false, "the client has been closed"
	case errors.Is(err, ErrInvalid):
		return false, "the request breaks a rule; it breaks it again"
	case errors.Is(err, ErrPartialDelivery):
		return false, "the reachable recipients have the message already"
	case errors.Is(err, ErrPayloadExpired):
		return false, "an expired URI stays expired"
	case errors.Is(err, ErrPayloadTruncated), errors.Is(err, ErrPayloadSize):
		return true, "the next download may be whole"
	case errors.Is(err, ErrIdle):
		return true, "a new connection may be alive"
	case errors.Is(err, ErrRedirect):
		return false, "a refused redirect is refused again"
	case errors.Is(err, ErrCertificate):
		return false, "a certificate does not change within seconds"
	case errors.Is(err, ErrToken):
		if errors.Is(err, ErrUnauthorized) {
			return false, "the token endpoint refused the credentials"
		}
		return true, "the token endpoint is down or answers nonsense"
	case errors.As(err, &e) && e.StatusCode != 0:
		return decideStatus(e.StatusCode)
	case errors.Is(err, ErrBadResponse):
		return false, "the service answered, but not as specified"
	case errors.Is(err, ErrUnavailable):
		return true, "the connection failed"
	}
	return false, "an unknown failure is not repeated blindly"
}

func decideStatus(status int) (retry bool, reason string) {
	switch status {
	case http.StatusTooManyRequests:
		return true, "the rate limit passes"
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return true, "the service asks to try again"
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false, "the service does not know such requests"
	case http.StatusUnauthorized:
		return false, "a fresh token was refused as well"
	}
	switch {
	case status >= 500:
		return true, "internal and upstream errors pass"
	case status >= 400:
		return false, "the service refused the request as it is"
	}
	return false, "the service answered, but not as specified"
}

// retryAfter reads Retry-After, in seconds or as an HTTP date, capped. Zero
// means that there is none worth following.
func (c RetryConfig) retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" || c.MaxRetryAfter == NoRetryAfter {
		return 0
	}
	var d time.Duration
	if s, err := strconv.ParseUint(v, 10, 63); err == nil {
		// Compared as seconds: a huge number must not overflow a Duration.
		if s > uint64(c.MaxRetryAfter/time.Second) {
			return c.MaxRetryAfter
		}
		d = time.Duration(s) * time.Second
	} else if strings.Trim(v, "0123456789") == "" {
		return c.MaxRetryAfter
	} else if t, err := http.ParseTime(v); err == nil {
		d = t.Sub(now)
	}
	return min(max(d, 0), c.MaxRetryAfter)
}
