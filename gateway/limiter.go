package gateway

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
)

// recoverFactor lifts the limit at this multiple of the rate that was too high.
const recoverFactor = 4

// RateLimitConfig tunes the limiter shared by the whole client. There is no limit until the service answers 429. Then all
// requests pause once, and are spaced afterwards: at half the rate that was too high, growing by Growth per second up to four
// times that rate, when the limit is lifted. 429s count once at least two tenants, and half of those that were answered in
// the last ten seconds, get them, or a request that is no tenant's.
type RateLimitConfig struct {
	// MinRate is the lowest rate in requests per second. Default 1.
	MinRate float64
	// Growth is the growth of the rate per second without a 429. Default 0.05 (5 %).
	Growth float64
	// Pause is the pause of the whole client after a 429. It has jitter and doubles with each
	// consecutive 429, up to 8 times. A longer Retry-After takes precedence. Default 1 s.
	Pause time.Duration
}

// WithDefaults returns the configuration with the defaults filled in.
func (c RateLimitConfig) WithDefaults() RateLimitConfig {
	c.MinRate = cmp.Or(c.MinRate, 1)
	c.Growth = cmp.Or(c.Growth, 0.05)
	c.Pause = cmp.Or(c.Pause, time.Second)
	return c
}

func (c RateLimitConfig) validate() error {
	var e validate.Errors
	e.Check(c.MinRate > 0, "MinRate", "must be positive") // also rejects NaN
	e.Check(c.Growth > 0, "Growth", "must be positive")
	validate.NotNegative(&e, "Pause", c.Pause)
	return e.Err(ErrConfig)
}

// RateLimitState is a snapshot of the limiter; see [Client.RateLimit].
type RateLimitState struct {
	// Limited is true from the first 429 until the limit is lifted.
	Limited bool
	// Rate is the current limit in requests per second; 0 if not Limited.
	Rate float64
	// PausedUntil is the end of the current pause; zero if there is none.
	PausedUntil time.Time
	// Rejected counts the 429 responses since the client was created.
	Rejected int64
	// LastRejected is the time of the latest one; zero if there was none.
	LastRejected time.Time
	// LastWaited is when a request last waited for the limit or a pause; zero if none did.
	LastWaited time.Time
}

// limiter is the adaptive rate limiter of one client. All times come from time.Now.
type limiter struct {
	cfg RateLimitConfig

	mu       sync.Mutex
	known    RateLimitState // what is counted: Rejected, LastRejected and LastWaited
	rate     float64        // 0: no limit
	ceiling  float64        // the rate that was too high
	grownAt  time.Time      // when rate was last updated
	pauseEnd time.Time
	next     time.Time // when the next request may start
	inARow   int
	waiting  int // requests

	tenants limitedTenants

	// The observed rate: requests in the current second and in the previous one.
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
			return now, nil // whether ctx has ended is seen before anything is sent
		}
		// Nothing is reserved while waiting: a new pause or rate also applies to the waiters, and one that gives up leaves no gap.
		l.waiting++
		l.mu.Unlock()
		err := backoff.Sleep(ctx, at.Sub(now))
		l.mu.Lock()
		l.waiting--
		l.known.LastWaited = time.Now()
		l.mu.Unlock()
		if err != nil {
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

// grow updates the rate.
func (l *limiter) grow(now time.Time) {
	if l.rate == 0 || now.Before(l.pauseEnd) {
		l.grownAt = now
		return
	}
	l.rate += l.rate * l.cfg.Growth * now.Sub(l.grownAt).Seconds()
	l.grownAt = now
	if l.rate >= l.ceiling*recoverFactor {
		l.lift()
	}
}

// reject records a 429 for a request of tenant that started at started. Requests
// that were in flight when the rate was cut provide no new information.
func (l *limiter) reject(started time.Time, tenant string, retryAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	stale := started.Before(l.lastCut())
	l.known.Rejected++
	l.known.LastRejected = now
	if l.isOwn(now, stale, tenant) {
		return
	}
	if end := now.Add(retryAfter); retryAfter > 0 && end.After(l.pauseEnd) {
		l.pauseEnd = end
	}
	if stale {
		return
	}
	l.grow(now)
	was := l.rate
	if was == 0 {
		l.tenants.begin(tenant == "")
		was = float64(max(l.count, l.before))
	}
	l.ceiling = max(was, l.cfg.MinRate)
	l.rate = max(was/2, l.cfg.MinRate)
	l.grownAt = now
	p := backoff.Policy{Initial: max(l.cfg.Pause, 1), Max: max(l.cfg.Pause, 1) * 8}
	if end := now.Add(p.Delay(l.inARow)); end.After(l.pauseEnd) {
		l.pauseEnd = end
	}
	l.inARow = min(l.inARow+1, 16)
}

// isOwn reports whether a 429 is the tenant's own: then the rate of the others does not change.
// When that turns out later, the limit that it has caused is lifted. l.mu is held.
func (l *limiter) isOwn(now time.Time, stale bool, tenant string) bool {
	if tenant == "" {
		l.tenants.shared = true
		return false
	}
	own := l.tenants.refuse(now, tenant, !stale)
	switch {
	case l.rate == 0:
		return own || l.tenants.minority(now)
	case own && l.tenants.alone():
		l.lift()
	}
	return own
}

// lift ends the limit. l.mu is held.
func (l *limiter) lift() { l.rate, l.inARow, l.next = 0, 0, time.Time{} }

// lastCut is the time from which requests follow the current rate.
func (l *limiter) lastCut() time.Time {
	if l.rate == 0 {
		return time.Time{}
	}
	return l.pauseEnd
}

// accept records a response other than 429 for a request of tenant that started at started.
func (l *limiter) accept(started time.Time, tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tenant != "" {
		l.tenants.accept(started, tenant)
	}
	if l.rate > 0 && !started.Before(l.lastCut()) {
		l.inARow = 0
	}
}

func (l *limiter) state() RateLimitState {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.grow(now)
	s := l.known
	s.Limited, s.Rate = l.rate > 0, l.rate
	if l.waiting > 0 {
		s.LastWaited = now
	}
	if l.pauseEnd.After(now) {
		s.PausedUntil = l.pauseEnd
	}
	return s
}
