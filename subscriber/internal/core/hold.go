package core

import (
	"math/bits"
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
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

// stored says which routes have stored a message, and since when it was on its way there; zero if none has that makes it wait.
type stored struct {
	by    *Horizon
	began time.Duration
}

// Names is how the service writes an ID, and the tenant of its message.
type Names struct {
	Tenant            string
	Endpoint, Message string // empty: as usual
}

// Hold is what the same routes have stored at about the same time: its confirmations wait until that survives a power cut, and so
// do the records of a route that it has stored it. It has no more of a message than its ID.
type Hold struct {
	stored
	acked time.Duration // all was stored by then
	until time.Duration // when it is no longer filled
	due   time.Duration
	waits []held
	names []*Names         // each once
	known map[*Names]int32 // their places; nil once it is no longer filled

	records map[msgctx.Recorder][][2][16]byte // a field for each message took a tenth more memory
}

// held is one confirmation that waits. Its slot is not used again before it is confirmed, or lost.
type held struct {
	slot, names int32
}

// Horizon returns who has to be asked.
func (h *Hold) Horizon() *Horizon { return h.by }

// Stored returns since when the first of its messages was on its way to be stored, and when all were.
func (h *Hold) Stored() (began, acked time.Duration) { return h.began, h.acked }

// Record records what it has, which survives a power cut.
func (h *Hold) Record() {
	for into, all := range h.records {
		for _, keys := range all {
			into.Record(keys)
		}
	}
}

// Len returns how many confirmations wait.
func (h *Hold) Len() int { return len(h.waits) }

// Sooner is for the heap of the holds.
func (h *Hold) Sooner(than *Hold) bool { return h.due < than.due }

// SetPlace does nothing: a hold is taken out when it is due only.
func (h *Hold) SetPlace(int) {}

// slack is how long a Hold is filled, so that one question is about many messages.
const slack = 100 * time.Millisecond

// filling names the Hold that is filled by those that were on their way for about as long.
type filling struct {
	by  *Horizon
	age int // in bits of slack
}

// Stored says that the route of it, which was handed out, has stored the message since began, and that it survives a power cut
// from h on. The Acked that follows is confirmed then, and records are recorded.
func (c *Core) Stored(now time.Duration, it *Item, h *Horizon, began time.Duration, records []msgctx.Record) {
	s := stored{h, began}
	it.Message.stored = c.joined(it.Message.stored, s)
	for _, r := range records {
		hold := c.fill(now, s)
		if hold.records == nil {
			hold.records = make(map[msgctx.Recorder][][2][16]byte)
		}
		hold.records[r.Into] = append(hold.records[r.Into], r.Keys)
	}
}

// joined is a and b together: the earlier begin, and all routes.
func (c *Core) joined(a, b stored) stored {
	switch {
	case a.by == nil:
		return b
	case b.by == nil:
		return a
	}
	return stored{c.both(a.by, b.by), min(a.began, b.began)}
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
	if m.stored.by == nil || m.File == nil && len(m.Confirm) > 0 {
		return
	}
	for i, slot := range m.slots() {
		switch e := c.ledger.at(slot); e.state {
		case left, open, awaiting, confirming:
			c.ledger.stored[m.IDs[i]] = c.joined(c.ledger.stored[m.IDs[i]], m.stored)
		default:
		}
	}
}

// holdBack has those confirmations of m wait that have to, and takes them out of m.Confirm.
func (c *Core) holdBack(now time.Duration, m *Message) {
	if m.stored.by == nil && len(c.ledger.stored) == 0 {
		return
	}
	m.Confirm = slices.DeleteFunc(m.Confirm, func(one Confirmation) bool {
		id := m.IDs[one.Index]
		s := c.joined(m.stored, c.ledger.stored[id])
		delete(c.ledger.stored, id)
		if s.by == nil {
			return false
		}
		c.held++
		c.putOnHold(now, s, one.entry.slot, c.cfg.Names(m, one.Index))
		return true
	})
}

// fill returns the Hold for what was stored.
func (c *Core) fill(now time.Duration, s stored) *Hold {
	key := filling{s.by, bits.Len64(uint64((now - s.began) / slack))}
	h := c.filling[key]
	if h == nil || now > h.until {
		if h != nil {
			h.known = nil
		}
		h = &Hold{stored: s, until: now + slack, due: now + slack + s.by.After, known: make(map[*Names]int32)}
		if c.filling == nil {
			c.filling = make(map[filling]*Hold)
		}
		c.filling[key] = h
		c.holds.Put(h)
	}
	h.began, h.acked = min(h.began, s.began), now
	return h
}

// putOnHold has a confirmation wait.
func (c *Core) putOnHold(now time.Duration, s stored, slot int32, names *Names) {
	h := c.fill(now, s)
	place, known := h.known[names]
	if !known {
		place = int32(len(h.names))
		h.names, h.known[names] = append(h.names, names), place
	}
	h.waits = append(h.waits, held{slot, place})
}

// wakeHolds asks about those that are due.
func (c *Core) wakeHolds(now time.Duration) {
	for len(c.holds) > 0 && c.holds[0].due <= now {
		c.effects.Due = append(c.effects.Due, c.holds.Take(1))
	}
}

// Survives takes in that what h has, which was in Effects.Due, survives a power cut, and calls confirm for each message that is to be
// confirmed now. It is not if a file that has it has come meanwhile. If somebody has left that, both come again.
func (c *Core) Survives(now time.Duration, h *Hold, confirm func(ID, *Names, Confirmation)) {
	inFiles := &Hold{stored: h.stored, acked: h.acked, until: h.until, names: h.names}
	for _, w := range h.waits {
		e := c.ledger.at(w.slot)
		switch s, more := c.ledger.stored[e.id]; {
		case e.having > 0:
			inFiles.waits = append(inFiles.waits, w)
		case e.gone:
			c.mayBeLost(now, w)
		case more:
			delete(c.ledger.stored, e.id)
			c.putOnHold(now, c.joined(h.stored, s), w.slot, h.names[w.names])
		default:
			c.held--
			c.synced++
			confirm(e.id, h.names[w.names], Confirmation{entry: ref{w.slot, e.issue}, held: true})
		}
	}
	if len(inFiles.waits) > 0 {
		c.NotYet(now, inFiles, fileWait)
	}
}

// fileWait is how often a confirmation that could be sent looks whether the file that has come meanwhile is stored.
const fileWait = time.Second

// NotYet takes in that it is not known yet whether what h has, which was in Effects.Due, survives a power cut.
func (c *Core) NotYet(now time.Duration, h *Hold, after time.Duration) {
	h.due = now + after
	c.holds.Put(h)
}

// MayBeLost takes in that what h has, which was in Effects.Due, may not have survived a power cut: it comes again.
func (c *Core) MayBeLost(now time.Duration, h *Hold) {
	for _, w := range h.waits {
		c.mayBeLost(now, w)
	}
}

func (c *Core) mayBeLost(now time.Duration, w held) {
	c.held--
	c.room()
	c.ledger.lose(w.slot)
	c.leaves(now)
	c.Want(now)
}

// unsyncedFull reports whether as many confirmations wait, or have waited and are not confirmed yet, as may.
func (c *Core) unsyncedFull() bool {
	n := c.held + c.synced
	return n > 0 && n >= c.cfg.MaxUnsynced
}
