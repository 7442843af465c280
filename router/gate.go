package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/reminders"
)

// gate keeps the messages of one handler from hammering a sink that is down.
// It is open until an attempt fails by outage and no other attempt has succeeded
// since that one began. While it is closed, one message at a time probes, with
// growing pauses; the others wait. The turn goes round in order of arrival, so a
// message that fails for a reason of its own does not hold up the rest for ever.
// The first success that reached the sink opens the gate for all.
type gate struct {
	delay func(failures int) time.Duration
	stop  <-chan struct{}

	closed    atomic.Bool   // mirror of outage != nil, for the fast path
	successes atomic.Uint64 // attempts that reached the sink
	healed    atomic.Uint64 // those of messages that had been refused in between
	waiting   atomic.Int64

	mu     sync.Mutex
	outage *outage
}

// outage is one closed phase of a gate.
type outage struct {
	since time.Time
	over  chan struct{} // closed when the gate opens
	turn  chan struct{} // holds one token: the right to probe

	// These belong to the holder of the token.
	waits    bool // for what was never there, see ErrNotConnected
	failures int
	next     time.Time       // not to be probed before, unless
	wake     <-chan struct{} // is closed: the sink is back
	told     int             // how often it was logged that the outage continues
}

// enter waits until the message may be tried. It returns the outage that the
// attempt probes, nil when the gate is open, and false when ctx or the gate's
// stop ended the wait.
func (g *gate) enter(ctx context.Context) (*outage, bool) {
	for g.closed.Load() {
		g.mu.Lock()
		o := g.outage
		g.mu.Unlock()
		if o == nil {
			break
		}
		probe, ok := g.wait(ctx, o)
		if !ok {
			return nil, false
		}
		if probe {
			return o, true
		}
	}
	return nil, true
}

// wait returns true, true when the caller is to probe, and false, true when the
// outage is over.
func (g *gate) wait(ctx context.Context, o *outage) (probe, ok bool) {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	select {
	case <-o.over:
		return false, true
	case <-ctx.Done():
		return false, false
	case <-g.stop:
		return false, false
	case <-o.turn:
	}
	timer := time.NewTimer(time.Until(o.next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, true
	case <-o.wake:
		o.failures = 0 // should it not be all there yet, it will be soon
		return true, true
	case <-o.over:
		return false, true // the token goes down with the outage
	case <-ctx.Done():
	case <-g.stop:
	}
	o.turn <- struct{}{}
	return false, false
}

// succeeded is called after an attempt that reached the sink. It returns the
// outage that it ended, if any.
func (g *gate) succeeded() *outage {
	g.successes.Add(1)
	if !g.closed.Load() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.outage
	if o == nil {
		return nil
	}
	g.outage = nil
	g.closed.Store(false)
	close(o.over)
	return o
}

// failedHow is how an attempt failed by outage.
type failedHow int

const (
	failedDown     failedHow = iota
	failedWaiting            // what it needs was never there
	failedAnswered           // somebody answers, and not as hoped
)

// failed is called after an attempt that failed by outage. probe is what enter
// returned, seen the value of successes before the attempt, wake what was known
// before it of the sink's return. It returns whether
// the gate is closed now, and the outage if this failure began it, or made it one
// that is more than a wait for the first connection, which failedWaiting stands for.
// lasted is how long the outage has lasted when it is time to log it again, which
// is done for failedAnswered, else 0.
func (g *gate) failed(probe *outage, seen uint64, wake <-chan struct{}, how failedHow) (closed bool, began *outage, lasted time.Duration) {
	if probe != nil {
		g.mu.Lock()
		current := g.outage == probe
		g.mu.Unlock()
		if current {
			probe.next = time.Now().Add(g.delay(probe.failures))
			probe.failures++
			probe.wake = wake
			if probe.waits && how != failedWaiting {
				// It was reached in the meantime, so this is an outage like others.
				probe.waits = false
				began = probe
			}
			if how == failedAnswered {
				since := time.Since(probe.since)
				if due := reminders.Due(since); due > probe.told {
					probe.told, lasted = due, since
				}
			}
			probe.turn <- struct{}{}
			return true, began, lasted
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage != nil {
		return true, nil, 0
	}
	if g.successes.Load() != seen {
		return false, nil, 0
	}
	now := time.Now()
	o := &outage{
		since:    now,
		waits:    how == failedWaiting,
		over:     make(chan struct{}),
		turn:     make(chan struct{}, 1),
		failures: 1,
		next:     now.Add(g.delay(0)),
		wake:     wake,
	}
	o.turn <- struct{}{}
	g.outage = o
	g.closed.Store(true)
	return true, o, 0
}

// passed gives the turn on after a probe that said nothing about the sink.
func (g *gate) passed(probe *outage) {
	if probe != nil {
		probe.turn <- struct{}{}
	}
}

// since returns when the outage began, zero when there is none.
func (g *gate) since() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outage == nil {
		return time.Time{}
	}
	return g.outage.since
}
