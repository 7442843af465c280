package core

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const ms = time.Millisecond

// world is the gateway, the handlers and the time around a Core. Everything in it follows from its seed. Its oracle
// judges the Core.
type world struct {
	oracle
	now    time.Duration
	events timeline
	seq    int
	random *rand.Rand
	core   *Core
	wakeAt time.Duration

	sent        []*sent
	unconfirmed []*sent // in the order in which they were sent
	byID        map[ID]*sent
	position    int // of the connection in unconfirmed
	connection  int // odd while the stream is open
	connects    int
	readEvery   time.Duration
	reading     bool // an event is on its way, or did not fit
	coming      *sent
	full        *Message
	read        int
	blocked     []func() // downloads that wait for room

	handle  func(it *Item, m *sent) work    // what a handler does
	confirm func(m *sent) bool              // whether the service accepts it now
	fetch   func(m *sent, event *Message)   // fetches its payload
	again   func(m *sent) bool              // whether it comes although it was confirmed a moment ago
	settled func(m *sent)                   // the service has its confirmation
	quarry  func(it *Item, m *sent) Outcome // stores it in the quarantine
	synced  func(m *sent) verdict           // whether what was stored of it survives a power cut

	most   int // open at a time
	traced bool
	trace  []string
}

// work is what a handler does: how long it takes until the message has its place, and until its outcome.
type work struct {
	place, rest time.Duration
	places      bool // else it fails before it has its place
	begins      bool // and leaves something there nevertheless
	refuses     bool
	aside       bool
	waits       time.Duration // it is nacked until then
	outcome     Outcome
}

// verdict is whether what was stored survives a power cut.
type verdict int

const (
	survives verdict = iota
	notYet
	mayBeLost
)

func (w *world) say(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf("%14s ", w.now)+fmt.Sprintf(format, args...))
	}
}

// sent is an event that was sent.
type sent struct {
	id          ID
	tenant, key string
	number      int
	at          time.Duration
	confirmed   time.Duration // zero while it is not
	kind        string
	bytes       int64
	fetched     bool    // its payload is in the event
	once        bool    // it is never delivered again
	part        bool    // of a file
	payload     int     // the number of the first of its parts
	files       []*sent // that have it
	parts       []*sent // of a file
	judged
}

// family is the same for all parts of a file.
func (m *sent) family() uint64 {
	if m.part {
		return uint64(m.payload)
	}
	return uint64(m.number)
}

// done reports whether the service needs no confirmation of it any longer.
func (m *sent) done() bool {
	if len(m.parts) == 0 {
		return m.confirmed != 0
	}
	return !slices.ContainsFunc(m.parts, func(part *sent) bool { return part.confirmed == 0 })
}

type timer struct {
	at  time.Duration
	seq int
	do  func()
}

func (t *timer) before(other *timer) bool {
	return t.at < other.at || t.at == other.at && t.seq < other.seq
}

// timeline is a heap. Most of what a program does is to add and to remove a timer, which container/heap would allocate.
type timeline []timer

func (t *timeline) push(e timer) {
	*t = append(*t, e)
	q, i := *t, len(*t)-1
	for up := (i - 1) / 2; i > 0 && e.before(&q[up]); up = (i - 1) / 2 {
		q[i], i = q[up], up
	}
	q[i] = e
}

func (t *timeline) pop() timer {
	q, n := *t, len(*t)-1
	first, e := q[0], q[n]
	q[n] = timer{}
	*t = q[:n]
	i := 0
	for down := 1; down < n; down = 2*i + 1 {
		if down+1 < n && q[down+1].before(&q[down]) {
			down++
		}
		if e.before(&q[down]) {
			break
		}
		q[i], i = q[down], down
	}
	if n > 0 {
		q[i] = e
	}
	return first
}

