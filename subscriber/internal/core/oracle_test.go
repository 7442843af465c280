package core

import (
	"fmt"
	"slices"
	"time"
)

// oracle judges a Core by what goes in and the effects that come out, and by nothing else.
type oracle struct {
	w      *world
	cfg    Config
	fault  func(problem string)
	takers []*taker
	lines  map[lineOf]*line
	seq    int
	// forgets says that the Core remembers less than there is, so there may be copies.
	forgets bool

	open      int   // messages that somebody has
	openBytes int64 // theirs
	openIDs   int
	forced    int   // of them, those that had to fit
	largest   int64 // of what was open
	asked     int   // confirmations that are under way
}

// taker is a route.
type taker struct {
	name      string
	route     *Route
	wants     func(*sent) bool
	pipelines bool
	horizon   *Horizon // of what it stores; nil without one
	ended     int      // when it did; zero while it has not
	busy      int      // messages that its handlers have
	busyLines int      // in so many lines
}

// judged is what the oracle knows of an event.
type judged struct {
	came   bool
	duties []*duty  // one for each route that was to get it
	opened *Message // what somebody has of it
	since  int      // when that was opened
	bytes  int64    // of that, as counted
	last   int      // when it came last
	whole  bool     // it was acked by all who had to, and is confirmed, or waits for a file
	asked  bool     // it was to be confirmed
	stored bool     // in the quarantine
	again  bool     // what was stored of it may be lost, and it has not come since: it does, for the sake of that of which this is known
	waits  bool     // its confirmation waits until what was stored survives a power cut: nothing takes that back
	filed  bool     // it was stored with a file of which that is unknown for another part: it is asked about this one, too
}

// duty is what a route has to do with an event.
type duty struct {
	m        *sent
	t        *taker
	line     *line
	seq      int
	item     *Item
	has      bool // a handler has it
	since    time.Duration
	placed   bool
	acked    bool
	refused  bool
	steps    bool // out of the order: it was given up
	earliest time.Duration
	durable  time.Duration // when what it stored may survive a power cut, if it has acked it
	first    int           // when a handler got it first, since it came
	// How many messages behind it may be stored before it, at least and at most.
	passed, passedMost int
}

type lineOf struct {
	t   *taker
	key string
}

// line is the messages of a key in a route.
type line struct {
	duties []*duty // that were not done when last looked at, in the order in which they came up
	busy   int
	failed bool  // nothing more until all that handlers have are settled
	alone  bool  // until one is acked, what failed is tried alone
	retry  *duty // this one
}

func (o *oracle) init(w *world, cfg Config) {
	o.w, o.cfg, o.lines = w, cfg, make(map[lineOf]*line)
}

func (o *oracle) wrong(format string, args ...any) { o.fault(fmt.Sprintf(format, args...)) }

func (m *sent) duty(t *taker) *duty {
	for _, d := range m.duties {
		if d.t == t {
			return d
		}
	}
	return nil
}

// oblige has every route that wants m get it.
func (o *oracle) oblige(m *sent) {
	for _, t := range o.takers {
		if !t.wants(m) || m.duty(t) != nil {
			continue
		}
		at := lineOf{t, m.key}
		l := o.lines[at]
		if l == nil {
			l = new(line)
			o.lines[at] = l
		}
		o.seq++
		d := &duty{m: m, t: t, line: l, seq: o.seq}
		l.duties = append(l.duties, d)
		m.duties = append(m.duties, d)
	}
}

// taken takes in what became of an event that came.
func (o *oracle) taken(m *sent, event *Message, taken Taken) {
	wanted := slices.ContainsFunc(o.takers, func(t *taker) bool { return t.wants(m) })
	switch taken {
	case Full:
		return
	case Untaken:
		if wanted && !m.done() {
			o.wrong("%d is wanted, and nobody gets it", m.number)
		}
		return
	case Held:
		if !event.Hold {
			o.wrong("%d is held", m.number)
		}
	case LeftWithService:
		if !event.Hold || m.opened != nil {
			o.oblige(m)
		}
		if m.once {
			o.wrong("%d, which never comes again, is left", m.number)
		}
	case Opened:
		o.begin(m, event)
	case Joined:
		if m.opened != nil || len(m.duties) > 0 && !m.whole && !m.asked {
			o.oblige(m)
		}
	}
	o.seq++
	m.came, m.last = true, o.seq
}

