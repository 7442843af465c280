package core

import (
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agrimill/agrimill/internal/keyindex"
)

// ledger knows of each message that the service may deliver again what has become of it.
//
// A message is confirmed when everything that has it, its own event and files, was acked by all who wanted
// it. What somebody left stays with the service, and comes again; the ledger remembers who has acked it
// nevertheless, so that they get no copy.
//
// Nothing in it that grows with the number of confirmed messages has pointers, so the garbage collector
// does not have to scan it.
type ledger struct {
	index    *keyindex.Index[ID] // one more than their slots
	pages    []*[pageSize]entry  // none of them ever moves, and there is no room for more than a page that is not used
	entries  int32
	free     []int32    // slots of forgotten entries
	messages []*Message // that are open, or acked and not confirmed
	vacant   []int32    // of messages
	files    map[ID]*Message
	done     *simplelru.LRU[ID, struct{}] // files that were acked by all
	// aside has, for each message that was set aside and not confirmed since, when it came first.
	aside       map[ID]time.Duration
	recent      ring // of those that were confirmed
	lost        ring // of those that were left
	keep        time.Duration
	quarantines bool                         // what everybody refuses is stored in a quarantine first
	asksAgain   bool                         // something was left because not everybody was asked
	acked       *simplelru.LRU[ID, []*Route] // of what was left: who has acked it; at most as many as in lost
	// stored has, for what some have acked and is not confirmed, when that survives a power cut.
	stored map[ID]stored
	room   []Confirmation // for those of messages
}

// pageSize is how many entries are allocated together.
const pageSize = 256

func (l *ledger) at(slot int32) *entry { return &l.pages[slot/pageSize][slot%pageSize] }

// state is what has become of a message.
type state uint8

const (
	unheard    state = iota
	open             // somebody has it
	left             // somebody who wanted it left it, or did not get it
	awaiting         // all have acked it, and its confirmation waits for a file
	confirming       // it is to be confirmed
	confirmed        // the service accepted that
)

// entry is what the ledger knows of one message.
type entry struct {
	id      ID
	at      time.Duration // when it was confirmed; zero before, and when its own event came after that
	issue   uint32        // how many messages have used this slot, this one included
	having  int32         // what is open and has it: its own event, and files
	message int32         // the place of its own event, and one; zero while that is not open
	state   state
	given   bool // its own event was left, so no file stands for it
	gone    bool // while it is open: a file that has it was left
	ring    bool // it is in ledger.lost
	took    bool // somebody acked it, or its file
	alone   bool // it had an event of its own
	aside   bool // what was left was set aside
	lost    bool // it was left because what was stored may be lost, and no file that has it has come since
}

// ref refers to an entry. Slots are used again, so it also says for which use: one to a message that was
// forgotten resolves to nothing, and so does the zero value.
type ref struct {
	slot  int32
	issue uint32
}

func (l *ledger) init(cfg Config) {
	l.files, l.aside = make(map[ID]*Message), make(map[ID]time.Duration)
	// They fail without a size.
	l.acked, _ = simplelru.NewLRU[ID, []*Route](max(1, cfg.Recent), nil)
	l.done, _ = simplelru.NewLRU[ID, struct{}](cfg.Recent/16+1, nil)
	l.stored = make(map[ID]stored)
	l.recent.size, l.lost.size, l.keep, l.quarantines = cfg.Recent, cfg.Recent, cfg.RecentFor, cfg.Quarantines
	l.index = keyindex.New(func(place int32) *ID { return &l.at(place - 1).id })
}

// identity names m among those that are open.
func (m *Message) identity() ID {
	if m.File != nil {
		return m.File.ID
	}
	return m.IDs[0]
}

