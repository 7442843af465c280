package core

import "time"

// Taken is what became of an event that came.
type Taken int

const (
	// Opened: it is open for those routes that do not have it and have not acked it.
	Opened Taken = iota
	// Joined: it is open already, is about to be confirmed, or is held already. One that was confirmed before is in
	// Effects.Confirm.
	Joined
	// Held: it waits for its file.
	Held
	// LeftWithService: no route takes it now. The service delivers it again.
	LeftWithService
	// Untaken: no route wants it.
	Untaken
	// Full: there is no room for it. It is to be offered again after Effects.Room.
	Full
)

// Take takes in m, which has come on the stream. A message that is open already stays the one that it was; [Core.Open]
// returns it.
func (c *Core) Take(now time.Duration, m *Message) Taken {
	known, state := c.ledger.find(now, m)
	wanted := c.window.wanted(m)
	switch {
	case state == confirming:
		return Joined
	case state == confirmed:
		if c.ledger.again(m); len(m.Confirm) > 0 {
			c.effects.Confirm = append(c.effects.Confirm, m)
		}
		return Joined
	case len(wanted) == 0:
		return Untaken
	case known == nil && m.Hold && !c.ledger.wasGiven(m):
		return c.hold(now, m)
	}
	taken := c.take(now, m, known, wanted)
	if taken == Full {
		c.blocked = true
		c.files.pause(now) // the file may be the next event
		c.review(now)
	} else {
		c.files.resume(now)
	}
	return taken
}

// take gives m, or the one that is known in its place, to those of wanted who do not have it.
func (c *Core) take(now time.Duration, m, known *Message, wanted []*Route) Taken {
	if known == nil {
		known = m
	}
	acked := c.ledger.ackedBy(m)
	to, left := c.window.recipients(known, wanted, acked)
	switch {
	case len(to) == 0 && left:
		if known == m {
			c.ledger.leaveNew(m)
			c.files.drop(m)
		}
		known.left = true
		c.leaves(now)
		c.review(now)
		return LeftWithService
	case len(to) == 0 && known == m: // all who want it have acked it
		c.begin(now, m, acked)
		c.close(now, m, nil)
		return Joined
	case len(to) == 0:
		known.left = known.leftByOther(wanted)
		return Joined
	case !m.Last && (c.unsyncedFull() || !c.window.hasRoom(known)):
		return Full
	}
	if known == m {
		c.begin(now, m, acked)
		c.files.families.add(m)
	}
	for _, r := range to {
		c.open(now, known, r)
	}
	known.left = left || known.leftByOther(wanted)
	if left {
		c.review(now)
	}
	return Opened
}

// Open returns the message that is open with the identity of m; nil without one.
func (c *Core) Open(now time.Duration, m *Message) *Message {
	known, _ := c.ledger.find(now, m)
	return known
}

func (c *Core) begin(now time.Duration, m *Message, acked []*Route) {
	for _, r := range acked {
		m.add(Item{Message: m, route: r, state: finished, Opened: now})
	}
	c.files.claim(m)
	c.ledger.open(m)
}

func (c *Core) open(now time.Duration, m *Message, r *Route) {
	l := c.window.lane(r, m)
	it := m.add(Item{Message: m, Lane: l, route: r, Opened: now})
	l.push(it)
	c.window.add(it)
	c.offer(now, it)
}

// offer hands it out if its turn has come.
func (c *Core) offer(now time.Duration, it *Item) {
	if l := it.Lane; it.ready() && l.turnOf(it) {
		l.hand(now, it)
		c.effects.Start = append(c.effects.Start, it)
	}
}

// Outcome is what a route made of an item.
type Outcome int

const (
	// Acked: it is done.
	Acked Outcome = iota
	// Nacked: it is handed out again after a while.
	Nacked
	// Left: the route gives it up. The message stays with the service.
	Left
)

// Done takes in the outcome of an item that was handed out. after is how long a nacked one waits.
// It returns the next item that is handed out to whoever handled this one; nil if there is none.
func (c *Core) Done(now time.Duration, it *Item, outcome Outcome, after time.Duration) (next *Item) {
	l := it.Lane
	if outcome == Acked {
		l.pace = (now - it.at) / time.Duration(l.handed)
		if it.Nacks == 0 && !l.Route.beside {
			c.window.tempo.ack(now, it.Opened)
		}
	}
	l.settle(it, outcome)
	if outcome != Acked { // it has not got rid of it
		it.Refused = false
	}
	if outcome == Nacked && !l.Route.ordered && len(it.Message.IDs) > 0 && c.window.overShare(l) {
		outcome = Left
	}
	if outcome == Nacked && !l.Route.ended {
		if it.Nacks++; it.FirstNack == 0 {
			it.FirstNack = now
		}
		c.putOff(now, it, now+after)
	} else {
		c.finish(now, it, outcome)
		if l.Route.ended && outcome != Acked {
			c.leftBehind = true
			c.askForOthers(now)
		}
	}
	l.resume(c)
	if next = l.nextInTurn(); next != nil {
		l.hand(now, next)
	}
	c.released(now, l)
	return next
}

// Placed takes in that it, which was handed out by a route that pipelines, has its place behind those before it.
func (c *Core) Placed(now time.Duration, it *Item) {
	it.placed = true
	if next := it.next; next != nil {
		c.offer(now, next)
	}
}

// putOff has it handed out again when it is due.
func (c *Core) putOff(now time.Duration, it *Item, due time.Duration) {
	it.state = waiting
	c.wait(now, it)
	it.at = due
	c.queue.Put(it)
}