// begin takes in that event was given to those who want it.
func (o *oracle) begin(m *sent, event *Message) {
	if m.opened == nil {
		o.seq++
		m.opened, m.since, m.again = event, o.seq, false
		o.open++
		if event.Last {
			o.forced++
		}
		o.openIDs += len(event.IDs)
		for _, d := range m.duties {
			d.refused = false
		}
		m.whole = false
		o.resize(m, event.Bytes)
	}
	for _, d := range m.duties {
		d.earliest = 0
	}
	o.oblige(m)
}

// resize takes in how many bytes the open message of m has.
func (o *oracle) resize(m *sent, bytes int64) {
	o.openBytes += bytes - m.judged.bytes
	m.judged.bytes = bytes
	o.largest = max(o.largest, bytes)
}

// unclaimed takes in that no file has come for event.
func (o *oracle) unclaimed(event *Message) { o.begin(event.Owner.(*sent), event) }

// handed takes in that a handler gets it.
func (o *oracle) handed(it *Item) {
	m, t := it.Message.Owner.(*sent), it.Lane.Route.Owner.(*taker)
	d := m.duty(t)
	switch {
	case d == nil:
		o.wrong("route %s is not to get %d", t.name, m.number)
	case t.ended != 0:
		o.wrong("route %s has ended, and gets %d", t.name, m.number)
	case d.acked && !o.forgets:
		o.wrong("route %s has acked %d, and gets it again", t.name, m.number)
	case d.has:
		o.wrong("route %s has %d, and gets it again", t.name, m.number)
	case m.opened != it.Message:
		o.wrong("route %s gets %d, which nobody has", t.name, m.number)
	case m.kind == "fetched" && !m.fetched:
		o.wrong("route %s gets %d without its payload", t.name, m.number)
	case d.item == it && o.w.now < d.earliest && (!t.pipelines || !it.Behind()):
		o.wrong("route %s gets %d at %s again, not at %s", t.name, m.number, o.w.now, d.earliest)
	}
	if m.kind == "held" && len(m.parts) == 0 {
		o.checkFile(m, t)
	}
	if d.item != it {
		o.seq++
		d.item, d.passed, d.first = it, 0, o.seq
	}
	if n := int(it.Overtaken); n < d.passed || n > d.passedMost {
		o.wrong("%d was overtaken by %d to %d, not by %d", m.number, d.passed, d.passedMost, it.Overtaken)
	}
	if o.cfg.Ordered {
		o.checkOrder(d)
	}
	d.has, d.placed, d.since = true, false, o.w.now
	if d.line.busy++; d.line.busy == 1 {
		t.busyLines++
	}
	t.busy++
	if most := o.cfg.MaxInFlight - max(1, o.cfg.MaxInFlight/8); o.cfg.Ordered && t.busy-t.busyLines > most {
		o.wrong("%d are on their way behind others in route %s", t.busy-t.busyLines, t.name)
	}
	if o.w.traced {
		o.w.say("route %s gets %d", t.name, m.number)
	}
}

// checkFile reports it when t gets a part although it has acked the file.
func (o *oracle) checkFile(part *sent, t *taker) {
	for _, f := range part.files {
		if d := f.duty(t); d != nil && d.acked && f.whole && !o.forgets {
			o.wrong("route %s has acked file %d, and gets its part %d", t.name, f.number, part.number)
		}
	}
}