// find returns the message that is open with the identity of m, nil without one, and what has become of m.
func (l *ledger) find(now time.Duration, m *Message) (*Message, state) {
	if len(m.IDs) == 0 {
		return nil, unheard
	}
	if m.File != nil {
		if other := l.files[m.File.ID]; other != nil {
			return other, open
		}
		known := func(id ID) bool { e := l.get(id); return e != nil && !l.isOver(now, e) }
		if l.done.Contains(m.File.ID) && slices.ContainsFunc(m.IDs, known) && !slices.ContainsFunc(m.IDs, l.isLost) {
			return nil, confirmed
		}
		return nil, unheard
	}
	e := l.get(m.IDs[0])
	switch {
	case e == nil, l.isOver(now, e):
		return nil, unheard
	case e.message != 0:
		return l.messages[e.message-1], open
	case e.state == awaiting, e.state == open && !e.given: // a file that is open confirms it
		return nil, confirming
	}
	return nil, e.state
}

// isOver reports whether it is too long ago that the message of e was confirmed.
func (l *ledger) isOver(now time.Duration, e *entry) bool {
	return e.state == confirmed && now-e.at > l.keep
}

// again records that m, which was confirmed before, is to be confirmed again, and sets m.Confirm: what of it is neither
// open, nor waits, nor was left.
func (l *ledger) again(m *Message) {
	m.Confirm = l.confirmations(len(m.IDs))
	slots := m.slots()
	for i := range m.IDs {
		slot := l.entry(m.IDs[i])
		slots[i] = slot
		if e := l.at(slot); e.state == unheard || e.state == confirmed {
			e.state = confirming
			delete(l.aside, e.id)
			m.Confirm = append(m.Confirm, Confirmation{Index: int32(i), entry: ref{slot, e.issue}})
		}
	}
}

// get returns the entry of id; nil if it is not known. It is valid until one is added.
func (l *ledger) get(id ID) *entry {
	if slot := l.index.Find(&id) - 1; slot >= 0 {
		return l.at(slot)
	}
	return nil
}

// entry returns the slot of the entry of id, which is made if need be.
func (l *ledger) entry(id ID) int32 {
	if slot := l.index.Find(&id) - 1; slot >= 0 {
		return slot
	}
	var slot int32
	if last := len(l.free) - 1; last >= 0 {
		slot, l.free = l.free[last], l.free[:last]
	} else {
		slot = l.entries // 2^31 entries do not fit in memory
		if l.entries++; slot%pageSize == 0 {
			l.pages = append(l.pages, new([pageSize]entry))
		}
	}
	e := l.at(slot)
	*e = entry{id: id, issue: max(e.issue, 1)}
	l.index.Add(&id, slot+1)
	return slot
}

func (l *ledger) forgetEntry(slot int32) {
	e := l.at(slot)
	delete(l.aside, e.id)
	delete(l.stored, e.id)
	l.index.Remove(slot + 1)
	e.issue++
	l.free = append(l.free, slot)
}

// ackedBy returns who has acked m before, although it was left.
func (l *ledger) ackedBy(m *Message) []*Route {
	if l.acked.Len() == 0 || len(m.IDs) == 0 {
		return nil
	}
	if m.File != nil && slices.ContainsFunc(m.IDs, l.isLost) {
		l.acked.Remove(m.File.ID)
	}
	acked, _ := l.acked.Peek(m.identity())
	return acked
}

func (l *ledger) open(m *Message) {
	if len(m.IDs) == 0 {
		return
	}
	slots := m.slots()
	for i := range m.IDs {
		slot := l.entry(m.IDs[i])
		slots[i] = slot
		e := l.at(slot)
		if e.state != open {
			e.gone = false
		}
		if e.state != confirming { // which nothing takes back
			e.state = open
		}
		e.having++
		if m.File != nil {
			e.gone, e.lost = false, false // it is here again
		} else { // only this makes up for an event of its own that was left
			e.given, e.alone, e.aside, e.at = false, true, false, 0
			e.message = l.place(m)
		}
	}
	if m.File != nil {
		l.files[m.File.ID] = m
		l.done.Remove(m.File.ID) // it has come again
	}
}

// allOpen calls f for each message that is open, also for routes that ended.
func (l *ledger) allOpen(f func(*Message)) {
	for _, m := range l.messages {
		if m != nil {
			f(m)
		}
	}
	for _, m := range l.files {
		f(m)
	}
}

