package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/validate"
)

// RateLimitConfig tunes the limiter shared by the whole client. There is no
// limit until the service answers 429. Then all requests of the client pause
// once, and afterwards they are spaced: at half the rate that was too high,
// growing by Growth per second. When the rate has grown to RecoverFactor times
// the one that was too high, the limit is lifted. A tenant that alone gets 429 while
// requests of others are accepted has no part in this: its 429s count once another tenant
// gets one, too, or it gets them again within two seconds after it was served.
type RateLimitConfig struct {
	// MinRate is the lowest rate in requests per second. Default 1.
	MinRate float64 `yaml:"min_rate"`
	// Growth is the growth of the rate per second without a 429. Default 0.05,
	// which is 5 %.
	Growth float64 `yaml:"growth"`
	// RecoverFactor lifts the limit at this multiple of the rate that was too high. Default 4;
	// it must be at least 1.
	RecoverFactor float64 `yaml:"recover_factor"`
	// Pause is the pause of the whole client after a 429. It has jitter and doubles with each
	// consecutive 429, up to 32 times. A longer Retry-After takes precedence. Default 1 s.
	Pause time.Duration `yaml:"pause"`
}

// WithDefaults returns the configuration with the defaults filled in.
func (c RateLimitConfig) WithDefaults() RateLimitConfig {
	c.setDefaults()
	return c
}

func (c *RateLimitConfig) setDefaults() {
	def(&c.MinRate, 1)
	def(&c.Growth, 0.05)
	def(&c.RecoverFactor, 4)
	def(&c.Pause, time.Second)
}

func (c RateLimitConfig) validate() error {
	var e validate.Errors
	e.Check(c.MinRate > 0, "MinRate", "must be positive") // also rejects NaN
	e.Check(c.Growth > 0, "Growth", "must be positive")
	e.Check(c.RecoverFactor >= 1, "RecoverFactor", "must be at least 1")
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
}

// limiter is the adaptive rate limiter of one client. All times come from time.Now.
type limiter struct {
	cfg RateLimitConfig

	mu       sync.Mutex
	rate     float64   // 0: no limit
	ceiling  float64   // the rate that was too high
	grownAt  time.Time // when rate was last updated
	pauseEnd time.Time
	next     time.Time // when the next request may start
	inARow   int
	rejected int64
	lastAt   time.Time

	// own has the tenants whose 429s are their own, with when each got the latest. alone is the one of them that has not proven it: it
	// got the first one while requests of others were accepted, and nobody else has got one since.
	own   map[string]time.Time
	alone string
	// suspect may turn out to be one, although all are limited: a run of 429s of one tenant alone, alone
	// or not, while requests of others were accepted.
	suspect  string
	run      int
	accepted int // of others, in the run
	// served are the tenants that were accepted last, the latest first, and redeemed the one of own
	// that was.
	served   [2]tenantTime
	redeemed tenantTime

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
			return now, ctx.Err()
		}
		// Nothing is reserved while waiting: a pause or a new rate that arrives
		// in the meantime also applies to the waiters, and a waiter that gives up
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

// grow updates the rate.
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

// reject records a 429 for a request of tenant that started at started. Requests
// that were in flight when the rate was cut provide no new information.
func (l *limiter) reject(started time.Time, tenant string, retryAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	stale := started.Before(l.lastCut())
	l.rejected++
	l.lastAt = now
	if l.isOwn(now, tenant) {
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
		was = float64(max(l.count, l.before))
	}
	l.ceiling = max(was, l.cfg.MinRate)
	l.rate = max(was/2, l.cfg.MinRate)
	l.grownAt = now
	p := backoff.Policy{Initial: max(l.cfg.Pause, 1), Max: max(l.cfg.Pause, 1) * 32}
	if end := now.Add(p.Delay(l.inARow)); end.After(l.pauseEnd) {
		l.pauseEnd = end
	}
	l.inARow = min(l.inARow+1, 16)
}