// checkOrder reports it when something before d in its line is not done.
func (o *oracle) checkOrder(d *duty) {
	l := d.line
	if l.busy > 0 && (l.failed || !d.t.pipelines || l.retry != nil && l.retry.has) {
		o.wrong("route %s gets %d beside another of its key", d.t.name, d.m.number)
	}
	if l.busy == 0 {
		l.failed = false
	}
	l.duties = slices.DeleteFunc(l.duties, func(d *duty) bool { return d.acked && !d.has || d.m.done() })
	for _, before := range l.duties {
		if d.m.once { // it cannot wait for what was left
			break
		}
		if before == d || before.steps || before.m.number > d.m.number || before.seq > d.seq || d.t.pipelines && before.has && before.placed || before.acked {
			continue
		}
		o.wrong("%d overtakes %d in route %s", d.m.number, before.m.number, d.t.name)
	}
	if d.t.pipelines && l.alone && d.earliest > 0 {
		l.retry = d
	} else if l.retry == d { // it was left, and came again
		l.retry, l.alone = nil, false
	}
}

// placed takes in that it has its place.
func (o *oracle) placed(it *Item) {
	it.Message.Owner.(*sent).duty(it.Lane.Route.Owner.(*taker)).placed = true
}

// ended takes in the outcome of it.
func (o *oracle) ended(it *Item, outcome Outcome, refused bool, after time.Duration) {
	t := it.Lane.Route.Owner.(*taker)
	d := it.Message.Owner.(*sent).duty(t)
	d.has = false
	if t.pipelines && it.Begun {
		for _, before := range d.line.duties {
			if before != d && !before.acked {
				before.passedMost++
			}
			if !d.m.once && // which waits for nothing that was left: see checkOrder
				before.item != nil && before.m.opened == before.item.Message && before.first < d.first && before.m.number < d.m.number && before.m.since < d.m.since && !before.acked {
				before.passed++
			}
		}
	}
	t.busy--
	if d.line.busy--; d.line.busy == 0 {
		t.busyLines--
	}
	switch outcome {
	case Acked:
		d.acked, d.refused = !refused, refused
		if t.horizon != nil && !refused {
			d.durable = o.w.now + t.horizon.After
		}
		if refused {
			d.steps = true
		}
		d.line.alone, d.line.retry = false, nil
	case Nacked:
		d.earliest = o.w.now + after
		d.line.failed, d.line.alone = d.line.busy > 0, true
	case Left:
		d.steps = true
		d.line.retry = nil
	}
}

// closed takes in that nobody has event any longer.
func (o *oracle) closed(event *Message) {
	m := event.Owner.(*sent)
	if m.opened == event {
		o.open--
		o.openIDs -= len(event.IDs)
		o.resize(m, 0)
		m.opened = nil
		if event.Last {
			o.forced--
		}
	}
	m.whole = !slices.ContainsFunc(m.duties, func(d *duty) bool { return !d.settled() })
	for i, id := range event.IDs {
		of, e := o.w.byID[id], o.w.core.ledger.at(event.slots()[i])
		asked := of.judged.asked || slices.ContainsFunc(event.Confirm, func(c Confirmation) bool { return int(c.Index) == i })
		if e.id == id && e.state == confirming && !asked && !of.waits {
			of.waits = true
			o.checkAcked(of)
		}
	}
}

// settled reports whether nothing has to be waited for.
func (d *duty) settled() bool {
	return d.acked || d.refused || d.t.ended != 0 && d.m.last > d.t.ended
}

// confirms takes in that m is to be confirmed.
func (o *oracle) confirms(m *sent) {
	o.asked++
	if m.judged.asked {
		return // rightly so, and nothing takes that back
	}
	m.judged.asked = true
	if !m.waits {
		o.checkAcked(m)
	}
	m.waits = false
	for _, of := range append([]*sent{m}, m.files...) {
		for _, d := range of.duties {
			if d.acked && o.w.now < d.durable {
				o.wrong("%d is to be confirmed, but what route %s has stored of %d survives no power cut before %s", m.number, d.t.name, of.number, d.durable)
			}
		}
	}
}

// checkAcked reports it when m is to be confirmed, and may not be: now, or when what was stored survives a power cut.
func (o *oracle) checkAcked(m *sent) {
	some, really := false, false
	check := func(of *sent, now bool) {
		for _, d := range of.duties {
			some, really = some || d.acked || d.refused, really || d.acked || of.stored
			if now && (d.has || !d.settled()) {
				o.wrong("%d is to be confirmed, but route %s has not acked %d", m.number, d.t.name, of.number)
			}
		}
	}
	check(m, true)
	for _, f := range m.files {
		if f.again {
			continue
		}
		check(f, f.opened != nil || f.last > m.last) // else it came again without the file
	}
	if filed := m.waits && m.filed; !filed && (!some || o.cfg.Quarantines && !really) {
		o.wrong("%d is to be confirmed, and nobody has acked it", m.number)
	}
}

