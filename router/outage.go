package router

import (
	"time"

	"github.com/agrimill/agrimill/internal/reminders"
)

// failedHow is how an attempt failed by outage.
type failedHow int

const (
	failedDown     failedHow = iota
	failedWaiting            // what it needs was never there
	failedAnswered           // somebody answers, and not as hoped
)

// outageFailure is an attempt that failed by outage.
type outageFailure struct {
	topic     string          // that failed, empty if it did not come that far
	seen      uint64          // successes before the attempt
	seenTopic uint64          // successes of the topic before it was tried
	wake      <-chan struct{} // what was known before the attempt of the sink's return
	how       failedHow
	text      string
	alone     bool // a message has just been delivered, so it may be the only one to fail
}

// verdict is what became of the gates by a failure.
type verdict struct {
	closed bool  // the message has to wait at a gate
	began  *gate // the gate for everything, if it was closed by this, or became an outage
	first  bool  // began has just been closed
	// lasted is how long the outage has lasted when it is time to log it again, else 0.
	lasted time.Duration
	// refused is the gate of the topic when it is time to log it.
	refused *gate
	// yields: the message probed in vain for everything, closed early. Perhaps only such
	// messages are in flight, so it makes room for one that may tell.
	yields *gate
}

// failed is called after an attempt that failed by outage, and gives the turn on, which may
// be nil.
func (g *gates) failed(t *turn, f outageFailure) (v verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	o, known := g.topics[f.topic]
	odd := f.topic != "" && !known && g.counter(f.topic).Load() != f.seenTopic
	if f.topic != "" && !known && !odd {
		g.sweep(now)
		if len(g.topics) < maxTopicGates {
			o = newGate(f.topic, now)
			o.seen = g.successes.Load()
			g.pause(&o.again, f.wake)
			if g.topics == nil {
				g.topics = make(map[string]*gate)
			}
			g.topics[f.topic] = o
			g.closed.Store(true)
		}
	}
	if o != nil {
		o.used, o.text, o.unsure = now, f.text, false
		if !o.listed && g.all == nil && now.Sub(o.since) >= waitTold {
			o.listed, v.refused = true, o
		}
	}
	probed := t != nil && !t.given && (t.gate == g.all || t.gate == o)
	if probed {
		g.pause(t.lane, f.wake)
	}
	switch all := g.all; {
	case all != nil:
		if probed && t.gate == all && t.lane == &all.again && all.early {
			v.yields = all
		}
		if all.waits && f.how != failedWaiting && t != nil && t.gate == all {
			// It was reached in the meantime, so this is an outage like others.
			all.waits = false
			v.began = all
		}
		if since := now.Sub(all.since); probed && f.how == failedAnswered {
			if due := reminders.Due(since); due > all.told {
				all.told, v.lasted = due, since
			}
		}
	case !f.alone && g.successes.Load() == f.seen && (!known || o.silent(f.seen, now)):
		all = newGate("", now)
		if known {
			all.since = o.since
		}
		all.waits, all.early = f.how == failedWaiting, f.topic == ""
		g.pause(&all.again, f.wake)
		g.all, v.began, v.first = all, all, true
		g.closed.Store(true)
		g.company.set(true)
	}
	if t != nil {
		g.give(t)
	}
	v.closed = g.all != nil || o != nil
	return v
}

// silent reports whether nothing at all has passed since the topic was refused, for so long
// that it would have. gates.mu is held.
func (o *gate) silent(successes uint64, now time.Time) bool {
	return o.seen == successes && now.Sub(o.since) >= refusedMaxDelay
}
