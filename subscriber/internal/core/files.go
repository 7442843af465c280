package core

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/duequeue"
)

// partWait is how long the confirmation of what may be a part of a file waits for the file.
const partWait = 10 * time.Second

// files has what waits for its file: messages that nobody gets before, and confirmations of messages that may be parts.
// Once all parts of a file are confirmed, the service takes the file for confirmed as well, and never delivers it.
//
// Its clock stands still while the file may be the next event on the stream: when there is no room, or no stream.
type files struct {
	cfg      Config
	held     duequeue.Heap[*waiter] // messages
	awaiting duequeue.Heap[*waiter] // confirmations
	byID     map[ID]*waiter
	bytes    int64          // of what is held
	heldOf   map[uint64]int // how many are held of each family
	families families
	over     bool // there were more than can be held, which were left with the service
	starved  bool // there is no room for what no file has come for

	stopped time.Duration // when the clock was stopped; zero while it runs
	skipped time.Duration // for how long it stood still
}

// waiter is what waits for a file.
type waiter struct {
	m     *Message
	held  bool // and not a confirmation
	whole bool // probably no part of a file
	// absent says that the stream was opened, and has not come to the message yet: what was left of its key comes first.
	absent bool
	since  time.Duration
	until  time.Duration
	place  int // in its queue; zero when it is no longer there
}

// Sooner sorts those of the same time by age.
func (w *waiter) Sooner(than *waiter) bool {
	return w.until < than.until || w.until == than.until && w.since < than.since
}

func (w *waiter) SetPlace(place int) { w.place = place }

func (f *files) init(cfg Config) {
	f.cfg, f.byID, f.heldOf = cfg, make(map[ID]*waiter), make(map[uint64]int)
}

// clock returns the time of what waits.
func (f *files) clock(now time.Duration) time.Duration {
	if f.stopped != 0 {
		now = f.stopped
	}
	return now - f.skipped
}

func (f *files) pause(now time.Duration) {
	if f.stopped == 0 {
		f.stopped = now
	}
}

func (f *files) resume(now time.Duration) {
	if f.stopped != 0 {
		f.skipped += now - f.stopped
		f.stopped = 0
	}
}

// renew takes in that the stream begins again. It gives confirmations that wait their whole time once more.
func (f *files) renew(now time.Duration) {
	for _, w := range f.held {
		w.absent = true
	}
	for _, w := range f.awaiting {
		w.until = f.clock(now) + partWait
	}
	slices.SortFunc(f.awaiting, func(a, b *waiter) int { return cmp.Compare(a.since, b.since) })
	for i, w := range f.awaiting {
		w.SetPlace(i + 1)
	}
}

// next returns when something stops to wait; zero for never.
func (f *files) next() (at time.Duration) {
	switch {
	case f.tooManyAwait():
		return time.Nanosecond // at once
	case f.stopped != 0:
		return 0
	case len(f.awaiting) > 0:
		at = f.awaiting[0].until + f.skipped
	}
	if len(f.held) > 0 && !f.starved && (at == 0 || f.held[0].until+f.skipped < at) {
		at = f.held[0].until + f.skipped
	}
	return at
}

func (f *files) tooManyAwait() bool { return len(f.awaiting) > f.cfg.MaxHeld }

// queue returns that of w.
func (f *files) queue(w *waiter) *duequeue.Heap[*waiter] {
	if w.held {
		return &f.held
	}
	return &f.awaiting
}

func (f *files) add(w *waiter) {
	f.byID[w.m.IDs[0]] = w
	if w.held {
		f.bytes += w.m.Bytes
		f.heldOf[w.m.Family]++
	}
	f.queue(w).Put(w)
}

func (f *files) remove(w *waiter) {
	if w.place > 0 {
		f.queue(w).Take(w.place)
	}
	delete(f.byID, w.m.IDs[0])
	if w.held {
		f.bytes -= w.m.Bytes
		if f.heldOf[w.m.Family]--; f.heldOf[w.m.Family] == 0 {
			delete(f.heldOf, w.m.Family)
		}
	}
}

// drop removes what waits of the parts of m: they come again with it.
func (f *files) drop(m *Message) {
	for i := range m.IDs {
		if w := f.byID[m.IDs[i]]; w != nil {
			f.remove(w)
		}
	}
}

// claim takes in that m is opened: a file stands for what waits of its parts, and what was held is held no longer.
func (f *files) claim(m *Message) {
	if len(f.byID) == 0 {
		return
	}
	for i := range m.IDs {
		w := f.byID[m.IDs[i]]
		if w == nil {
			continue
		}
		f.remove(w)
		if m.File != nil && w.held {
			m.File.Part = w.m
		}
	}
}

