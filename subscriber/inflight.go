package subscriber

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
)

// messageKey identifies what is confirmed: a receiving endpoint and a message,
// each as the 16 bytes of its UUID. It contains no pointers, so the garbage
// collector does not have to scan the table.
type messageKey [32]byte

func newMessageKey(endpointID, messageID string) messageKey {
	var k messageKey
	putUUID(k[:16], endpointID)
	putUUID(k[16:], messageID)
	return k
}

// putUUID writes the bytes of id. Decoding rejects IDs that are not UUIDs; if one
// came here, it would be hashed, so that it could not be confused with another.
func putUUID(dst []byte, id string) {
	if u, err := uuid.Parse(id); err == nil {
		copy(dst, u[:])
		return
	}
	h := xxh3.HashString128(id).Bytes()
	copy(dst, h[:])
}

// fileKey identifies a file by its receiving endpoint and the set of its
// messages. It is zero for anything that is not a file, and for a file that names
// no messages, which can neither be told apart from others nor confirmed.
type fileKey [16]byte

func newFileKey(ids []messageKey) fileKey {
	if len(ids) == 0 {
		return fileKey{}
	}
	sorted := slices.SortedFunc(slices.Values(ids), func(a, b messageKey) int {
		return slices.Compare(a[:], b[:])
	})
	h := xxh3.New()
	for i := range sorted {
		_, _ = h.Write(sorted[i][:]) // a hash never fails
	}
	return h.Sum128().Bytes()
}

// delivery is one event on its way to the subscriptions that accepted it. The
// fields below the line are guarded by Subscriber.mu.
type delivery struct {
	event    gateway.Event
	order    string
	tenant   string
	endpoint string
	context  string       // the sender's ID of the payload, if known
	messages []string     // the messages to confirm once every subscription has acked
	keys     []messageKey // the same, as keys
	entries  []entryRef   // the same, as table entries; set while the delivery is open
	key1     [1]messageKey
	entry1   [1]entryRef
	message1 [1]string
	file     fileKey
	payload  *payload // nil if the payload is embedded in the event, or there is none
	held     *chunk   // the held chunk that this delivers because no file claimed it
	// ----
	arrived   time.Time
	bytes     int64 // counted in Subscriber.bytes
	open      int   // subscriptions that have not acked
	abandoned bool  // at least one subscription ended without an ack
	confirm   []confirmation
	confirm1  [1]confirmation
	prev      *delivery
	next      *delivery
}

// messageState is the state of a message between its arrival and the moment it is
// forgotten.
type messageState uint8

const (
	stateOpen       messageState = iota + 1 // delivered to subscriptions
	stateConfirming                         // acked by all; its confirmation is pending
	stateConfirmed                          // the service accepted the confirmation
)

// messageEntry is the table's record of one message.
type messageEntry struct {
	key       messageKey
	at        time.Duration // when it was confirmed, relative to table.began
	issue     uint32        // how many messages have used this slot, including this one
	open      int32         // open deliveries that contain the message: its own, and files
	state     messageState
	abandoned bool // while open: one of its deliveries was abandoned, so it must not be confirmed
}

// entryRef refers to a table entry. Slots are reused for other messages, so the
// reference also identifies the use: a reference to a forgotten message resolves to
// nothing, and so does the zero value.
type entryRef struct {
	slot  int32
	issue uint32
}

// table remembers messages that are open, waiting to be confirmed, or were
// confirmed recently. It is guarded by Subscriber.mu. Nothing in it that grows with
// the number of messages contains pointers, so the garbage collector does not have to
// scan it.
type table struct {
	index   map[messageKey]int32
	entries []messageEntry
	free    []int32 // slots of forgotten entries
	files   map[fileKey]*delivery
	// recent is a ring of confirmed messages in order of confirmation. Some may
	// have been redelivered or forgotten since.
	recent     []entryRef
	head, size int
	keep       time.Duration
	// began is the reference for times, on the monotonic clock, since the wall clock
	// may be adjusted while a message is remembered.
	began time.Time
}