// maybeLost takes in that what was stored of m may be lost: all get it again, and what has it.
func (o *oracle) maybeLost(m *sent) {
	for _, of := range append([]*sent{m}, m.files...) {
		if of.opened != nil { // what was stored of it is asked about when it is closed
			continue
		}
		if slices.ContainsFunc(of.duties, func(d *duty) bool { return d.acked }) {
			for _, part := range of.parts {
				part.filed = true
			}
		}
		for _, d := range of.duties {
			if !d.has {
				d.acked, d.refused, d.steps, d.durable, d.item = false, false, true, 0, nil
				if !slices.Contains(d.line.duties, d) {
					d.line.duties = append(d.line.duties, d)
				}
			}
		}
		of.whole, of.again = false, true
	}
	m.judged.asked, m.waits, m.filed = false, false, false
}

// accepted takes in that a confirmation is over.
func (o *oracle) accepted() { o.asked-- }

// checkCaps reports it when more is open than may be. As many as fit may move, four times as many wait: twice as many
// of those that are shut out, and of others. The same is true of bytes, but that one larger than those fits alone.
func (o *oracle) checkCaps() {
	c := o.w.core.Counts()
	if o.open > 5*o.cfg.MaxInFlight+1+o.forced || o.openBytes > 5*o.cfg.MaxBytes+int64(2+o.forced)*o.largest {
		for _, m := range o.w.sent {
			if m.opened != nil {
				o.w.say("%d is open, with %d bytes, of %d, %v", m.number, m.judged.bytes, m.opened.Bytes, m.opened.Last)
			}
		}
		o.wrong("%d messages are open, with %d bytes", o.open, o.openBytes)
	}
	if c.Moving+c.Waiting != o.open || c.Moving > o.cfg.MaxInFlight+1+o.forced {
		o.wrong("%d move and %d wait, of %d", c.Moving, c.Waiting, o.open)
	}
	if o.asked > 2*o.cfg.MaxUnconfirmed+5*o.cfg.MaxInFlight*6+o.cfg.MaxUnsynced {
		o.wrong("%d are not confirmed", o.asked)
	}
	if most := o.cfg.MaxUnsynced + 5*o.cfg.MaxInFlight*6; c.Unsynced > most {
		o.wrong("%d are not synced", c.Unsynced)
	}
	if c.Held > o.cfg.MaxHeld || c.Awaiting > o.cfg.MaxHeld && o.w.core.NextWake() > o.w.now {
		o.wrong("%d and %d wait for files", c.Held, c.Awaiting)
	}
}

// unfinished returns what is not over; nil if there is nothing.
func (o *oracle) unfinished() *sent {
	for _, m := range o.w.sent {
		switch {
		case m.once:
			if !m.came || slices.ContainsFunc(m.duties, func(d *duty) bool { return !d.acked && !d.refused && !d.steps && d.t.ended == 0 }) {
				return m
			}
		case !m.done() && slices.ContainsFunc(o.takers, func(t *taker) bool { return t.wants(m) }):
			return m
		}
	}
	return nil
}

// checkEnd reports it when anything is left.
func (o *oracle) checkEnd() {
	c := o.w.core.Counts()
	c.Left = 0
	if c != (Counts{}) || o.open != 0 || o.openBytes != 0 || o.asked != 0 {
		o.wrong("at the end there are %+v, and %d open", c, o.open)
	}
	for l := range o.w.core.Lanes {
		o.wrong("at the end there is a lane for %s", l.Key)
	}
	if n, at := o.w.core.SetAside(); n != 0 || at != 0 {
		for id := range o.w.core.ledger.aside {
			o.w.say("%d is set aside", o.w.byID[id].number)
		}
		o.wrong("at the end, %d are set aside", n)
	}
}
