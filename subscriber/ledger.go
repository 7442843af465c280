package subscriber

import (
	"slices"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/keyindex"
)

// partGrace is how long what a subscription left when it ended waits before the acks of
// the others confirm it: in a shutdown they end at almost the same time, and one that is
// made again gets it. Nothing waits for its end, and on a machine that hardly gets on
// "at almost the same time" is long.
const partGrace = 10 * time.Second

// ledger knows what became of each message: which subscriptions acked it, whether it may be
// confirmed, and what waits before it may. It is a state machine without goroutine, clock or
// lock, guarded by Subscriber.mu.
//
// A message is confirmed when everything that contains it, its own delivery and files, was
// acked by every subscription that had it. What was given up unacked stays with the service,
// and the ledger remembers who has acked it nevertheless, so that they get no copy.
//
// Nothing in it that grows with the number of confirmed messages contains pointers, so the
// garbage collector does not have to scan it.
type ledger struct {
	index   *keyindex.Index[messageKey] // one more than their slots
	entries []messageEntry
	free    []int32 // slots of forgotten entries
	files   map[fileKey]*delivery
	done    *fileSet // acked files
	// recent is a ring of confirmed messages in order of confirmation, and leftRing one of
	// messages that were left. Some may have been redelivered or forgotten since.
	recent, leftRing entryRing
	// ackedBy has, for what was left, or may be with its file, who has acked it. At most as many
	// as leftRing.
	ackedBy map[messageKey][]*subscription
	// aside has, for each message that was set aside and not confirmed since, when it first arrived,
	// relative to began.
	aside    map[messageKey]time.Duration
	families families
	parted   []*delivery // by time
	unmatched
	waiting fileWaits
	keep    time.Duration
	// began is the reference for times, on the monotonic clock, since the wall clock
	// may be adjusted while a message is remembered.
	began     time.Time
	connected time.Duration // when the stream was opened
}

// messageState is the state of a message between its arrival and the moment it is
// forgotten.
type messageState uint8

const (
	stateOpen       messageState = iota + 1 // delivered to subscriptions
	stateWaiting                            // acked by all; its confirmation waits for a file
	stateConfirming                         // acked by all; its confirmation is pending
	stateConfirmed                          // the service accepted the confirmation
	stateLeft                               // given up unacked
)

// messageEntry is the ledger's record of one message.
type messageEntry struct {
	key   messageKey
	at    time.Duration // when it was confirmed, was left, or began to wait, relative to ledger.began
	issue uint32        // how many messages have used this slot, including this one
	open  int32         // open deliveries that contain the message: its own, and files
	state messageState
	own   bool // while open: its own delivery is
	ring  bool // it is in ledger.leftRing
	given bool // its own delivery was given up unacked
	left  bool // while open: a file that contains it was
	took  bool // somebody acked it, or its file, who did not refuse it
	alone bool // it has had a delivery of its own, and not only its file
	aside bool // what was given up was set aside
}

// entryRef refers to an entry. Slots are reused for other messages, so the
// reference also identifies the use: a reference to a forgotten message resolves to
// nothing, and so does the zero value.
type entryRef struct {
	slot  int32
	issue uint32
}

// verdict is what a delivery came to.
type verdict int

const (
	verdictAcked  verdict = iota // by every subscription that had it
	verdictParted                // by those that are left
	verdictLeft                  // not by all
)

func newLedger(cfg Config) *ledger {
	l := &ledger{
		files:     make(map[fileKey]*delivery),
		done:      newFileSet(cfg.RecentConfirmed/16+1, cfg.RecentFor),
		ackedBy:   make(map[messageKey][]*subscription),
		aside:     make(map[messageKey]time.Duration),
		recent:    entryRing{size: cfg.RecentConfirmed},
		leftRing:  entryRing{size: cfg.RecentConfirmed},
		waiting:   fileWaits{max: cfg.MaxHeld},
		unmatched: unmatched{policy: cfg.Unmatched},
		keep:      cfg.RecentFor,
		began:     time.Now(),
	}
	l.index = keyindex.New(func(place int32) *messageKey { return &l.entries[place-1].key })
	return l
}

