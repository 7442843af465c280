package core

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const ms = time.Millisecond

// world is the gateway, the handlers and the time around a Core. Everything in it follows from its seed.
type world struct {
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
	connection  int
	connects    int
	readEvery   time.Duration
	reading     bool // an event is on its way, or did not fit
	full        *sent
	read        int
	routes      []*Route

	handle  func(r *Route, m *sent) (time.Duration, Outcome) // what a handler does
	confirm func(m *sent) bool                               // whether the service accepts it now
	fault   func(problem string)
	settled func(m *sent)
	fetches func(m *sent) bool            // whether its payload has to be fetched; nil: never
	fetch   func(m *sent, event *Message) // fetches it
	taken   map[*sent][]*Route            // who was to get it
	came    map[opening]time.Duration     // and since when
	stepped map[*sent]bool                // it may be overtaken
	most    int                           // open at a time

	putOff time.Duration // how long what is nacked waits at least
	traced bool
	trace  []string
}

func (w *world) say(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf("%14s ", w.now)+fmt.Sprintf(format, args...))
	}
}

// sent is a message that was sent.
type sent struct {
	id          ID
	tenant, key string
	number      int
	at          time.Duration
	confirmed   time.Duration // zero while it is not
	sick        bool
	acked       []*Route
	kind        string
	part        bool    // of a file
	payload     int     // the number of the first of its parts
	files       []*sent // that have it
	parts       []*sent // of a file
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

type timeline []*timer

func (t timeline) Len() int { return len(t) }
func (t timeline) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].seq < t[j].seq
}
func (t timeline) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(x any)   { *t = append(*t, x.(*timer)) }
func (t *timeline) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func newWorld(cfg Config, seed uint64) *world {
	w := &world{
		random: rand.New(rand.NewPCG(seed, 1)), core: New(cfg), byID: make(map[ID]*sent), readEvery: 20 * time.Microsecond,
		now: 1, taken: make(map[*sent][]*Route), came: make(map[opening]time.Duration), stepped: make(map[*sent]bool), settled: func(*sent) {}, confirm: func(*sent) bool { return true },
	}
	return w
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, &timer{w.now + d, w.seq, do})
}

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(*timer)
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
func (w *world) send(tenant, key string) *sent {
	m := &sent{id: newID(len(w.sent)), tenant: tenant, key: key, number: len(w.sent), at: w.now}
	w.sent = append(w.sent, m)
	w.unconfirmed = append(w.unconfirmed, m)
	w.byID[m.id] = m
	w.readOn()
	return m
}

// connect opens the stream, which begins with everything that is not confirmed.
func (w *world) connect() {
	w.connection++
	w.connects++
	w.unconfirmed = slices.DeleteFunc(w.unconfirmed, func(m *sent) bool { return m.done() })
	w.position, w.reading, w.full = 0, false, nil
	w.core.Connected(w.now)
	w.readOn()
	w.do()
}

// readOn reads the next event unless one is being read.
func (w *world) readOn() {
	if w.reading || w.connection == 0 {
		return
	}
	for w.position < len(w.unconfirmed) && w.unconfirmed[w.position].done() {
		w.position++
	}
	if w.position == len(w.unconfirmed) {
		return
	}
	m, connection := w.unconfirmed[w.position], w.connection
	w.position++
	w.reading = true
	w.after(w.readEvery, func() {
		if connection == w.connection {
			w.read++
			w.take(m)
		}
	})
}

// take gives an event to the core.
func (w *world) take(m *sent) {
	w.full = nil
	event := m.event()
	event.Fetching = w.fetches != nil && w.fetches(m)
	taken := w.core.Take(w.now, event)
	w.say("%d comes: %d", m.number, taken)
	w.reading = taken == Full
	switch taken {
	case Full:
		w.full = m
	case Untaken:
		w.stepped[m] = true
	case Opened:
		w.opened(m)
		if event.Fetching && w.core.Open(w.now, event) == event {
			w.fetch(m, event)
		}
	}
	w.do()
	w.readOn()
}

type opening struct {
	m *sent
	r *Route
}

// opened records who was to get m.
func (w *world) opened(m *sent) {
	for _, r := range w.routes {
		if r.takes(m.event()) && !slices.Contains(w.taken[m], r) {
			w.taken[m] = append(w.taken[m], r)
			w.came[opening{m, r}] = w.now
		}
	}
}