func newWorld(cfg Config, seed uint64) *world {
	cfg.FileTaken, cfg.Names = true, func(m *Message, _ int32) *Names { return &Names{Tenant: m.Tenant} }
	w := &world{random: rand.New(rand.NewPCG(seed, 1)), core: New(cfg), byID: make(map[ID]*sent), readEvery: 20 * time.Microsecond, now: 1}
	w.oracle.init(w, cfg)
	w.settled = func(*sent) {}
	w.confirm = func(*sent) bool { return true }
	w.again = func(*sent) bool { return false }
	w.synced = func(*sent) verdict { return survives }
	return w
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	w.events.push(timer{w.now + d, w.seq, do})
}

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := w.events.pop()
		w.now = e.at
		e.do()
	}
	w.now = until
}

func newID(n int) (id ID) {
	binary.BigEndian.PutUint64(id[24:], uint64(n)+1)
	return id
}

// send sends a message.
func (w *world) send(m *sent) *sent {
	m.number, m.id, m.at = len(w.sent), newID(len(w.sent)), w.now
	if m.bytes == 0 {
		m.bytes = 100
	}
	w.sent = append(w.sent, m)
	w.unconfirmed = append(w.unconfirmed, m)
	w.byID[m.id] = m
	w.readOn()
	return m
}

// addRoute adds one, whose messages are those that it wants.
func (w *world) addRoute(name string, wants func(*sent) bool, pipelines bool) *taker {
	t := &taker{name: name, wants: wants, pipelines: pipelines && w.cfg.Ordered}
	route, _ := w.core.Add(w.now, name, func(m *Message) bool { return wants(m.Owner.(*sent)) }, pipelines)
	route.Owner, t.route = t, route
	w.takers = append(w.takers, t)
	for _, m := range w.sent {
		has := func(d *duty) bool {
			return d.t.ended == 0 && !d.acked && !d.refused && d.item != nil && d.item.Message == m.opened
		}
		if m.opened != nil && !m.once && wants(m) && slices.ContainsFunc(m.duties, has) { // it comes again, and before others
			w.oblige(m)
		}
	}
	return t
}

func (w *world) endRoute(t *taker) {
	w.takers = slices.DeleteFunc(w.takers, func(other *taker) bool { return other == t })
	w.oracle.seq++
	t.ended = w.oracle.seq
	w.core.End(w.now, t.route)
	w.do()
}

// connect opens the stream, which begins with everything that is not confirmed.
func (w *world) connect() {
	if w.connection%2 == 1 {
		return
	}
	w.connection++
	w.connects++
	w.say("connected")
	w.unconfirmed = slices.DeleteFunc(w.unconfirmed, func(m *sent) bool { return m.done() || m.once && m.came })
	w.position, w.reading = 0, false
	w.core.Connected(w.now)
	w.readOn()
	w.do()
}

// cut ends the stream. What comes once is taken nevertheless.
func (w *world) cut(again time.Duration) {
	if w.connection%2 == 0 {
		return
	}
	w.connection++
	coming := w.coming
	w.coming, w.full = nil, nil
	if coming != nil && coming.once {
		event := coming.event()
		event.Last = true
		w.give(coming, event)
	}
	w.core.Disconnected(w.now)
	w.do()
	w.after(again, w.connect)
}

// readOn reads the next event unless one is being read.
func (w *world) readOn() {
	if w.reading || w.connection%2 == 0 {
		return
	}
	for w.position < len(w.unconfirmed) && w.unconfirmed[w.position].done() && !w.again(w.unconfirmed[w.position]) {
		w.position++
	}
	if w.position == len(w.unconfirmed) {
		return
	}
	m, connection := w.unconfirmed[w.position], w.connection
	w.position++
	w.reading, w.coming = true, m
	w.after(w.readEvery, func() {
		if connection == w.connection {
			w.read++
			w.give(m, m.event())
		}
	})
}

// give gives an event to the core.
func (w *world) give(m *sent, event *Message) {
	if w.traced {
		w.say("%d comes", m.number)
	}
	taken := w.core.Take(w.now, event)
	if w.traced {
		w.say("%d is taken: %d", m.number, taken)
	}
	w.taken(m, event, taken)
	w.full = nil
	w.reading = taken == Full
	if taken == Full {
		w.full = event
	} else {
		w.coming = nil
	}
	if taken == Opened && event.Fetching && m.opened == event {
		w.fetch(m, event)
	}
	w.do()
	w.readOn()
}