// entry returns the entry of k, creating it in the given state if necessary.
func (l *ledger) entry(k messageKey, state messageState) (entryRef, *messageEntry) {
	slot, known := l.find(k)
	if !known {
		slot = l.take()
		e := &l.entries[slot]
		*e = messageEntry{key: k, issue: e.issue, state: state}
		l.index.Add(&k, slot+1)
	}
	e := &l.entries[slot]
	return entryRef{slot, e.issue}, e
}

// find returns the slot of k.
func (l *ledger) find(k messageKey) (slot int32, known bool) {
	slot = l.index.Find(&k) - 1
	return slot, slot >= 0
}

// take returns a free slot.
func (l *ledger) take() int32 {
	if last := len(l.free) - 1; last >= 0 {
		slot := l.free[last]
		l.free = l.free[:last]
		return slot
	}
	l.entries = append(l.entries, messageEntry{issue: 1})
	return int32(len(l.entries) - 1) // 2^31 entries do not fit in memory
}

// get returns the entry, or nil if its message was forgotten. The result is valid
// until an entry is added.
func (l *ledger) get(ref entryRef) *messageEntry {
	if ref == (entryRef{}) || l.entries[ref.slot].issue != ref.issue {
		return nil
	}
	return &l.entries[ref.slot]
}

func (l *ledger) forget(slot int32) {
	e := &l.entries[slot]
	delete(l.aside, e.key)
	l.index.Remove(slot + 1)
	e.issue++
	l.free = append(l.free, slot)
}

// open records that d is open.
func (l *ledger) open(d *delivery) {
	isFile := d.file != (fileKey{})
	for _, k := range d.keys {
		ref, e := l.entry(k, stateOpen)
		if e.state != stateOpen {
			l.unwait(e)
			*e = messageEntry{
				key: k, issue: e.issue, ring: e.ring, state: stateOpen, took: e.took, alone: e.alone,
				given: e.state == stateLeft && e.given, left: l.leftWithFile(e), aside: e.state == stateLeft && e.given && e.aside,
			}
		}
		if isFile {
			e.left = false // it is here again
		} else { // only this makes up for an own delivery that was given up
			e.own, e.given, e.alone, e.aside = true, false, true, false
		}
		e.open++
		d.entries = append(d.entries, ref)
	}
	if isFile {
		l.files[d.file] = d
	}
}

// gaveUp reports whether somebody who had k itself gave it up: no file stands for it then.
func (l *ledger) gaveUp(k messageKey) bool {
	slot, known := l.find(k)
	return known && l.entries[slot].given
}

// leftNow reports whether k was left with its file since the stream was opened.
func (l *ledger) leftNow(k messageKey) bool {
	slot, known := l.find(k)
	if !known {
		return false
	}
	return l.leftWithFile(&l.entries[slot])
}

func (l *ledger) leftWithFile(e *messageEntry) bool {
	return e.state == stateLeft && !e.given && e.at >= l.connected
}

// joins reports whether a message that is open needs no delivery of its own now: that is open,
// or a file that confirms it.
func (l *ledger) joins(k messageKey) bool {
	slot, known := l.find(k)
	return known && (l.entries[slot].own || !l.entries[slot].given)
}

// acked returns who has acked what was left before, and need not get it again.
func (l *ledger) acked(d *delivery) []*subscription {
	if len(l.ackedBy) == 0 || len(d.keys) == 0 {
		return nil
	}
	return l.ackedBy[d.identity()]
}

// finish records what d came to for sub and reports whether nobody has it any longer.
func (d *delivery) finish(sub *subscription, acked, ended bool) (last bool) {
	if i := slices.Index(d.waits, sub); i >= 0 {
		d.waits = slices.Delete(d.waits, i, i+1)
	}
	switch {
	case acked && slices.Contains(d.refused, sub):
	case acked:
		d.acked = append(d.acked, sub)
	case ended:
		d.parted = true
	default:
		d.left = true
	}
	return len(d.waits) == 0
}

