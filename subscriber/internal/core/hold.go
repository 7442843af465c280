package core

import (
	"slices"
	"time"
)

// Horizon is when what a route has stored survives a power cut.
type Horizon struct {
	// After is how long after its ack that is at the earliest.
	After time.Duration
	// Owner is of whoever made it: the one to ask whether it does by then.
	Owner any

	of []*Horizon // those that it stands for, if it is of several routes
}

// Owners calls f for the owner of each route that it stands for.
func (h *Horizon) Owners(f func(owner any)) {
	if h.of == nil {
		f(h.Owner)
	}
	for _, one := range h.of {
		f(one.Owner)
	}
}

// covers reports whether h stands for other as well.
func (h *Horizon) covers(other *Horizon) bool { return h == other || slices.Contains(h.of, other) }

// stored is when, and by which routes, a message was stored: between the two times.
type stored struct {
	by           *Horizon
	began, acked time.Duration
}

// Hold is a confirmation that waits until what was stored survives a power cut. It has no more of its message than its ID.
type Hold struct {
	stored
	// Names is what [Config.Names] returned, and Index the place of the message among its IDs.
	Names any
	Index int32
	entry ref
	due   time.Duration
}

// Horizon returns who has to be asked, and Stored when the message was on its way there and stored by all.
func (h *Hold) Horizon() *Horizon { return h.by }

// Stored returns when the message was on its way to be stored, and when it was stored by all.
func (h *Hold) Stored() (began, acked time.Duration) { return h.began, h.acked }

func (h Hold) sooner(than Hold) bool { return h.due < than.due }
func (h Hold) setPlace(int)          {} // it is taken out when it is due only

// Stored says that the route of it, which was handed out, has stored the message since began, and that it survives a power cut
// from h on. The Acked that follows is confirmed then.
func (c *Core) Stored(now time.Duration, it *Item, h *Horizon, began time.Duration) {
	it.Message.stored = c.joined(it.Message.stored, &stored{h, began, now})
}

// joined is a and b together: the earlier begin, the latest ack, and all routes. Either may be nil.
func (c *Core) joined(a, b *stored) *stored {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &stored{c.both(a.by, b.by), min(a.began, b.began), max(a.acked, b.acked)}
}

// both returns the horizon of two.
func (c *Core) both(a, b *Horizon) *Horizon {
	switch {
	case a.covers(b):
		return a
	case b.covers(a):
		return b
	}
	pair := [2]*Horizon{a, b}
	if known := c.horizons[pair]; known != nil {
		return known
	}
	h := &Horizon{After: max(a.After, b.After)}
	for _, one := range pair {
		if one.of == nil {
			h.of = append(h.of, one)
		}
		h.of = append(h.of, one.of...)
	}
	if c.horizons == nil {
		c.horizons = make(map[[2]*Horizon]*Horizon)
	}
	c.horizons[pair] = h
	return h
}

// keepStored keeps when what was stored of m survives a power cut, for what of it is not to be confirmed yet.
func (c *Core) keepStored(m *Message) {
	if m.stored == nil {
		return
	}
	for i, slot := range m.slots() {
		switch e := &c.ledger.entries[slot]; e.state {
		case left, open, awaiting, confirming:
			c.ledger.stored[m.IDs[i]] = c.joined(c.ledger.stored[m.IDs[i]], m.stored)
		default:
		}
	}
}

// holdBack has those confirmations of m wait that have to, and takes them out of m.Confirm.
func (c *Core) holdBack(now time.Duration, m *Message) {
	if m.stored == nil && len(c.ledger.stored) == 0 {
		return
	}
	m.Confirm = slices.DeleteFunc(m.Confirm, func(one Confirmation) bool {
		id := m.IDs[one.Index]
		s := c.joined(m.stored, c.ledger.stored[id])
		delete(c.ledger.stored, id)
		if s == nil {
			return false
		}
		c.held++
		c.holds.put(Hold{stored: *s, Names: c.cfg.Names(m), Index: one.Index, entry: one.entry, due: max(now, s.acked+s.by.After)})
		return true
	})
}

// wakeHolds asks about those confirmations that are due.
func (c *Core) wakeHolds(now time.Duration) {
	for len(c.holds) > 0 && c.holds[0].due <= now {
		c.effects.Due = append(c.effects.Due, c.holds.take(1))
	}
}

// Survives takes in that the message of h, which was in Effects.Due, survives a power cut. It is to be confirmed, with false
// not now: a file that has it has come meanwhile. If somebody has left that, both come again.
func (c *Core) Survives(now time.Duration, h *Hold) (ID, Confirmation, bool) {
	e := &c.ledger.entries[h.entry.slot]
	switch s, more := c.ledger.stored[e.id]; {
	case e.having > 0:
		c.NotYet(now, h, fileWait)
		return e.id, Confirmation{}, false
	case e.gone:
		c.MayBeLost(now, h)
		return e.id, Confirmation{}, false
	case more:
		delete(c.ledger.stored, e.id)
		h.stored = *c.joined(&h.stored, s)
		c.NotYet(now, h, max(0, h.acked+h.by.After-now))
		return e.id, Confirmation{}, false
	}
	c.held--
	c.synced++
	return e.id, Confirmation{Index: h.Index, entry: h.entry, held: true}, true
}

// fileWait is how often a confirmation that could be sent looks whether the file that has come meanwhile is stored.
const fileWait = time.Second

// NotYet takes in that it is not known yet whether the message of h, which was in Effects.Due, survives a power cut.
func (c *Core) NotYet(now time.Duration, h *Hold, after time.Duration) {
	h.due = now + after
	c.holds.put(*h)
}

// MayBeLost takes in that the message of h, which was in Effects.Due, may not have survived a power cut: it comes again.
func (c *Core) MayBeLost(now time.Duration, h *Hold) {
	c.held--
	c.room()
	c.ledger.lose(h.entry.slot)
	c.left++
	c.Want(now)
}

// unsyncedFull reports whether as many confirmations wait, or have waited and are not confirmed yet, as may.
func (c *Core) unsyncedFull() bool {
	n := c.held + c.synced
	return n > 0 && n >= c.cfg.MaxUnsynced
}