// event returns a new event of m.
func (m *sent) event() *Message {
	e := &Message{
		Tenant: m.tenant, Key: m.key, Bytes: m.bytes, Owner: m, Hold: m.kind == "held" && len(m.parts) == 0 && !m.once, Large: m.part,
		Family: m.family(),
	}
	if !m.fetched && m.kind == "fetched" {
		e.Fetching, e.Bytes = true, 0
	}
	switch {
	case m.once:
	case len(m.parts) > 0:
		e.File = &File{ID: m.id}
		for _, part := range m.parts {
			e.IDs = append(e.IDs, part.id)
		}
	default:
		e.IDs = []ID{m.id}
	}
	return e
}

// do carries out the effects.
func (w *world) do() {
	e := w.core.Effects()
	for len(e.Start)+len(e.Closed)+len(e.Confirm)+len(e.Unclaimed)+len(e.Due) > 0 || e.Room || e.Reconnect {
		now := Effects{
			Start: slices.Clone(e.Start), Closed: slices.Clone(e.Closed), Confirm: slices.Clone(e.Confirm), Unclaimed: slices.Clone(e.Unclaimed),
			Due:  slices.Clone(e.Due),
			Room: e.Room, Reconnect: e.Reconnect,
		}
		e.Reset()
		w.carryOut(&now)
	}
	w.checkCaps()
	w.setWake()
}

func (w *world) carryOut(e *Effects) {
	for _, m := range e.Unclaimed {
		w.unclaimed(m)
		if m.Fetching {
			w.fetch(m.Owner.(*sent), m)
		}
	}
	for _, m := range e.Closed {
		w.closed(m)
	}
	for _, m := range append(e.Closed, e.Confirm...) {
		if len(m.Confirm) > 0 {
			w.toConfirm(m)
		}
	}
	for _, h := range e.Due {
		w.ask(h)
	}
	for _, it := range e.Start {
		w.work(it)
	}
	w.most = max(w.most, w.open)
	if e.Reconnect {
		w.say("reconnect")
		w.cut(5 * ms)
	}
	if !e.Room {
		return
	}
	waiting := w.blocked
	w.blocked = nil
	for _, ask := range waiting {
		ask()
	}
	if w.full != nil {
		w.give(w.full.Owner.(*sent), w.full)
	}
}

// setWake has the core called when it wants to be.
func (w *world) setWake() {
	at := w.core.NextWake()
	if at == 0 || w.wakeAt != 0 && w.wakeAt > w.now && at >= w.wakeAt {
		return
	}
	w.wakeAt = at
	w.after(max(0, at-w.now), func() {
		if w.wakeAt == at {
			w.wakeAt = 0
			awaiting := slices.Clone(w.core.files.awaiting)
			w.core.Wake(w.now)
			for _, a := range awaiting {
				if m := a.m.Owner.(*sent); len(a.m.Confirm) == 0 && a.place == 0 && w.core.ledger.get(m.id).state == confirming {
					m.waits = true
					w.checkAcked(m)
				}
			}
			w.do()
		}
	})
}

// work has a handler handle it, and those that come after it.
func (w *world) work(it *Item) {
	if it == nil {
		return
	}
	m := it.Message.Owner.(*sent)
	w.handed(it)
	do := w.handle(it, m)
	if !it.Lane.Route.Owner.(*taker).pipelines {
		w.after(do.place+do.rest, func() { w.end(it, m, do) })
		return
	}
	behind := it.Behind()
	w.after(do.place, func() {
		switch {
		case behind && it.Lane.Halted:
			w.say("%d makes way", m.number)
			w.end(it, m, work{outcome: Nacked, waits: ms})
			return
		case do.places:
			w.placed(it)
			it.Begun = true
			w.core.Placed(w.now, it)
			w.do()
		default:
			it.Begun = do.begins
		}
		w.after(do.rest, func() {
			if do.places && do.outcome != Acked {
				it.Lane.Halted = true
			}
			w.end(it, m, do)
		})
	})
}

