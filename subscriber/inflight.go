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
	key1     [1]messageKey
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
	state     messageState
	abandoned bool  // while open: one of its deliveries was given up, so it must not be confirmed
	open      int32 // open deliveries that contain the message: itself, and files
	at        int64 // confirmed: when, in nanoseconds
}

// table remembers messages that are open, waiting to be confirmed, or were
// confirmed a short while ago. It is guarded by Subscriber.mu.
type table struct {
	messages map[messageKey]messageEntry
	files    map[fileKey]*delivery
	// recent is a ring of confirmed messages in the order of confirmation.
	recent     []messageKey
	head, size int
	keep       time.Duration
}

func newTable(recent int, keep time.Duration) *table {
	return &table{
		messages: make(map[messageKey]messageEntry),
		files:    make(map[fileKey]*delivery),
		recent:   make([]messageKey, 0, min(recent, 1024)),
		size:     recent,
		keep:     keep,
	}
}

// openDelivery records that d is open.
func (t *table) openDelivery(d *delivery) {
	for _, k := range d.keys {
		e := t.messages[k]
		if e.state != stateOpen {
			e = messageEntry{state: stateOpen}
		}
		e.open++
		t.messages[k] = e
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
	for i, k := range d.keys {
		e := t.messages[k]
		e.open--
		e.abandoned = e.abandoned || d.abandoned
		switch {
		case e.open > 0:
			t.messages[k] = e
		case e.abandoned:
			delete(t.messages, k)
		default:
			e.state = stateConfirming
			t.messages[k] = e
			confirm(i)
		}
	}
}

// confirmed records that the service took the confirmation of k.
func (t *table) confirmed(k messageKey, now time.Time) {
	if t.messages[k].state != stateConfirming {
		// It came again and was opened anew.
		return
	}
	t.messages[k] = messageEntry{state: stateConfirmed, at: now.UnixNano()}
	if len(t.recent) < t.size {
		t.recent = append(t.recent, k)
		return
	}
	t.forget(t.recent[t.head])
	t.recent[t.head] = k
	t.head = (t.head + 1) % t.size
}

func (t *table) forget(k messageKey) {
	if t.messages[k].state == stateConfirmed {
		delete(t.messages, k)
	}
}

// state returns where the message stands; zero when it is not known, or was
// confirmed too long ago.
func (t *table) state(k messageKey, now time.Time) messageState {
	e := t.messages[k]
	if e.state == stateConfirmed && now.UnixNano()-e.at > int64(t.keep) {
		delete(t.messages, k)
		return 0
	}
	return e.state
}
