package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

// RateLimitConfig tunes the limiter that the whole client shares. There is no
// limit until the service answers 429. Then every request of the client pauses
// once, and afterwards they are spaced: at half the rate that was too much,
// growing by Growth per second. When the rate has grown to RecoverFactor times
// the one that was too much, the limit is lifted.
type RateLimitConfig struct {
	// MinRate is the lowest rate in requests per second. Default 1.
	MinRate float64
	// Growth is the growth of the rate per second without a 429. Default 0.05,
	// that is 5 %.
	Growth float64
	// RecoverFactor is explained above. Default 4; it must be at least 1.
	RecoverFactor float64
	// Pause is the pause of the whole client after a 429, jittered, doubling
	// with each 429 in a row, up to 32 times. A Retry-After takes precedence
	// when it is longer. Default 1 s.
	Pause time.Duration
}

func (c *RateLimitConfig) setDefaults() {
	def(&c.MinRate, 1)
	def(&c.Growth, 0.05)
	def(&c.RecoverFactor, 4)
	def(&c.Pause, time.Second)
}

func (c RateLimitConfig) validate() error {
	bad := func(field, rule string) error {
		return fmt.Errorf("gateway: config: %w", &ValidationError{Field: "RateLimit." + field, Rule: rule})
	}
	switch {
	case !(c.MinRate > 0): // also refuses NaN
		return bad("MinRate", "must be positive")
	case !(c.Growth > 0):
		return bad("Growth", "must be positive")
	case !(c.RecoverFactor >= 1):
		return bad("RecoverFactor", "must be at least 1")
	case c.Pause < 0:
		return bad("Pause", "must not be negative")
	}
	return nil
}

// RateLimitState is a snapshot of the limiter, see [Client.RateLimit].
type RateLimitState struct {
	// Limited is true from the first 429 until the limit has been lifted.
	Limited bool
	// Rate is the current limit in requests per second, 0 when not Limited.
	Rate float64
	// PausedUntil is the end of the current pause, zero when there is none.
	PausedUntil time.Time
	// Rejected counts the answers of status 429 since the client was made.
	Rejected int64
	// LastRejected is the time of the last one, zero when there was none.
	LastRejected time.Time
}

// limiter is the adaptive limit of one client. All times come from time.Now.
type limiter struct {
	cfg RateLimitConfig

	mu       sync.Mutex
	rate     float64   // 0: no limit
	ceiling  float64   // the rate that was too much
	grownAt  time.Time // when rate was last brought up to date
	pauseEnd time.Time
	next     time.Time // when the next request may start
	inARow   int
	rejected int64
	lastAt   time.Time

	// The observed rate: requests in the current and in the last full second.
	second        time.Time
	count, before int
}

// wait blocks until the next request may start, or until ctx ends. It returns
// the time at which the request counts as started.
func (l *limiter) wait(ctx context.Context) (time.Time, error) {
	for {
		l.mu.Lock()
		now := time.Now()
		l.grow(now)
		at := now
		if l.pauseEnd.After(at) {
			at = l.pauseEnd
		}
		if l.rate > 0 && l.next.After(at) {
			at = l.next
		}
		if !at.After(now) {
			if l.rate > 0 {
				l.next = now.Add(time.Duration(float64(time.Second) / l.rate))
			}
			l.observe(now)
			l.mu.Unlock()
			return now, ctx.Err()
		}
		// Nothing is reserved while waiting: a pause or a new rate that comes
		// in the meantime holds for those who wait as well, and who gives up
		// leaves no gap.
		l.mu.Unlock()
		if err := backoff.Sleep(ctx, at.Sub(now)); err != nil {
			return time.Time{}, err
		}
	}
}

func (l *limiter) observe(now time.Time) {
	switch d := now.Sub(l.second); {
	case d >= 2*time.Second || l.second.IsZero():
		l.second, l.before, l.count = now, 0, 0
	case d >= time.Second:
		l.second, l.before, l.count = l.second.Add(time.Second), l.count, 0
	}
	l.count++
}

// grow brings the rate up to date.
func (l *limiter) grow(now time.Time) {
	if l.rate == 0 || now.Before(l.pauseEnd) {
		l.grownAt = now
		return
	}
	l.rate += l.rate * l.cfg.Growth * now.Sub(l.grownAt).Seconds()
	l.grownAt = now
	if l.rate >= l.ceiling*l.cfg.RecoverFactor {
		l.rate, l.inARow = 0, 0
		l.next = time.Time{}
	}
}

// reject takes note of a 429 for a request that started at started. Requests
// that were under way when the rate was cut tell nothing new.
func (l *limiter) reject(started time.Time, retryAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	stale := started.Before(l.lastCut())
	l.rejected++
	l.lastAt = now
	if end := now.Add(retryAfter); retryAfter > 0 && end.After(l.pauseEnd) {
		l.pauseEnd = end
	}
	if stale {
		return
	}
	l.grow(now)
	was := l.rate
	if was == 0 {
		was = float64(max(l.count, l.before))
	}
	l.ceiling = max(was, l.cfg.MinRate)
	l.rate = max(was/2, l.cfg.MinRate)
	l.grownAt = now
	p := backoff.Policy{Min: max(l.cfg.Pause, 1), Max: max(l.cfg.Pause, 1) * 32}
	if end := now.Add(p.Delay(l.inARow)); end.After(l.pauseEnd) {
		l.pauseEnd = end
	}
	l.inARow = min(l.inARow+1, 16)
}

// lastCut is the moment from which on requests obey the current rate.
func (l *limiter) lastCut() time.Time {
	if l.rate == 0 {
		return time.Time{}
	}
	return l.pauseEnd
}

// accept takes note of an answer that was not a 429.
func (l *limiter) accept(started time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate > 0 && !started.Before(l.lastCut()) {
		l.inARow = 0
	}
}

func (l *limiter) state() RateLimitState {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.grow(now)
	s := RateLimitState{Limited: l.rate > 0, Rate: l.rate, Rejected: l.rejected, LastRejected: l.lastAt}
	if l.pauseEnd.After(now) {
		s.PausedUntil = l.pauseEnd
	}
	return s
}
