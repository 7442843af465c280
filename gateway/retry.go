package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
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
	case c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff:
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "Retry.MaxBackoff", Rule: "must not be less than MinBackoff, nor either negative"})
	case c.MaxRetryAfter < 0 && c.MaxRetryAfter != NoRetryAfter:
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "Retry.MaxRetryAfter", Rule: "must not be negative; -1 is off"})
	}
	return nil
}

// backoff is the wait after failed attempt n, counted from 0: exponential,
// drawn from the upper half so that clients spread, and never shorter than what
// the other side asked for.
func (c RetryConfig) backoff(n int, asked time.Duration) time.Duration {
	d := c.MaxBackoff
	if n < 32 && c.MinBackoff<<n > 0 && c.MinBackoff<<n < c.MaxBackoff {
		d = c.MinBackoff << n
	}
	d -= rand.N(d/2 + 1)
	return max(d, asked)
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