func (m *sent) event() *Message {
	event := &Message{Tenant: m.tenant, Key: m.key, IDs: []ID{m.id}, Bytes: 100, Hold: m.kind == "held" && len(m.parts) == 0, Large: m.part, FileTaken: true, Family: m.family()}
	if len(m.parts) > 0 {
		event.File, event.FileID, event.IDs = true, m.id, nil
		for _, part := range m.parts {
			event.IDs = append(event.IDs, part.id)
		}
	}
	return event
}

// do carries out the effects.
func (w *world) do() {
	e := w.core.Effects()
	start, closed, waited, unclaimed, room, reconnect, early := slices.Clone(e.Start), slices.Clone(e.Closed), slices.Clone(e.Confirm), slices.Clone(e.Unclaimed), e.Room, e.Reconnect, e.Released > 0
	e.Reset()
	for _, m := range unclaimed {
		w.say("no file for %d", w.byEvent(m).number)
		w.opened(w.byEvent(m))
		if m.Fetching {
			w.fetch(w.byEvent(m), m)
		}
	}
	for _, m := range closed {
		w.toConfirm(m, true)
	}
	for _, m := range waited { // what is sent early has waited for its file in vain
		w.toConfirm(m, !early)
	}
	for _, it := range start {
		w.work(it)
	}
	w.most = max(w.most, w.core.window.moving+w.core.window.waiting)
	if reconnect {
		w.say("reconnect")
		w.connection++ // nothing more comes on this one
		w.core.Disconnected(w.now)
		w.after(5*ms, w.connect)
	} else if room && w.full != nil {
		w.take(w.full)
	}
	w.setWake()
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
			w.core.Wake(w.now)
			w.do()
		}
	})
}

// work has a handler handle it, and those that come after it.
func (w *world) work(it *Item) {
	if it == nil {
		return
	}
	m, r := w.byEvent(it.Message), it.Lane.route
	if slices.Contains(m.acked, r) {
		w.fault(fmt.Sprintf("route %s has acked %d, and gets it again", r.Name, m.number))
	}
	took, outcome := w.handle(r, m)
	w.after(took, func() {
		after := time.Duration(0)
		if outcome == Nacked {
			d := min(100*ms<<min(it.Nacks, 9), 30*time.Second)
			after = max(w.putOff, d/2+time.Duration(w.random.Int64N(int64(d/2))))
		}
		if outcome == Acked {
			m.acked = append(m.acked, r)
		}
		w.say("route %s: %d is %d", r.Name, m.number, outcome)
		next := w.core.Done(w.now, it, outcome, after)
		w.do()
		w.work(next)
	})
}

// byEvent returns what was sent as m.
func (w *world) byEvent(m *Message) *sent {
	if m.File {
		return w.byID[m.FileID]
	}
	return w.byID[m.IDs[0]]
}

// toConfirm sends the confirmations of m, if there are any. inFiles says that the files that have them are to be acked, too.
func (w *world) toConfirm(m *Message, inFiles bool) {
	if len(m.Confirm) == 0 {
		return
	}
	for _, c := range m.Confirm {
		part := w.byID[m.IDs[c.Index]]
		w.checkAcked(part, part)
		if inFiles {
			for _, f := range part.files {
				w.checkAcked(part, f)
			}
		}
	}
	w.say("to confirm: %d", w.byEvent(m).number)
	w.request(m)
}

// checkAcked reports it when m, which has the part that is to be confirmed, is not acked by all who were to get it.
func (w *world) checkAcked(part, m *sent) {
	for _, r := range w.taken[m] {
		if !r.ended && !slices.Contains(m.acked, r) {
			w.fault(fmt.Sprintf("%d is to be confirmed, but route %s has not acked %d", part.number, r.Name, m.number))
		}
	}
}

func (w *world) request(m *Message) {
	if !w.confirm(w.byEvent(m)) {
		w.after(2*time.Second, func() { w.request(m) })
		return
	}
	w.after(50*ms, func() {
		for _, c := range m.Confirm {
			w.accept(w.byID[m.IDs[c.Index]])
			w.core.Confirmed(w.now, c)
		}
		w.do()
	})
}

// accept is the service that takes in a confirmation.
func (w *world) accept(s *sent) {
	if s.confirmed == 0 {
		s.confirmed = w.now
		w.settled(s)
	}
}