// place gives m a place among the open messages, and returns it, and one.
func (l *ledger) place(m *Message) int32 {
	if last := len(l.vacant) - 1; last >= 0 {
		at := l.vacant[last]
		l.vacant = l.vacant[:last]
		l.messages[at] = m
		return at + 1
	}
	l.messages = append(l.messages, m)
	return int32(len(l.messages))
}

// close records that nobody has m any longer, and sets m.Confirm.
func (l *ledger) close(m *Message) {
	if len(m.IDs) == 0 {
		return
	}
	if m.File != nil {
		delete(l.files, m.File.ID)
		if !m.left {
			l.done.Add(m.File.ID, struct{}{})
		}
	}
	m.Confirm = l.confirmations(len(m.IDs))
	took := m.acked()
	for i, slot := range m.slots() {
		e := l.at(slot)
		e.having--
		e.took, e.aside = e.took || took, e.aside || m.Aside
		if m.File != nil {
			e.gone = e.gone || m.left
		} else {
			l.messages[e.message-1] = nil
			l.vacant = append(l.vacant, e.message-1)
			e.message, e.given = 0, m.left
		}
		switch {
		case e.having > 0, e.state == confirming:
		case e.state == confirmed:
			l.rememberConfirmed(ref{slot, e.issue})
		case e.gone || e.given:
			l.leave(slot)
		default:
			e.state = confirming
			m.Confirm = append(m.Confirm, Confirmation{Index: int32(i), entry: ref{slot, e.issue}})
		}
		if e.having == 0 {
			l.noteAside(m, e)
		}
	}
	l.rememberAcked(m)
}

// noteAside brings up to date whether the message of e, which nobody has any longer, is set aside. One that was confirmed
// before a file with it came is not: the service does not have it.
func (l *ledger) noteAside(m *Message, e *entry) {
	_, known := l.aside[e.id]
	switch is := e.aside && e.state == left && e.at == 0; {
	case is && !known:
		l.aside[e.id] = m.item.Opened
	case !is && known:
		delete(l.aside, e.id)
	}
}

// rememberAcked remembers who has acked m if it comes again, and forgets what is confirmed.
func (l *ledger) rememberAcked(m *Message) {
	if l.acked.Len() > 0 {
		for i := range m.Confirm {
			l.acked.Remove(m.IDs[m.Confirm[i].Index])
		}
	}
	id := m.identity()
	switch {
	case m.File != nil && !m.left:
		l.acked.Remove(id)
	case len(m.Confirm) == 0 && m.acked():
		l.remember(id, m)
	}
}

// confirmationRoom is for how many confirmations there is room at a time: one allocation serves many messages.
const confirmationRoom = 64

// confirmations returns room for n.
func (l *ledger) confirmations(n int) []Confirmation {
	if n > confirmationRoom {
		return make([]Confirmation, 0, n)
	}
	if n > len(l.room) {
		l.room = make([]Confirmation, confirmationRoom)
	}
	room := l.room[:0:n]
	l.room = l.room[n:]
	return room
}

// remember remembers who has acked m, which has this identity.
func (l *ledger) remember(id ID, m *Message) { l.acked.Add(id, slices.Collect(m.AckedBy)) }

// leaveNew records that m, which never was open, is left with the service.
func (l *ledger) leaveNew(m *Message) {
	for i := range m.IDs {
		slot := l.entry(m.IDs[i])
		e := l.at(slot)
		e.given = e.given || m.File == nil && !m.Hold // nobody had it, and its file stands for it
		e.aside = false                               // it is asked for again once there is room
		delete(l.aside, e.id)
		switch e.state {
		case open:
			e.gone = e.gone || m.File != nil
		case unheard:
			l.leave(slot)
		case awaiting:
			l.leave(slot)
		case left, confirming, confirmed:
		}
	}
}

// wasGiven reports whether somebody who had m itself left it: no file stands for it.
func (l *ledger) wasGiven(m *Message) bool {
	e := l.get(m.IDs[0])
	return e != nil && e.given
}

// await records that the confirmation of m, which is acked by all, waits for a file.
func (l *ledger) await(m *Message) {
	l.at(m.slot[0]).state = awaiting
	m.Confirm = nil
	l.remember(m.IDs[0], m)
}

