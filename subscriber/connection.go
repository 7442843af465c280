package subscriber

import (
	"errors"
	"fmt"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
)

const (
	// healthyAfter is how many times Reconnect.Initial a stream has to be open to count as healthy.
	healthyAfter = 4
	// resyncEvery is how often the stream is reconnected at most.
	resyncEvery = 4 * time.Second
	// firstFreshShare is how many reconnects for first fresh URIs there may be in the time of one for
	// further ones.
	firstFreshShare = 5
)

// connection decides when the event stream is opened, when it is reconnected so that something is
// redelivered, and when it is given up. It is a state machine without goroutine, clock or lock,
// guarded by Subscriber.mu.
type connection struct {
	cfg *Config

	stream   StreamState
	failures int // that the next wait depends on

	freshLast, freshNext time.Time     // when it was reconnected for fresh payload URIs, and tick is to do so; zero for never
	freshEvery           time.Duration // see wantFreshSoon
}

// streamEnd is how a connection, or the attempt to make one, has ended.
type streamEnd struct {
	err      error // nil if the subscriber closed it because nobody needs it any longer
	events   int   // that came
	recalled bool  // the subscriber closed it to have events redelivered
}

// start is called when somebody needs the stream, for the first time or again.
func (c *connection) start() {
	c.failures = 0
	c.clearRefusal()
}

// opened is called when the stream is open. With awaitingHead, the service has not said so yet.
func (c *connection) opened(now time.Time, awaitingHead bool) {
	c.stream.Connected, c.stream.AwaitingHead, c.stream.Since = true, awaitingHead, now
	if !awaitingHead {
		c.clearRefusal()
	}
}

// headArrived is called when the service has opened a stream that was awaiting its head.
func (c *connection) headArrived(now time.Time) {
	c.stream.AwaitingHead, c.stream.Since = false, now
	c.clearRefusal()
}

// ended is called when the stream has ended, or could not be opened. It returns how long to wait
// before it is requested again, or, if it is given up, the reason.
func (c *connection) ended(now time.Time, end streamEnd) (wait time.Duration, final error) {
	lasted := time.Duration(0)
	if c.stream.Connected {
		lasted = now.Sub(c.stream.Since)
	}
	if c.stream.Connected || c.stream.Since.IsZero() {
		c.stream.Connected, c.stream.AwaitingHead, c.stream.Since = false, false, now
	}
	c.stream.LastError = end.err
	if !isRefusal(end.err) {
		c.clearRefusal()
	} else if c.stream.RefusedSince.IsZero() {
		c.stream.RefusedSince = now
		if c.cfg.StreamRefusedFor != NeverRefused {
			c.stream.EndsAt = now.Add(c.cfg.StreamRefusedFor)
		}
	}
	if final = c.final(now, end); final != nil {
		return 0, final
	}
	// A stream that was open for a while was healthy, also if nothing came, and is
	// reopened at once: a load balancer ends quiet ones all the time. One that was closed
	// on purpose is not: what made that necessary may happen again.
	healthy := lasted >= healthyAfter*c.cfg.Reconnect.Initial
	if healthy || end.events > 0 && !end.recalled {
		c.failures = 0
	}
	if healthy && !end.recalled {
		return 0, nil
	}
	wait = max(backoff.Policy(c.cfg.Reconnect).Delay(c.failures), retryAfter(end.err))
	c.failures++
	return wait, nil
}

func (c *connection) clearRefusal() {
	c.stream.RefusedSince, c.stream.EndsAt = time.Time{}, time.Time{}
}

// final returns the reason to give the stream up, or nil.
func (c *connection) final(now time.Time, end streamEnd) error {
	switch {
	case end.recalled:
		return nil
	case errors.Is(end.err, gateway.ErrInvalid), errors.Is(end.err, gateway.ErrClosed):
		return end.err // the request cannot be made
	case !c.stream.EndsAt.IsZero() && !now.Before(c.stream.EndsAt):
		return fmt.Errorf("%w for %s: %w", ErrStreamRefused, now.Sub(c.stream.RefusedSince).Round(time.Second), end.err)
	}
	return nil
}

// wantFresh asks for a reconnect because handlers wait for fresh payload URIs.
func (c *connection) wantFresh(now time.Time) {
	c.freshNext = earlier(c.freshNext, later(now, c.freshLast.Add(c.cfg.Payload.RefreshEvery)))
}

// wantFreshSoon asks for a reconnect because downloads wait for fresh URIs: at once, and then the less
// often the more reconnects there are in a row. With helps, fresh URIs are known to help: a fault of their host has
// ended, or they expire before all of them can be used.
func (c *connection) wantFreshSoon(now time.Time, helps bool) {
	if helps || now.Sub(c.freshLast) >= c.cfg.Payload.RefreshEvery {
		c.freshEvery = resyncEvery
	}
	c.freshNext = earlier(c.freshNext, later(now, c.freshLast.Add(min(c.freshEvery, c.cfg.Payload.RefreshEvery/firstFreshShare))))
}

// tick reports whether the stream is to be reconnected now. waiting is whether payloads wait for
// fresh URIs still. A stream that is not open brings everything when it is.
func (c *connection) tick(now time.Time, waiting bool) (reconnect bool) {
	if c.freshNext.IsZero() || now.Before(c.freshNext) {
		return false
	}
	c.freshNext = time.Time{}
	if waiting {
		c.freshLast, c.freshEvery = now, min(2*c.freshEvery, c.cfg.Payload.RefreshEvery)
	}
	return waiting && c.stream.Connected
}

// isRefusal reports whether the service, or an intermediary, refuses the stream. The
// status is the only indication.
func isRefusal(err error) bool {
	return errors.Is(err, gateway.ErrBadRequest) || errors.Is(err, gateway.ErrForbidden)
}
