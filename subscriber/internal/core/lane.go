package core

import (
	"slices"
	"time"
)

// Lane has the items of one route that have the same key, in their order. It is a leaf of the tree, for as long as
// something of it is open.
type Lane struct {
	node
	links[*Lane] // among those of its tenant
	list[*Item]
	Key    string
	Route  *Route
	tenant *tenant

	handed  int  // items that handlers have
	careful bool // one at a time until one is acked
	// Halted says that one has failed, or was nacked: nothing more is handed out until all that are handed out are settled.
	Halted bool

	// pace is how long the latest message that was acked took, of those that handlers had beside it each their part.
	pace time.Duration

	// unconfirmed is how many messages its route was the last to ack that are not confirmed, and unconfirmedSince
	// since when the oldest of them is, or earlier.
	unconfirmed      int
	unconfirmedSince time.Duration
}

// ready reports whether it can be handed out when its turn comes.
func (it *Item) ready() bool { return it.state == queued && !it.Message.Fetching }

// stuck reports whether it is put off, or hangs.
func (it *Item) stuck() bool { return it.state == waiting || it.state == handed && !it.moving }

// turnOf reports whether it is the turn of it.
func (l *Lane) turnOf(it *Item) bool {
	switch {
	case l.Route.ended:
		return false
	case !l.Route.ordered:
		return true
	case l.first == it:
		return l.handed == 0
	case !l.Route.pipelines || l.Halted || l.careful:
		return false
	}
	before := it.prev
	return before.state == handed && before.placed && l.Route.mayBeAhead()
}

// nextInTurn returns the item that can be handed out now; nil if none can be. It is only for lanes with an order.
func (l *Lane) nextInTurn() *Item {
	if !l.Route.ordered {
		return nil
	}
	it := l.first
	for it != nil && it.state == handed {
		it = it.next
	}
	if it != nil && it.ready() && l.turnOf(it) {
		return it
	}
	return nil
}

// hand hands it out.
func (l *Lane) hand(now time.Duration, it *Item) {
	it.state, it.at, it.placed, it.Begun = handed, now, false, false
	l.handed++
	if l.handed > 1 && l.Route.ordered {
		l.Route.ahead++
	}
}

// settle takes in that no handler has it any longer.
func (l *Lane) settle(it *Item, outcome Outcome) {
	if l.handed > 1 && l.Route.ordered {
		l.Route.ahead--
	}
	l.handed--
	if !l.Route.pipelines {
		return
	}
	if it.Begun {
		for before := it.prev; before != nil; before = before.prev { // it may be stored, whatever became of it
			before.Overtaken++
		}
	}
	switch outcome {
	case Nacked:
		l.Halted = true
	case Acked:
		l.careful = false
	case Left:
	}
}

// resume has a lane in which something has failed go on, once it is known of all others what became of them.
func (l *Lane) resume(c *Core) {
	if !l.Halted || l.handed > 0 {
		return
	}
	l.Halted, l.careful = false, true
	for it := l.first; it != nil; it = it.next {
		if it.Overtaken > it.counted {
			it.counted = it.Overtaken
			c.effects.Overtaken++
		}
	}
}

// oldest returns since when the oldest of l is open; now if nothing is.
func (l *Lane) oldest(now time.Duration) time.Duration {
	at := now
	if l.first != nil {
		at = l.first.Opened
	}
	if l.unconfirmed > 0 {
		at = min(at, l.unconfirmedSince)
	}
	return at
}

// isLate reports whether the oldest of l is. Confirmations do not wait for handlers.
func (l *Lane) isLate(now, patience time.Duration) bool {
	return l.first != nil && now-l.first.Opened >= patience || l.unconfirmed > 0 && now-l.unconfirmedSince >= stall
}

// late counts what is late.
func (l *Lane) late(now, patience time.Duration) (n int) {
	for it := l.first; it != nil && now-it.Opened >= patience; it = it.next {
		n++
	}
	if now-l.unconfirmedSince >= stall {
		n += l.unconfirmed
	}
	return n
}

// Route is one who gets messages.
type Route struct {
	node
	list[*tenant] // that have something open
	Name          string
	// Owner is of whoever added the route.
	Owner     any
	number    uint32
	takes     func(*Message) bool
	ordered   bool
	pipelines bool
	beside    bool // see [Core.AddBeside]
	ended     bool
	ahead     int // items that handlers have behind the first ones of their lanes
	maxAhead  int
	lanes     map[string]*Lane
	tenants   map[string]*tenant
	spare     []*Lane // to be used again
}

// mayBeAhead reports whether one more item may be handed out behind the first one of its lane.
func (r *Route) mayBeAhead() bool { return r.ahead+1 < r.maxAhead }

// tenant is what a route has of a tenant.
type tenant struct {
	node
	links[*tenant]
	list[*Lane]
	name string
}

// each yields the lanes of r, in the order in which they were made.
func (r *Route) each(yield func(*Lane) bool) {
	for t := r.first; t != nil; t = t.next {
		for l := t.first; l != nil; l = l.next {
			if !yield(l) {
				return
			}
		}
	}
}

// collect returns the items of r that are open, in the order of its lanes.
func (r *Route) collect() (items []*Item) {
	for l := range r.each {
		items = slices.AppendSeq(items, l.Items)
	}
	return items
}