// wait counts it among those that wait.
func (c *Core) wait(now time.Duration, it *Item) {
	if it.moving {
		c.window.wait(it)
		c.room()
		c.reviewWaiting(now)
	}
}

// reviewWaiting has the window reviewed if too much waits.
func (c *Core) reviewWaiting(now time.Duration) {
	if c.window.tooManyWait() {
		c.review(now)
	}
}

// room lets an event that did not fit be offered again.
func (c *Core) room() {
	if c.blocked {
		c.blocked = false
		c.effects.Room = true
	}
	if c.files.starved {
		c.files.starved = false
	}
}

// leave leaves it, which no handler has, with the service.
func (c *Core) leave(now time.Duration, it *Item) {
	l := it.Lane
	if it.place > 0 {
		c.queue.Take(int(it.place))
	}
	c.finish(now, it, Left)
	if l.first != nil {
		c.offer(now, l.first)
	}
	c.released(now, l)
}

func (c *Core) finish(now time.Duration, it *Item, outcome Outcome) {
	m, l := it.Message, it.Lane
	l.remove(it)
	it.state, it.Lane = finished, nil
	if outcome != Acked {
		it.state, m.left = gaveUp, true
		if !m.Aside { // which is not asked for again
			c.leaves(now)
		}
	}
	c.window.remove(it, l)
	if m.place == nowhere {
		c.close(now, m, l)
	}
	if outcome == Acked && (m.place != nowhere || len(m.Confirm) == 0) {
		l.finished(now)
	}
}

// close takes in that no route has m any longer. What is to be confirmed goes on to count in l, which may be nil, as
// something that waits.
func (c *Core) close(now time.Duration, m *Message, l *Lane) {
	c.ledger.close(m)
	c.effects.Closed = append(c.effects.Closed, m)
	if len(m.Confirm) > 0 && c.files.maybePart(m) {
		c.await(now, m)
		c.keepStored(m)
		return
	}
	c.settle(now, m)
	c.keepStored(m)
	c.holdBack(now, m)
	if n := len(m.Confirm); n > 0 && l != nil {
		for i := range m.Confirm {
			m.Confirm[i].lane, m.Confirm[i].since = l, now
		}
		c.window.unconfirmed(now, l, n)
		c.reviewWaiting(now)
	}
}

// settle leaves out of what is to be confirmed of m what has to be asked for again.
func (c *Core) settle(now time.Duration, m *Message) {
	c.effects.Unmatched += c.ledger.settle(m)
	if c.ledger.asksAgain {
		c.ledger.asksAgain = false
		c.Want(now)
	}
}

// RefusedByAll reports whether everybody who got the message refused it, the route of it, which still has it, included,
// and something of it is nowhere else.
func (c *Core) RefusedByAll(it *Item) bool {
	m := it.Message
	for other := range m.items {
		if other.open() && !other.Refused {
			return false
		}
	}
	return !m.left && !m.acked() && c.ledger.untaken(m)
}

// Grow adds n bytes to the size of m, or takes some away.
func (c *Core) Grow(m *Message, n int64) {
	for it := range m.items {
		if it.open() {
			it.Lane.add(0, n)
		}
	}
	c.window.sum(m, 0, n)
	m.Bytes += n
	if n < 0 {
		c.room()
	}
}

// Fits reports whether n more bytes of m, which is open, fit. Those of the oldest message whose turn it is do, however
// many: all others wait for it in the end. Otherwise Effects.Room says when to ask again.
func (c *Core) Fits(now time.Duration, m *Message, n int64) bool {
	if m.place == nowhere || c.window.hasRoomFor(m, n) || c.window.nextToEnd(m) {
		return true
	}
	c.blocked, c.short = true, true
	c.review(now)
	return false
}

// Confirmed takes in that the service has accepted a confirmation, or never will.
func (c *Core) Confirmed(now time.Duration, confirmation Confirmation) {
	c.ledger.confirmed(now, confirmation.entry)
	if confirmation.held {
		c.synced--
		c.room()
	}
	if l := confirmation.lane; l != nil {
		c.window.confirmed(l, confirmation.since)
		l.finished(now)
		c.released(now, l)
	}
}

// released is called when something of l is no longer open.
func (c *Core) released(now time.Duration, l *Lane) {
	c.room()
	if c.window.workedOff(l) {
		c.wants, c.recallIn = true, recallAfter
		c.review(now)
	}
	l.reopenSpared()
	c.window.prune(l)
}

// Fetched takes in that the payload of m is there. Until then its items are not handed out.
func (c *Core) Fetched(now time.Duration, m *Message) {
	m.Fetching = false
	for it := range m.items {
		if it.state == queued {
			c.offer(now, it)
		}
	}
}

// Unfetched takes in that the payload of m cannot be had now: what needs it waits.
func (c *Core) Unfetched(now time.Duration, m *Message) {
	for it := range m.items {
		if it.state == queued {
			c.wait(now, it)
		}
	}
}

// Lost takes in that the payload of m cannot be had at all: the message is left with the service.
func (c *Core) Lost(now time.Duration, m *Message) {
	m.Fetching = false
	for it := range m.items {
		if it.state == queued || it.state == waiting {
			c.leave(now, it)
		}
	}
}

// Hasten makes it due, if it waits.
func (c *Core) Hasten(now time.Duration, it *Item) {
	if it.state == waiting {
		it.at = now
		c.queue.Fix(int(it.place))
	}
}
