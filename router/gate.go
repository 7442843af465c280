package router

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/internal/wakeup"
)

const (
	// refusedMaxDelay caps the pauses between the probes of what is refused while something
	// else passes: it is used again that soon after it works again.
	refusedMaxDelay = 2 * time.Second
	// probePatience is how long a probe may keep the turn: one that hangs must not keep the
	// others from finding out that the sink is back.
	probePatience = 2 * time.Second
	// aloneFor is how long after a delivery a failure that came before the topic was known is
	// taken for the message's own. A handler may report an outage for any message.
	aloneFor = time.Second
	// maxTopicGates bounds how many topics have gates. Senders may choose the topics.
	maxTopicGates = 1000
	// gateForgotten is after how long a gate at which nobody has been is removed; that for everything stays, and is no outage.
	gateForgotten = time.Minute
	// topicCounters is how many counters of successes there are for all topics.
	topicCounters = 256
)

// gates keep the messages of one handler from hammering a sink that is down, and let those pass that do not need what is
// down. A topic that is refused has a gate of its own. There is one more for everything, at which all wait: it is closed
// from an attempt that failed by outage, if no other one has succeeded since it began, to the first success; and when a
// topic is refused and nothing else has succeeded for refusedMaxDelay.
//
// gates have no goroutine. Callers wait in their own.
type gates struct {
	delay func(failures int) time.Duration
	stop  <-chan struct{}

	closed    atomic.Bool   // a gate is, for the fast path
	successes atomic.Uint64 // attempts that reached the sink
	healed    atomic.Uint64 // those of messages that had been refused in between
	waiting   atomic.Int64
	byTopic   [topicCounters]atomic.Uint64 // successes by the hash of the topic

	mu      sync.Mutex
	company *company
	all     *gate
	topics  map[string]*gate // that are closed
	swept   time.Time
}

// gate is one closed phase of one topic, or of everything. Those who have not failed yet probe by themselves, and at once: a
// message that fails for a reason of its own does not hold them up.
type gate struct {
	topic string // empty: everything
	// early: who closed it had not come as far as to have a topic. It may have failed for a
	// reason of its own, so nobody else is held up.
	early bool
	since time.Time
	over  chan struct{} // closed when the gate opens
	fresh lane
	again lane

	// The rest is guarded by gates.mu.
	waits  bool   // for what was never there, see sinks.ErrNotConnected
	told   int    // how often it was logged that the outage continues
	listed bool   // it was logged that the topic is refused
	seen   uint64 // successes when it was closed
	unsure bool   // everything had failed, so it is not known whether the topic alone does
	used   time.Time
	text   string
}

// lane has a turn, which goes round in order of arrival: one message probes at a time, with
// growing pauses.
type lane struct {
	turn chan struct{} // holds one token: the right to probe

	// These are guarded by gates.mu.
	here     int // who waits in it
	failures int
	failed   time.Time       // the last time
	next     time.Time       // not to be probed before, unless something else passes, or
	wake     <-chan struct{} // is closed: the sink is back
}

// turn is the right to probe, until it is over.
type turn struct {
	gate  *gate
	lane  *lane
	timer *time.Timer
	given bool // it has gone on; guarded by gates.mu
}

func newGate(topic string, now time.Time) *gate {
	o := &gate{topic: topic, since: now, used: now, over: make(chan struct{})}
	for _, l := range []*lane{&o.fresh, &o.again} {
		l.turn, l.next = make(chan struct{}, 1), now
		l.turn <- struct{}{}
	}
	return o
}

func (o *gate) lane(again bool) *lane {
	if again {
		return &o.again
	}
	return &o.fresh
}