const (
	// ownRun is how many 429s of one tenant alone, and ownAccepted how many requests of others
	// that were accepted meanwhile, show that it is not the rate of the application that is too
	// high.
	ownRun      = 3
	ownAccepted = 10
	maxOwn      = 1000
	// besideFor is how long ago a request of another tenant may have been accepted for a first 429 to
	// be the tenant's own, and redeemedFor how long after it was served it is not.
	besideFor   = 10 * time.Second
	redeemedFor = 2 * time.Second
)

// tenantTime is when something was a tenant's.
type tenantTime struct {
	tenant string
	at     time.Time
}

// isOwn reports whether a 429 is the tenant's own: then the rate of the others does not change.
// When that turns out later, the limit that it has caused is lifted. l.mu is held.
func (l *limiter) isOwn(now time.Time, tenant string) bool {
	_, known := l.own[tenant]
	switch {
	case known && tenant != l.alone:
		l.own[tenant] = now
		return true
	case !known && l.alone != "": // it is not alone
		delete(l.own, l.alone)
		l.alone = ""
	}
	if tenant == "" || tenant != l.suspect {
		l.suspect, l.run, l.accepted = tenant, 0, 0
	}
	l.run++
	switch {
	case l.run >= ownRun && l.accepted >= ownAccepted && tenant != "":
		if l.alone == tenant {
			l.alone = ""
		}
		if !known && l.addOwn(now, tenant) {
			l.rate, l.inARow, l.next, l.pauseEnd = 0, 0, time.Time{}, time.Time{}
			return true
		}
	case !known && l.mayBeOwn(now, tenant) && l.addOwn(now, tenant):
		l.alone = tenant
		return true
	}
	if known {
		l.own[tenant] = now
	}
	return known
}

// mayBeOwn reports whether the first 429 of a tenant may be its own: that of an application that sends
// too much would come to others, too, before long. l.mu is held.
func (l *limiter) mayBeOwn(now time.Time, tenant string) bool {
	other := l.served[0]
	if other.tenant == tenant {
		other = l.served[1]
	}
	return tenant != "" && l.rate == 0 && l.suspect == tenant && l.run == 1 &&
		!other.at.IsZero() && now.Sub(other.at) < besideFor &&
		(l.redeemed.tenant != tenant || now.Sub(l.redeemed.at) >= redeemedFor)
}

// addOwn remembers that the 429s of a tenant are its own, unless there are too many of them. l.mu is
// held.
func (l *limiter) addOwn(now time.Time, tenant string) bool {
	if len(l.own) >= maxOwn {
		return false
	}
	if l.own == nil {
		l.own = make(map[string]time.Time)
	}
	l.own[tenant] = now
	return true
}

// lastCut is the time from which requests follow the current rate.
func (l *limiter) lastCut() time.Time {
	if l.rate == 0 {
		return time.Time{}
	}
	return l.pauseEnd
}

// accept records a response other than 429 for a request of tenant.
func (l *limiter) accept(started time.Time, tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tenant == l.suspect {
		l.run, l.accepted = 0, 0
	} else {
		l.accepted++
	}
	now := time.Now()
	if tenant != "" {
		if l.served[0].tenant != tenant {
			l.served[1] = l.served[0]
		}
		l.served[0] = tenantTime{tenant, now}
	}
	// What was sent before the latest 429 tells nothing new.
	if at, own := l.own[tenant]; own && !started.Before(at) {
		delete(l.own, tenant)
		l.redeemed = tenantTime{tenant, now}
		if l.alone == tenant {
			l.alone = ""
		}
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
	s := RateLimitState{Limited: l.rate > 0, Rate: l.rate, Rejected: l.rejected, LastRejected: l.lastAt}
	if l.pauseEnd.After(now) {
		s.PausedUntil = l.pauseEnd
	}
	return s
}
