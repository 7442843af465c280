package subscriber

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
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
	tenantID string // tenant in lower case
	endpoint string
	context  string       // the sender's ID of the payload, if known
	messages []string     // of a file: its messages, to confirm once every subscription has acked
	keys     []messageKey // what is to be confirmed, as keys
	entries  []entryRef   // the same, as table entries; set while the delivery is open
	key1     [1]messageKey
	entry1   [1]entryRef
	file     fileKey
	payload  *payload // nil if the payload is embedded in the event, or there is none
	held     *chunk   // the held chunk that this delivers because no file claimed it
	family   family
	whole    bool        // of a type whose files are delivered in place of their messages
	used     atomic.Bool // context1 is
	// context1 is the context of the first message that is made of it.
	context1 messageContext
	// ----
	linked   bool // it has a place in the window
	apart    bool // it has none because it has stalled
	left     bool // one of them gave it up, or never got it: it stays with the service
	parted   bool // one of them ended without an ack
	aside    bool // one of them set it aside, or it cannot be delivered
	large    bool // it is kept without its payload, which was as large as a chunk
	arrived  time.Time
	since    time.Time       // when it arrived, its payload was there, or it was redelivered
	bytes    int64           // counted in Subscriber.bytes
	parked   int             // of waits, those that wait to redeliver it
	waits    []*subscription // those that have it
	waits1   [2]*subscription
	acked    []*subscription // those that had it and acked it
	acked1   [2]*subscription
	refused  []*subscription // those that do not want it
	refused1 [1]*subscription
	confirm  []confirmation
	confirm1 [1]confirmation
	prev     *delivery
	next     *delivery
}

// messageIDs returns the IDs of what is to be confirmed.
func (d *delivery) messageIDs() []string {
	if len(d.keys) == 0 || d.messages != nil {
		return d.messages
	}
	return []string{d.message(0)}
}

// message returns the ID of the message with keys[i].
func (d *delivery) message(i int) string {
	if e, ok := d.event.(*gateway.MessageReceived); ok {
		return e.ID
	}
	return d.messages[i]
}

// newContext returns the context of a message that is made of d.
func (d *delivery) newContext(drained context.Context, open msgctx.Opener) *messageContext {
	c := &d.context1
	if !d.used.CompareAndSwap(false, true) {
		c = new(messageContext)
	}
	c.init(drained, open)
	return c
}