// at returns the gate that the message has to wait at before it is tried; nil: none.
// Only one that is about to publish, or has nothing to publish, is held up by the gate for
// everything; if that was closed early, only one that has failed itself.
func (g *gates) at(topics []string, publishes, failed bool) *gate {
	if !g.closed.Load() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.sweep(now)
	if g.all != nil && (failed || publishes && !g.all.early) {
		return g.all
	}
	if g.all != nil && !g.all.early {
		return nil
	}
	for _, topic := range topics {
		if o := g.topics[topic]; o != nil {
			o.used = now
			return o
		}
	}
	return nil
}

// waited is how a wait has ended.
type waited int

const (
	waitEnded   waited = iota // ctx has ended, or the gates were stopped
	waitOver                  // the gate is open
	waitProbe                 // the caller has the turn
	waitYielded               // yield was closed, or became ready
)

// wait waits at o until the caller may probe, or need not wait any longer, or until yield
// is ready.
func (g *gates) wait(ctx context.Context, o *gate, again bool, yield <-chan struct{}) (*turn, waited) {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	l := o.lane(again)
	g.stay(o, l, 1)
	defer g.stay(o, l, -1)
	if t := g.try(o, again); t != nil {
		return t, waitProbe
	}
	token, result := l.turn, waitEnded
	var due <-chan time.Time
	var wake <-chan struct{}
wait:
	for {
		select {
		case <-token:
			token = nil // it is ours
		case <-due:
			return g.probe(o, l, false), waitProbe
		case <-wake:
			return g.probe(o, l, true), waitProbe
		case <-o.over:
			result = waitOver
			break wait
		case <-yield:
			result = waitYielded
			break wait
		case <-ctx.Done():
			break wait
		case <-g.stop:
			break wait
		}
		g.mu.Lock()
		due, wake = time.After(time.Until(g.due(o, l))), l.wake
		g.mu.Unlock()
	}
	if token == nil {
		l.turn <- struct{}{}
	}
	return nil, result
}

func (g *gates) stay(o *gate, l *lane, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.here += n
	o.used = time.Now()
}

// try returns the turn if it can be had at once, else nil.
func (g *gates) try(o *gate, again bool) *turn {
	l := o.lane(again)
	select {
	case <-l.turn:
	default:
		return nil
	}
	g.mu.Lock()
	due, back := !g.due(o, l).After(time.Now()), l.back()
	g.mu.Unlock()
	if !due && !back {
		l.turn <- struct{}{}
		return nil
	}
	return g.probe(o, l, back)
}

// back reports whether the sink has told that it is back. gates.mu is held.
func (l *lane) back() bool {
	return wakeup.Raised(l.wake)
}

// due returns when the next probe is due. g.mu is held.
func (g *gates) due(o *gate, l *lane) time.Time {
	if soon := l.failed.Add(refusedMaxDelay); soon.Before(l.next) && (o.topic != "" || !g.company.stuck()) {
		return soon
	}
	return l.next
}

// probe makes a turn of the token, which the caller has.
func (g *gates) probe(o *gate, l *lane, back bool) *turn {
	t := &turn{gate: o, lane: l}
	g.mu.Lock()
	defer g.mu.Unlock()
	if back {
		l.failures, l.wake = 0, nil // should it not be all there yet, it will be soon
	}
	t.timer = time.AfterFunc(probePatience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !t.given {
			g.pause(t.lane, nil)
			g.give(t)
		}
	})
	return t
}

// give gives the turn on. g.mu is held.
func (g *gates) give(t *turn) {
	if !t.given {
		t.given = true
		t.timer.Stop()
		t.lane.turn <- struct{}{}
	}
}

// pause puts off the next probe after one that failed, or hangs. g.mu is held.
func (g *gates) pause(l *lane, wake <-chan struct{}) {
	l.failed = time.Now()
	l.next, l.wake = l.failed.Add(g.delay(l.failures)), wake
	l.failures++
}

// passed gives the turn on after a probe that said nothing about the sink. t may be nil.
func (g *gates) passed(t *turn) {
	if t != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.give(t)
	}
}

