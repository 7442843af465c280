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
	context  string          // the sender's ID of the payload, where known
	messages []string        // what is confirmed when everyone has acked
	keys     []messageKey    // the same, as keys
	entries  []*messageEntry // and as what the table knows of them, while it is open
	key1     [1]messageKey
	entry1   [1]*messageEntry
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
	state     messageState // zero when the message was forgotten
	abandoned bool         // while open: one of its deliveries was given up, so it must not be confirmed
	open      int32        // open deliveries that contain the message: itself, and files
	at        int64        // confirmed: when, in nanoseconds
}

// table remembers messages that are open, waiting to be confirmed, or were
// confirmed a short while ago. It is guarded by Subscriber.mu.
type table struct {
	messages map[messageKey]*messageEntry
	files    map[fileKey]*delivery
	// recent is a ring of confirmed messages in the order of confirmation. Some
	// may have come again or been forgotten since.
	recent     []*messageEntry
	head, size int
	keep       time.Duration
}

func newTable(recent int, keep time.Duration) *table {
	return &table{
		messages: make(map[messageKey]*messageEntry),
		files:    make(map[fileKey]*delivery),
		recent:   make([]*messageEntry, 0, min(recent, 1024)),
		size:     recent,
		keep:     keep,
	}
}

// entry returns what is known of k, in the given state if it was not known.
func (t *table) entry(k messageKey, state messageState) *messageEntry {
	e := t.messages[k]
	if e == nil {
		e = &messageEntry{key: k, state: state}
		t.messages[k] = e
	}
	return e
}

func (t *table) forget(e *messageEntry) {
	e.state = 0
	delete(t.messages, e.key)
}

// openDelivery records that d is open.
func (t *table) openDelivery(d *delivery) {
	for _, k := range d.keys {
		e := t.entry(k, stateOpen)
		if e.state != stateOpen {
			e.state, e.open, e.abandoned = stateOpen, 0, false
		}
		e.open++
		d.entries = append(d.entries, e)
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
	for i, e := range d.entries {
		e.open--
		e.abandoned = e.abandoned || d.abandoned
		switch {
		case e.open > 0:
		case e.abandoned:
			t.forget(e)
		default:
			e.state = stateConfirming
			confirm(i)
		}
	}
}

// confirming records that k, which is not open, is to be confirmed.
func (t *table) confirming(k messageKey) *messageEntry {
	e := t.entry(k, stateConfirming)
	e.state = stateConfirming
	return e
}

// confirmed records that the service took the confirmation of e.
func (t *table) confirmed(e *messageEntry, now time.Time) {
	if e.state != stateConfirming {
		return // it came again and was opened anew
	}
	e.state, e.at = stateConfirmed, now.UnixNano()
	if len(t.recent) < t.size {
		t.recent = append(t.recent, e)
		return
	}
	if old := t.recent[t.head]; old.state == stateConfirmed {
		t.forget(old)
	}
	t.recent[t.head] = e
	t.head = (t.head + 1) % t.size
}

// state returns where the message stands; zero when it is not known, or was
// confirmed too long ago.
func (t *table) state(k messageKey) messageState {
	e := t.messages[k]
	if e == nil {
		return 0
	}
	if e.state == stateConfirmed && time.Now().UnixNano()-e.at > int64(t.keep) {
		t.forget(e)
	}
	return e.state
}