// hold has m wait for its file.
func (c *Core) hold(now time.Duration, m *Message) Taken {
	f := &c.files
	if w := f.byID[m.IDs[0]]; w != nil {
		w.absent = false
		return Joined
	}
	if held := len(f.held); held >= c.cfg.MaxHeld || held > 0 && f.bytes+m.Bytes > c.cfg.MaxBytes {
		f.over = true
		return LeftWithService
	}
	w := &waiter{m: m, held: true, since: f.clock(now), whole: !m.Large && f.heldOf[m.Family] == 0}
	w.until = w.since + c.cfg.Hold
	if w.whole {
		w.until = w.since + min(c.cfg.HoldWhole, c.cfg.Hold)
	}
	f.add(w)
	return Held
}

// maybePart reports whether m, which is acked by all, may be a part of a file that somebody takes.
func (f *files) maybePart(m *Message) bool {
	return f.cfg.FileTaken && m.File == nil && !m.waited && (m.Large || f.families.several(m.Family))
}

// await has the confirmation of m wait for a file. If too many wait, the oldest are sent early.
func (c *Core) await(now time.Duration, m *Message) {
	c.ledger.await(m)
	f := &c.files
	w := &waiter{m: m, since: f.clock(now)}
	w.until = w.since + partWait
	f.add(w)
}

// wakeFiles ends the wait of what has waited long enough.
func (c *Core) wakeFiles(now time.Duration) {
	f := &c.files
	for f.tooManyAwait() {
		c.effects.Released++
		c.endWait(now, f.awaiting[0])
	}
	for f.stopped == 0 && len(f.awaiting) > 0 && f.awaiting[0].until <= f.clock(now) {
		c.endWait(now, f.awaiting[0])
	}
	for f.stopped == 0 && !f.starved && len(f.held) > 0 && f.held[0].until <= f.clock(now) {
		w := f.held[0]
		switch {
		case w.absent: // it is held anew when it comes
			f.remove(w)
		case w.whole && f.heldOf[w.m.Family] > 1: // others have come: it is a part after all
			w.whole, w.until = false, w.since+c.cfg.Hold
			f.held.Fix(1)
		default:
			c.unclaimed(now, w)
		}
	}
	if f.over && len(f.held) == 0 {
		f.over = false
		c.Want(now)
	}
}

// unclaimed gives out what no file has come for. If nobody takes it now, it comes again.
func (c *Core) unclaimed(now time.Duration, w *waiter) {
	m, f := w.m, &c.files
	m.waited = !w.whole
	wanted := c.window.wanted(m)
	if len(wanted) == 0 { // all who wanted it have ended
		f.remove(w)
		c.leaves(now)
		return
	}
	switch c.take(now, m, nil, wanted) {
	case Full:
		f.starved = true
		return
	case Opened:
		c.effects.Unclaimed = append(c.effects.Unclaimed, m)
	default:
	}
	if f.byID[m.IDs[0]] == w {
		f.remove(w)
	}
}

// endWait has the confirmation of w sent although no file has come.
func (c *Core) endWait(now time.Duration, w *waiter) {
	c.files.remove(w)
	c.ledger.resume(w.m)
	c.settle(now, w.m)
	if c.holdBack(now, w.m); len(w.m.Confirm) > 0 {
		c.effects.Confirm = append(c.effects.Confirm, w.m)
	}
}

// families knows which payloads came in several messages, for each family the hash of the first one, and zero once there are
// several. The families of one generation, from the latest message on, are remembered at least.
type families struct{ young, old map[uint64]uint64 }

const generation = 1 << 14

// add records that m, which is new, has come.
func (f *families) add(m *Message) {
	if m.File != nil || len(m.IDs) == 0 {
		return
	}
	if f.young == nil {
		f.young, f.old = make(map[uint64]uint64), make(map[uint64]uint64)
	}
	if len(f.young) >= generation {
		f.young, f.old = f.old, f.young
		clear(f.young)
	}
	id := &m.IDs[0]
	message := binary.LittleEndian.Uint64(id[16:24]) ^ binary.LittleEndian.Uint64(id[24:32]) | 1
	if first, known := f.first(m.Family); known && first != message {
		message = 0
	}
	f.young[m.Family] = message
}

func (f *families) first(family uint64) (message uint64, known bool) {
	if message, known = f.young[family]; !known {
		message, known = f.old[family]
	}
	return message, known
}

// several reports whether more than one message of the family has come.
func (f *families) several(family uint64) bool {
	message, known := f.first(family)
	return known && message == 0
}