// counter counts the successes of a topic, and of those with the same hash.
func (g *gates) counter(topic string) *atomic.Uint64 {
	return &g.byTopic[xxh3.HashString(topic)%topicCounters]
}

// reached is called when the sink has taken messages to these topics, or a handler that has
// no topics has succeeded. It returns the gates that this opened.
func (g *gates) reached(topics []string) (opened []*gate) {
	g.successes.Add(1)
	for _, topic := range topics {
		g.counter(topic).Add(1)
	}
	if !g.closed.Load() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, topic := range topics {
		if o := g.topics[topic]; o != nil {
			delete(g.topics, topic)
			opened = append(opened, o)
		}
	}
	if o := g.all; o != nil {
		g.all = nil
		g.company.set(false)
		opened = append(opened, o)
		// What failed with everything is not known to fail alone: one probe each will tell.
		now := time.Now()
		for _, o := range g.topics {
			o.unsure = true
			for _, l := range []*lane{&o.fresh, &o.again} {
				l.failures, l.next = 0, now
			}
		}
	}
	for _, o := range opened {
		close(o.over)
	}
	g.mirror()
	return opened
}

func (g *gates) mirror() { g.closed.Store(g.all != nil || len(g.topics) > 0) }

// sweep removes, now and then, the gates at which nobody has been for some time. g.mu is held.
func (g *gates) sweep(now time.Time) {
	if now.Sub(g.swept) < gateForgotten/4 {
		return
	}
	g.swept = now
	for topic, o := range g.topics {
		if o.deserted(now) {
			delete(g.topics, topic)
			close(o.over)
		}
	}
	g.mirror()
}

// deserted reports whether nobody has waited at o for some time: who did was poisoned or given up. gates.mu is held.
func (o *gate) deserted(now time.Time) bool {
	return o.fresh.here+o.again.here == 0 && now.Sub(o.used) >= gateForgotten
}

// comeBack is how long a message that need not wait here stays away from o.
func (g *gates) comeBack(o *gate, again bool) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A probe that is on its way ends soon.
	d := min(max(time.Until(g.due(o, o.lane(again))), waitInPlace), refusedMaxDelay)
	return d + rand.N(d/4+waitInPlace) // so that not all of them come at once
}

// stuck returns a channel that is closed when something passes again somewhere at their
// source; nil if it does, or if the message has been put off already and perhaps only messages
// like it fail.
func (g *gates) stuck(putOff bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if putOff && g.all != nil && g.all.early {
		return nil
	}
	return g.company.wait()
}

// outage returns when the current outage of everything began, and when the sink is tried again;
// zero when there is none, or when no message has waited for its end for a minute.
func (g *gates) outage() (since, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.all == nil || g.all.deserted(now) {
		return time.Time{}, time.Time{}
	}
	return g.all.since, g.next(g.all, now)
}

// end takes the gate for everything away, once all that waits at it is called back, and returns since when it was closed; zero if
// it was not.
func (g *gates) end() (since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all != nil {
		since, g.all = g.all.since, nil
		g.company.set(false)
		g.mirror()
	}
	return since
}

// refused appends the topics that are refused while others are not.
func (g *gates) refused(list []RefusedTopic) []RefusedTopic {
	if !g.closed.Load() {
		return list
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all != nil {
		return list
	}
	now := time.Now()
	g.sweep(now)
	for topic, o := range g.topics {
		if !o.unsure {
			list = append(list, RefusedTopic{Topic: topic, Since: o.since, Until: g.next(o, now), Error: o.text})
		}
	}
	return list
}

// next returns when o is probed again by those who wait at it, or come back to it. g.mu is held.
func (g *gates) next(o *gate, now time.Time) time.Time {
	next := g.due(o, &o.again)
	if fresh := g.due(o, &o.fresh); o.fresh.here > 0 && (o.again.here == 0 || fresh.Before(next)) {
		next = fresh
	}
	if next.Before(now) {
		return now // the probe is on its way, or begins when somebody comes
	}
	return next
}