// verdict says what d came to. After verdictParted it is kept by part.
func (d *delivery) verdict() verdict {
	switch {
	case d.left, d.parted && len(d.acked) == 0:
		return verdictLeft
	case d.parted:
		return verdictParted
	}
	return verdictAcked
}

// part keeps d, which is still open as far as its messages go, until its time has come.
func (l *ledger) part(now time.Time, d *delivery) {
	d.arrived = now // of no other use any longer
	d.event = withoutPayload(d.event)
	d.payload = nil
	l.parted = append(l.parted, d)
}

// unpart returns the deliveries that were parted and for which is reports true.
func (l *ledger) unpart(is func(*delivery) bool) (ended []*delivery) {
	l.parted = slices.DeleteFunc(l.parted, func(d *delivery) bool {
		if !is(d) {
			return false
		}
		ended = append(ended, d)
		return true
	})
	return ended
}

// close records that d was acked, or left, and appends to d.confirm what can be confirmed
// now. A message that is part of another open delivery has to wait for that one. maybeChunk
// says that d may be a chunk, and that its confirmation has to wait for the file.
func (l *ledger) close(now time.Time, d *delivery, v verdict, maybeChunk bool) {
	isFile := d.file != (fileKey{})
	if isFile {
		delete(l.files, d.file)
		if v == verdictAcked {
			l.done.add(d.file, now)
		}
	}
	d.confirm = d.confirm1[:0]
	for i, ref := range d.entries {
		e := &l.entries[ref.slot] // an open entry is never forgotten
		e.open--
		e.took = e.took || len(d.acked) > 0
		e.aside = e.aside || d.aside
		switch isFile {
		case true:
			e.left = e.left || v != verdictAcked
		case false:
			e.own, e.given = false, v != verdictAcked
		}
		if e.open > 0 {
			continue
		}
		if e.left || e.given {
			l.setAside(e, d.arrived)
			l.leave(now, ref)
			continue
		}
		delete(l.aside, e.key)
		switch {
		case maybeChunk:
			l.wait(now, ref, d, i)
		case !l.settle(now, ref):
		default:
			e.state = stateConfirming
			d.confirm = append(d.confirm, confirmation{entry: ref, endpoint: d.endpoint, message: d.message(i)})
		}
	}
	if len(d.keys) == 0 {
		return
	}
	if len(l.ackedBy) > 0 {
		for _, c := range d.confirm {
			delete(l.ackedBy, l.entries[c.entry.slot].key)
		}
	}
	switch id := d.identity(); {
	case isFile && v == verdictAcked:
		delete(l.ackedBy, id)
	case len(d.confirm) == 0 && len(d.acked) > 0: // it was left, or its file may be
		for old := range l.ackedBy {
			if len(l.ackedBy) < l.leftRing.size {
				break
			}
			delete(l.ackedBy, old)
		}
		l.ackedBy[id] = slices.Clone(d.acked)
	}
}

// leave records that a message was given up unacked.
func (l *ledger) leave(now time.Time, ref entryRef) {
	e := &l.entries[ref.slot]
	e.state, e.left, e.at = stateLeft, false, now.Sub(l.began)
	if !e.aside {
		delete(l.aside, e.key)
	}
	if e.ring {
		return
	}
	e.ring = true
	oldest, full := l.leftRing.add(ref)
	if old := l.get(oldest); full && old != nil {
		old.ring = false
		if old.state == stateLeft {
			delete(l.ackedBy, old.key)
			l.forget(oldest.slot)
		}
	}
}

// leaveNew records that d, which was never opened, is left with the service. Its file must not
// be confirmed by what else is known of its messages.
func (l *ledger) leaveNew(now time.Time, d *delivery) {
	isFile := d.file != (fileKey{})
	for _, k := range d.keys {
		ref, e := l.entry(k, 0)
		e.given = e.given || !isFile && !d.whole // nobody had it, and its file will stand for it
		e.aside = false                          // it is asked for again once there is room
		switch e.state {
		case stateOpen:
			e.left = e.left || isFile
		case 0, stateWaiting:
			l.unwait(e)
			l.leave(now, ref)
		case stateLeft:
			delete(l.aside, k)
		case stateConfirming, stateConfirmed:
		}
	}
}

