package subscriber

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
)

// messageKey identifies what is confirmed: a receiving endpoint and a message,
// both as the 16 bytes of their UUID. It has no pointers, so that the garbage
// collector need not look into the table.
type messageKey [32]byte

func newMessageKey(endpointID, messageID string) messageKey {
	var k messageKey
	putUUID(k[:16], endpointID)
	putUUID(k[16:], messageID)
	return k
}

// putUUID writes the bytes of id. What is not a UUID, which decoding refuses,
// would be hashed rather than confused with another.
func putUUID(dst []byte, id string) {
	if u, err := uuid.Parse(id); err == nil {
		copy(dst, u[:])
		return
	}
	h := xxh3.HashString128(id).Bytes()
	copy(dst, h[:])
}

// fileKey identifies a file by its receiving endpoint and the set of its
// messages. It is zero for what is not a file, and for a file that names no
// messages: that cannot be told from another, nor confirmed.
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

// delivery is one event on its way to the subscriptions that took it. All
// fields below the line are guarded by Subscriber.mu.
type delivery struct {
	event    gateway.Event
	order    string
	tenant   string
	endpoint string
	context  string       // the sender's ID of the payload, where known
	messages []string     // what is confirmed when everyone has acked
	keys     []messageKey // the same, as keys
	entries  []entryRef   // and as their places in the table, while it is open
	key1     [1]messageKey
	entry1   [1]entryRef
	message1 [1]string
	file     fileKey
	payload  *payload // nil when the event has it, or has none
	held     *chunk   // what it is delivered instead of, when no file claimed it
	// ----
	arrived   time.Time
	bytes     int64 // counted in Subscriber.bytes
	open      int   // subscriptions that have not acked
	abandoned bool  // a subscription ended without an ack
	confirm   []confirmation
	confirm1  [1]confirmation
	prev      *delivery
	next      *delivery
}

// messageState says where a message stands between its arrival and the moment
// when it is forgotten.
type messageState uint8

const (
	stateOpen       messageState = iota + 1 // with subscriptions
	stateConfirming                         // acked by all; its confirmation waits or is under way
	stateConfirmed                          // the service took the confirmation
)

// messageEntry is what the table knows of one message.
type messageEntry struct {
	key       messageKey
	at        int64  // confirmed: when, in nanoseconds
	issue     uint32 // how many messages have had the place, this one included
	open      int32  // open deliveries that contain the message: itself, and files
	state     messageState
	abandoned bool // while open: one of its deliveries was given up, so it must not be confirmed
}

// entryRef is the place of an entry. The table gives places that have become free
// to other messages, so the reference says which of them it means: one to a message
// that was forgotten finds nothing, and neither does the zero value.
type entryRef struct {
	place int32
	issue uint32
}

// table remembers messages that are open, waiting to be confirmed, or were
// confirmed a short while ago. It is guarded by Subscriber.mu. The garbage
// collector does not look into it: nothing that grows with the messages has
// pointers.
type table struct {
	index   map[messageKey]int32
	entries []messageEntry
	free    []int32 // places of entries that were forgotten
	files   map[fileKey]*delivery
	// recent is a ring of confirmed messages in the order of confirmation. Some
	// may have come again or been forgotten since.
	recent     []entryRef
	head, size int
	keep       time.Duration
}

func newTable(recent int, keep time.Duration) *table {
	return &table{
		index:  make(map[messageKey]int32),
		files:  make(map[fileKey]*delivery),
		recent: make([]entryRef, 0, min(recent, 1024)),
		size:   recent,
		keep:   keep,
	}
}

// entry returns what is known of k, in the given state if it was not known.
func (t *table) entry(k messageKey, state messageState) (entryRef, *messageEntry) {
	place, known := t.index[k]
	if !known {
		place = t.take()
		t.index[k] = place
		e := &t.entries[place]
		e.key, e.state, e.open, e.abandoned = k, state, 0, false
	}
	e := &t.entries[place]
	return entryRef{place, e.issue}, e
}

// take returns a free place.
func (t *table) take() int32 {
	if last := len(t.free) - 1; last >= 0 {
		place := t.free[last]
		t.free = t.free[:last]
		return place
	}
	t.entries = append(t.entries, messageEntry{issue: 1})
	return int32(len(t.entries) - 1) // 2^31 entries do not fit in memory
}

// get returns the entry, nil when its message was forgotten. It is valid until an
// entry is added.
func (t *table) get(ref entryRef) *messageEntry {
	if ref == (entryRef{}) || t.entries[ref.place].issue != ref.issue {
		return nil
	}
	return &t.entries[ref.place]
}

func (t *table) forget(place int32) {
	e := &t.entries[place]
	delete(t.index, e.key)
	e.issue++
	t.free = append(t.free, place)
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

// closeDelivery records that d has been acked by all, or abandoned, and calls
// confirm with the index of each of its messages that may be confirmed now.
// A message that another open delivery contains has to wait for that one.
func (t *table) closeDelivery(d *delivery, confirm func(i int)) {
	if d.file != (fileKey{}) {
		delete(t.files, d.file)
	}
	for i, ref := range d.entries {
		e := &t.entries[ref.place] // what is open is not forgotten
		e.open--
		e.abandoned = e.abandoned || d.abandoned
		switch {
		case e.open > 0:
		case e.abandoned:
			t.forget(ref.place)
		default:
			e.state = stateConfirming
			confirm(i)
		}
	}
}

// confirming records that k, which is not open, is to be confirmed.
func (t *table) confirming(k messageKey) entryRef {
	ref, e := t.entry(k, stateConfirming)
	e.state = stateConfirming
	return ref
}

// confirmed records that the service took the confirmation of an entry.
func (t *table) confirmed(ref entryRef, now time.Time) {
	e := t.get(ref)
	if e == nil || e.state != stateConfirming {
		return // it came again and was opened anew
	}
	e.state, e.at = stateConfirmed, now.UnixNano()
	if len(t.recent) < t.size {
		t.recent = append(t.recent, ref)
		return
	}
	oldest := t.recent[t.head]
	if old := t.get(oldest); old != nil && old.state == stateConfirmed {
		t.forget(oldest.place)
	}
	t.recent[t.head] = ref
	t.head = (t.head + 1) % t.size
}

// state returns where the message stands; zero when it is not known, or was
// confirmed too long ago.
func (t *table) state(k messageKey) messageState {
	place, known := t.index[k]
	if !known {
		return 0
	}
	e := &t.entries[place]
	if e.state == stateConfirmed && time.Now().UnixNano()-e.at > int64(t.keep) {
		t.forget(place)
		return 0
	}
	return e.state
}