// end ends the work on it.
func (w *world) end(it *Item, m *sent, do work) {
	outcome := do.outcome
	if outcome == Acked && len(it.Message.IDs) > 0 {
		it.Refused = do.refuses
		if do.refuses && w.core.cfg.Quarantines && w.core.RefusedByAll(it) {
			if outcome = w.quarry(it, m); outcome == Acked {
				it.Refused = false
				do.refuses = false
			}
		}
	}
	after := do.waits
	if outcome == Nacked && after == 0 {
		d := min(100*ms<<min(it.Nacks, 9), 30*time.Second)
		after = d/2 + time.Duration(w.random.Int64N(int64(d/2)))
	}
	if do.aside {
		it.Message.Aside = true
	}
	if w.traced {
		w.say("route %s: the outcome of %d is %d, after %s", it.Lane.Route.Name, m.number, outcome, after)
	}
	w.ended(it, outcome, do.refuses, after)
	if t := it.Lane.Route.Owner.(*taker); outcome == Acked && !do.refuses && t.horizon != nil {
		w.core.Stored(w.now, it, t.horizon, w.now, nil)
	}
	next := w.core.Done(w.now, it, outcome, after)
	w.do()
	w.work(next)
}

// ask answers about confirmations that wait until what was stored survives a power cut.
func (w *world) ask(h *Hold) {
	var all []*sent
	for _, one := range h.waits {
		all = append(all, w.byID[w.core.ledger.at(one.slot).id])
	}
	verdict := w.synced(all[0])
	if w.traced {
		w.say("asked about %d and %d more: %d", all[0].number, len(all)-1, verdict)
	}
	switch verdict {
	case survives:
		w.survive(h, all)
	case notYet:
		w.core.NotYet(w.now, h, 500*ms)
	case mayBeLost:
		for _, m := range all {
			w.say("%d may be lost", m.number)
			w.maybeLost(m)
		}
		w.core.MayBeLost(w.now, h)
	}
}

// survive has the core confirm what may be of all that h has.
func (w *world) survive(h *Hold, all []*sent) {
	confirmed := make(map[*sent]Confirmation)
	w.core.Survives(w.now, h, func(id ID, n *Names, c Confirmation) {
		m := w.byID[id]
		if confirmed[m] = c; n.Tenant != m.tenant || !slices.Contains(all, m) {
			w.wrong("%d of tenant %s survives, and was not asked about", m.number, n.Tenant)
		}
	})
	for _, m := range all {
		c, ok := confirmed[m]
		w.say("%d survives: %v", m.number, ok)
		switch {
		case ok:
			w.confirms(m)
			w.request(&Message{Owner: m, IDs: []ID{m.id}}, []Confirmation{c})
		case w.core.ledger.get(m.id).state != confirming:
			w.maybeLost(m)
		}
	}
}

// toConfirm sends the confirmations of m.
func (w *world) toConfirm(m *Message) {
	for _, c := range m.Confirm {
		w.confirms(w.byID[m.IDs[c.Index]])
	}
	if w.traced {
		w.say("to confirm: %d of %d", len(m.Confirm), m.Owner.(*sent).number)
	}
	w.request(m, slices.Clone(m.Confirm))
}

// request asks the service to take in confirmations. Its answer takes as long as it does.
func (w *world) request(m *Message, confirmations []Confirmation) {
	if !w.confirm(m.Owner.(*sent)) {
		w.after(2*time.Second, func() { w.request(m, confirmations) })
		return
	}
	w.after(25*ms, func() {
		for _, c := range confirmations {
			if part := w.byID[m.IDs[c.Index]]; part.confirmed == 0 {
				part.confirmed = w.now
				w.settled(part)
			}
		}
		w.after(25*ms, func() {
			for _, c := range confirmations {
				w.accepted()
				w.core.Confirmed(w.now, c)
			}
			w.do()
		})
	})
}