// setAside remembers an entry that is about to be left, if it was set aside.
func (l *ledger) setAside(e *messageEntry, arrived time.Time) {
	if _, known := l.aside[e.key]; e.aside && !known {
		l.aside[e.key] = arrived.Sub(l.began)
	}
}

// asideNow returns how many messages are set aside, and since when the oldest waits, including those
// that have come again and were not acked yet.
func (l *ledger) asideNow() (n int, oldest time.Time) {
	for k, at := range l.aside {
		if slot, known := l.find(k); known && l.entries[slot].state == stateLeft {
			n++
		}
		oldest = earlier(oldest, l.began.Add(at))
	}
	return n, oldest
}

// withoutPayload returns a copy of the event that keeps no payload in memory.
func withoutPayload(event gateway.Event) gateway.Event {
	switch e := event.(type) {
	case *gateway.MessageReceived:
		slim := *e
		slim.Payload = nil
		return &slim
	case *gateway.FileReceived:
		slim := *e
		slim.Payload = nil
		return &slim
	}
	return event
}

// forgetSubscription forgets what sub has acked: it has ended.
func (l *ledger) forgetSubscription(sub *subscription) {
	for id, acked := range l.ackedBy {
		if acked = slices.DeleteFunc(acked, func(other *subscription) bool { return other == sub }); len(acked) == 0 {
			delete(l.ackedBy, id)
		} else {
			l.ackedBy[id] = acked
		}
	}
}

// confirming records that k, which is not open, is waiting to be confirmed.
func (l *ledger) confirming(k messageKey) entryRef {
	ref, e := l.entry(k, stateConfirming)
	delete(l.aside, k)
	e.state = stateConfirming
	return ref
}

// confirmed records that the service accepted the confirmation of an entry.
func (l *ledger) confirmed(ref entryRef, now time.Time) {
	e := l.get(ref)
	if e == nil || e.state != stateConfirming {
		return // it was redelivered and opened again
	}
	e.state, e.at = stateConfirmed, now.Sub(l.began)
	if oldest, full := l.recent.add(ref); full {
		if old := l.get(oldest); old != nil && old.state == stateConfirmed {
			l.forget(oldest.slot)
		}
	}
}

// state returns the state of the message; zero if it is unknown or was confirmed
// too long ago.
func (l *ledger) state(k messageKey, now time.Time) messageState {
	slot, known := l.find(k)
	if !known {
		return 0
	}
	e := &l.entries[slot]
	if e.state == stateConfirmed && now.Sub(l.began)-e.at > l.keep {
		l.forget(slot)
		return 0
	}
	return e.state
}

// again returns the confirmations of a file that was acked and has been redelivered: of those
// of its messages that are neither open, nor wait, nor were left.
func (l *ledger) again(now time.Time, e *gateway.FileReceived, keys []messageKey) (again []confirmation) {
	for i, key := range keys {
		switch l.state(key, now) {
		case stateOpen, stateWaiting, stateConfirming, stateLeft:
		default:
			again = append(again, confirmation{entry: l.confirming(key), endpoint: e.ReceivingEndpointID, message: e.MessageIDs[i]})
		}
	}
	return again
}

// wake returns when something in the ledger is due; zero for never.
func (l *ledger) wake(now time.Time) (at time.Time) {
	if len(l.parted) > 0 {
		at = l.parted[0].arrived.Add(partGrace)
	}
	if due := l.nextDue(now); !due.IsZero() && (at.IsZero() || due.Before(at)) {
		at = due
	}
	return at
}

// entryRing remembers entries in the order in which they were added, at most size.
type entryRing struct {
	refs []entryRef
	head int
	size int
}

// add adds an entry and returns the one whose place it took.
func (r *entryRing) add(ref entryRef) (oldest entryRef, full bool) {
	if len(r.refs) < r.size {
		r.refs = append(r.refs, ref)
		return entryRef{}, false
	}
	oldest = r.refs[r.head]
	r.refs[r.head] = ref
	r.head = (r.head + 1) % r.size
	return oldest, true
}
