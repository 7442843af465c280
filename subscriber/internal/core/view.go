package core

import (
	"iter"
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/duequeue"
)

// Counts is how much of what there is.
type Counts struct {
	// Moving and Waiting count messages that are open; MovingBytes are the bytes of the former.
	Moving, Waiting int
	MovingBytes     int64
	// PutOff counts items that are handed out again later.
	PutOff int
	// Held counts messages that wait for their files, and Awaiting confirmations that do.
	Held, Awaiting int
	// Unconfirmed counts messages that are acked and not confirmed.
	Unconfirmed int
	// Unsynced counts confirmations that wait until what was stored survives a power cut.
	Unsynced int
	// Left counts messages that were left with the service since the stream was opened.
	Left int
}

// Counts returns how much there is of what.
func (c *Core) Counts() Counts {
	w := &c.window
	return Counts{
		Moving: w.moving, Waiting: w.waiting, MovingBytes: w.movingBytes, PutOff: len(c.queue),
		Held: len(c.files.held), Awaiting: len(c.files.awaiting), Unconfirmed: w.unconfirmedNow,
		Left: c.left, Unsynced: c.held,
	}
}

// Overdue returns since when it has not been known whether what was stored survives a power cut although it could; zero if nothing
// waits for longer than it has to.
func (c *Core) Overdue(now time.Duration) time.Duration {
	if len(c.holds) == 0 {
		return 0
	}
	first := c.holds[0].until + c.holds[0].by.After
	if first >= now {
		return 0
	}
	return first
}

// Lanes yields each lane.
func (c *Core) Lanes(yield func(*Lane) bool) { c.window.lanes(yield) }

// Items yields each item of l, in order.
func (l *Lane) Items(yield func(*Item) bool) {
	for it := l.first; it != nil && yield(it); it = it.next {
	}
}

// First returns the first item of l that is open; nil without one.
func (l *Lane) First() *Item { return l.first }

// Since returns since when l has finished nothing, or has had its oldest if that came later.
func (l *Lane) Since() time.Duration { return max(l.done, l.oldest(l.done)) }

// HandedOut reports whether a handler has it, and since when.
func (it *Item) HandedOut() (since time.Duration, is bool) { return it.at, it.state == handed }

// PutOff reports whether it waits to be handed out again, and until when.
func (it *Item) PutOff() (until time.Duration, is bool) { return it.at, it.state == waiting }

// Next returns the item behind it in its lane; nil without one.
func (it *Item) Next() *Item { return it.next }

// Behind reports whether there is one before it in its lane.
func (it *Item) Behind() bool { return it.prev != nil }

// Principal reports whether it is the one of its message that stands for it, of those that are open.
func (it *Item) Principal() bool {
	for other := range it.Message.items {
		if other.open() {
			return other == it
		}
	}
	return false
}

// Waiters calls f for each message that waits for a file: held itself, or only its confirmation. since and until are
// when it began and ends.
func (c *Core) Waiters(now time.Duration, f func(m *Message, held bool, since, until time.Duration)) {
	shift := now - c.files.clock(now)
	for _, waiting := range []duequeue.Heap[*waiter]{c.files.held, c.files.awaiting} {
		for _, w := range waiting {
			f(w.m, w.held, w.since+shift, w.until+shift)
		}
	}
}

// Unheard reports whether nothing is known of a message but perhaps that it was confirmed.
func (c *Core) Unheard(id ID) bool {
	e := c.ledger.get(id)
	return c.files.byID[id] == nil && (e == nil || e.state == confirmed)
}

// Moves reports whether anything gets on by itself, or by an attempt that is due by then.
func (c *Core) Moves(due time.Duration) bool {
	if len(c.queue) > 0 && c.queue[0].at <= due {
		return true
	}
	for l := range c.window.lanes {
		for it := range l.Items {
			if it.state == handed || it.ready() && !l.Route.ended || it.Message.Fetching && it.moving {
				return true
			}
			if l.Route.ordered {
				break
			}
		}
	}
	return false
}

// Settled reports whether m, which is closed, was acked by all who wanted it.
func (m *Message) Settled() bool { return !m.left }

// Handed returns the items of r that handlers have.
func (c *Core) Handed(r *Route) []*Item {
	return slices.DeleteFunc(r.collect(), func(it *Item) bool { return it.state != handed })
}

// HastenAll makes all items of m due that wait.
func (c *Core) HastenAll(now time.Duration, m *Message) {
	for it := range m.items {
		c.Hasten(now, it)
	}
}

// Shut calls f for each route, and each tenant of one, for which nothing is taken until the next connection, or nothing of some keys
// and which gets on with none: with how much of it is open, and since when it has finished nothing, or has had its oldest if that came later.
func (c *Core) Shut(now time.Duration, f func(r *Route, tenant string, open int, since time.Duration)) {
	for _, r := range c.window.routes {
		if r.shut {
			f(r, "", r.open, since(now, &r.node, r.each))
		}
		for t := r.first; t != nil; t = t.next {
			b := branch{&t.node, t.first}
			if since := since(now, &t.node, b.lanes); t.shut || b.anyShut() && (!r.ordered || now-since >= stall) {
				f(r, t.name, t.open, since)
			}
		}
	}
}

func (b branch) anyShut() bool {
	for l := range b.lanes {
		if l.shut {
			return true
		}
	}
	return false
}

// since is that of [Core.Shut], of a node with the lanes below it.
func since(now time.Duration, n *node, lanes iter.Seq[*Lane]) time.Duration {
	oldest := now
	for l := range lanes {
		oldest = min(oldest, l.oldest(now))
	}
	return max(n.done, oldest)
}

// SetAside returns how many messages are set aside, and since when the oldest waits, those included that have come again
// and are not acked yet; zero if there is none.
func (c *Core) SetAside() (n int, oldest time.Duration) {
	for id, at := range c.ledger.aside {
		if e := c.ledger.get(id); e != nil && e.state == left {
			n++
		}
		if oldest == 0 || at < oldest {
			oldest = at
		}
	}
	return n, oldest
}
