package subscriber

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// lane keeps several messages of one key on their way at once, for a subscription whose handlers
// tell when a message has its place behind those before it ([msgctx.Pipeline]): then comes the
// next one.
//
// Only order is at stake, and only around a failure. From the first one on nothing more is
// delivered until it is known what became of everything that is on its way. What failed then comes
// again in its order, the first of it alone, until it is acked.
//
// A lane is a state machine without goroutine or clock. The goroutine that works on the queue
// uses it, except for told, which whoever handles the messages writes.
type lane struct {
	flights []*flight // the first of the queue: on their way, or failed
	flying  int       // how many of them are on their way
	failed  bool      // one has failed
	careful bool      // one message at a time until one is acked

	wake chan struct{} // holds a token when there is something to look at
	mu   sync.Mutex
	told []*flight   // acked or nacked since settled was called; guarded by mu
	halt atomic.Bool // something with its place has failed, perhaps before this goroutine knows
}

// flight is one delivery of a message.
type flight struct {
	lane *lane
	d    *delivery
	msg  *message.Message
	ctx  *messageContext
	resumed
	before  int  // resumed.overtaken when it was delivered
	begun   bool // some of what was made of it may be stored before one that fails; guarded by lane.mu
	placed  bool // all of it has its place; guarded by lane.mu
	settled bool // it is known what became of it
	outcome msgctx.Outcome
}

// resumed is what is known of a message from its former deliveries.
type resumed struct {
	kept      any // see msgctx.Nack.Keep
	nacks     int // since it last waited for a time that its handler had set
	overtaken int // by how many that came after it
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

// poke has the lane looked at.
func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Begun implements [msgctx.Pipeline].
func (f *flight) Begun() {
	f.lane.mu.Lock()
	f.begun = true
	f.lane.mu.Unlock()
}

// Placed implements [msgctx.Pipeline].
func (f *flight) Placed() {
	f.lane.mu.Lock()
	f.begun, f.placed = true, true
	f.lane.mu.Unlock()
	f.lane.poke()
}

// Halt implements [msgctx.Pipeline].
func (f *flight) Halt() { f.lane.halt.Store(true) }

// Halted implements [msgctx.Pipeline].
func (f *flight) Halted() bool { return f.lane.halt.Load() }

// Settled implements [msgctx.Pipeline].
func (f *flight) Settled() {
	f.lane.mu.Lock()
	f.lane.told = append(f.lane.told, f)
	f.lane.mu.Unlock()
	f.lane.poke()
}

// settled returns what was acked or nacked since it was last called, at least of what told so.
func (l *lane) settled() []*flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.told
	l.told = nil
	return told
}

// first returns the first message that is on its way; nil without one.
func (l *lane) first() *flight {
	for _, f := range l.flights {
		if !f.settled {
			return f
		}
	}
	return nil
}

// takes reports whether the next message may be delivered.
func (l *lane) takes() bool {
	if l.failed {
		return false
	}
	if len(l.flights) == 0 {
		return true
	}
	if l.careful {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flights[len(l.flights)-1].placed
}

// deliver adds f, which has been delivered.
func (l *lane) deliver(f *flight) {
	l.flights = append(l.flights, f)
	l.flying++
}

// settle records what became of f, which was on its way. One that was nacked stays in the lane,
// until retry returns it.
func (l *lane) settle(f *flight, outcome msgctx.Outcome) {
	f.settled, f.outcome = true, outcome
	l.flying--
	l.mu.Lock()
	begun := f.begun
	l.mu.Unlock()
	i := 0
	for ; l.flights[i] != f; i++ {
		if begun { // it may be stored, whatever became of it
			l.flights[i].overtaken++
		}
	}
	switch outcome {
	case msgctx.Nacked:
		l.failed = true
		return
	case msgctx.Acked:
		l.careful = false
	}
	l.flights = slices.Delete(l.flights, i, i+1)
}

// retry returns what has failed, in its order, once nothing else is on its way; nil until then.
func (l *lane) retry() (failed []*flight) {
	if !l.failed || l.flying > 0 {
		return nil
	}
	failed = l.flights
	l.flights, l.failed, l.careful = nil, false, true
	l.halt.Store(false)
	return failed
}