func newTable(recent int, keep time.Duration) *table {
	return &table{
		index:  make(map[messageKey]int32),
		files:  make(map[fileKey]*delivery),
		recent: make([]entryRef, 0, min(recent, 1024)),
		size:   recent,
		keep:   keep,
		began:  time.Now(),
	}
}

// entry returns the entry of k, creating it in the given state if necessary.
func (t *table) entry(k messageKey, state messageState) (entryRef, *messageEntry) {
	slot, known := t.index[k]
	if !known {
		slot = t.take()
		t.index[k] = slot
		e := &t.entries[slot]
		e.key, e.state, e.open, e.abandoned = k, state, 0, false
	}
	e := &t.entries[slot]
	return entryRef{slot, e.issue}, e
}

// take returns a free slot.
func (t *table) take() int32 {
	if last := len(t.free) - 1; last >= 0 {
		slot := t.free[last]
		t.free = t.free[:last]
		return slot
	}
	t.entries = append(t.entries, messageEntry{issue: 1})
	return int32(len(t.entries) - 1) // 2^31 entries do not fit in memory
}

// get returns the entry, or nil if its message was forgotten. The result is valid
// until an entry is added.
func (t *table) get(ref entryRef) *messageEntry {
	if ref == (entryRef{}) || t.entries[ref.slot].issue != ref.issue {
		return nil
	}
	return &t.entries[ref.slot]
}

func (t *table) forget(slot int32) {
	e := &t.entries[slot]
	delete(t.index, e.key)
	e.issue++
	t.free = append(t.free, slot)
}

// openDelivery records that d is open.
func (t *table) openDelivery(d *delivery) {
	for _, k := range d.keys {
		ref, e := t.entry(k, stateOpen)
		if e.state != stateOpen {
			e.state, e.open, e.abandoned = stateOpen, 0, false
		}
		e.open++
		d.entries = append(d.entries, ref)
	}
	if d.file != (fileKey{}) {
		t.files[d.file] = d
	}
}

// closeDelivery records that d was acked by all subscriptions, or abandoned, and
// calls confirm with the index of each of its messages that can be confirmed now.
// A message that is part of another open delivery has to wait for that one.
func (t *table) closeDelivery(d *delivery, confirm func(i int)) {
	if d.file != (fileKey{}) {
		delete(t.files, d.file)
	}
	for i, ref := range d.entries {
		e := &t.entries[ref.slot] // an open entry is never forgotten
		e.open--
		e.abandoned = e.abandoned || d.abandoned
		switch {
		case e.open > 0:
		case e.abandoned:
			t.forget(ref.slot)
		default:
			e.state = stateConfirming
			confirm(i)
		}
	}
}

// confirming records that k, which is not open, is waiting to be confirmed.
func (t *table) confirming(k messageKey) entryRef {
	ref, e := t.entry(k, stateConfirming)
	e.state = stateConfirming
	return ref
}

// confirmed records that the service accepted the confirmation of an entry.
func (t *table) confirmed(ref entryRef, now time.Time) {
	e := t.get(ref)
	if e == nil || e.state != stateConfirming {
		return // it was redelivered and opened again
	}
	e.state, e.at = stateConfirmed, now.Sub(t.began)
	if len(t.recent) < t.size {
		t.recent = append(t.recent, ref)
		return
	}
	oldest := t.recent[t.head]
	if old := t.get(oldest); old != nil && old.state == stateConfirmed {
		t.forget(oldest.slot)
	}
	t.recent[t.head] = ref
	t.head = (t.head + 1) % t.size
}

// state returns the state of the message; zero if it is unknown or was confirmed
// too long ago.
func (t *table) state(k messageKey, now time.Time) messageState {
	slot, known := t.index[k]
	if !known {
		return 0
	}
	e := &t.entries[slot]
	if e.state == stateConfirmed && now.Sub(t.began)-e.at > t.keep {
		t.forget(slot)
		return 0
	}
	return e.state
}