// resume records that no file has come for m, and that it is to be confirmed.
func (l *ledger) resume(m *Message) {
	e := l.at(m.slot[0])
	e.state = confirming
	m.Confirm = append(l.confirmations(1), Confirmation{entry: ref{m.slot[0], e.issue}})
}

// settle decides about those messages of m that are to be confirmed and that everybody refused. With a quarantine, such a
// one is one of two deliveries of the message, each of which waited for the other to store it: it comes again. It returns how
// many are confirmed although everybody refused them.
func (l *ledger) settle(m *Message) (unmatched int64) {
	m.Confirm = slices.DeleteFunc(m.Confirm, func(c Confirmation) bool {
		e := l.at(c.entry.slot)
		switch {
		case e.took:
			return false
		case !l.quarantines:
			unmatched++
			return false
		}
		e.given = e.alone
		l.leave(c.entry.slot)
		l.asksAgain = true
		return true
	})
	return unmatched
}

// leave records that the message of a slot was left.
func (l *ledger) leave(slot int32) {
	e := l.at(slot)
	e.state, e.gone = left, false
	if e.ring {
		return
	}
	e.ring = true
	oldest := l.lost.add(ref{slot, e.issue})
	if old := l.resolve(oldest); old != nil {
		old.ring = false
		if old.state == left {
			l.acked.Remove(old.id)
			l.forgetEntry(oldest.slot)
		}
	}
}

// lose records that what was stored of the message of a slot, which is to be confirmed, may be lost: it is left, and nobody
// has acked it.
func (l *ledger) lose(slot int32) {
	e := l.at(slot)
	l.acked.Remove(e.id)
	delete(l.aside, e.id)
	e.took, e.aside, e.given = false, false, e.alone
	if e.having == 0 {
		e.lost = true
		l.leave(slot)
		return
	}
	e.state = open // a file has it
}

// isLost reports whether what was stored of a message may be lost, and so may be that of a file that has it.
func (l *ledger) isLost(id ID) bool {
	e := l.get(id)
	return e != nil && e.lost
}

// resolve returns the entry of r; nil if its message was forgotten.
func (l *ledger) resolve(r ref) *entry {
	if r == (ref{}) || l.at(r.slot).issue != r.issue {
		return nil
	}
	return l.at(r.slot)
}

// confirmed records that a message is confirmed, or never will be.
func (l *ledger) confirmed(now time.Duration, r ref) {
	e := l.resolve(r)
	if e == nil || e.state != confirming {
		return // it came again, and is open
	}
	e.state, e.at = confirmed, now
	if l.acked.Len() > 0 {
		l.acked.Remove(e.id)
	}
	delete(l.stored, e.id)
	if e.having == 0 { // else when the file that has it is closed
		l.rememberConfirmed(r)
	}
}

// rememberConfirmed remembers the latest of those that were confirmed.
func (l *ledger) rememberConfirmed(r ref) {
	oldest := l.recent.add(r)
	if old := l.resolve(oldest); old != nil && old.state == confirmed {
		l.forgetEntry(oldest.slot)
	}
}

// untaken reports whether m has a message that nobody has acked, and that nothing else that is open has.
func (l *ledger) untaken(m *Message) bool {
	return slices.ContainsFunc(m.slots(), func(slot int32) bool {
		e := l.at(slot)
		return !e.took && e.having == 1
	})
}

// forget forgets what r has acked: it has ended.
func (l *ledger) forget(r *Route) {
	for _, id := range l.acked.Keys() {
		acked, _ := l.acked.Peek(id)
		if acked = slices.DeleteFunc(acked, func(other *Route) bool { return other == r }); len(acked) == 0 {
			l.acked.Remove(id)
		} else {
			l.acked.Add(id, acked)
		}
	}
}

// ring remembers entries in the order in which they were added, at most size.
type ring struct {
	refs []ref
	head int
	size int
}

// add adds an entry and returns the one whose place it took, if any.
func (r *ring) add(added ref) (oldest ref) {
	if len(r.refs) < r.size {
		r.refs = append(r.refs, added)
		return ref{}
	}
	oldest = r.refs[r.head]
	r.refs[r.head] = added
	r.head = (r.head + 1) % r.size
	return oldest
}
