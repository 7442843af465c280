package subscriber

import (
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// delivery is one event on its way to the subscriptions that want it.
type delivery struct {
	core.Message
	event    gateway.Event // nil once nobody has it, unless a handler that was given up may still look
	tenant   string        // as the service wrote it; empty if it is not known
	endpoint string
	messages []string // the IDs of its messages
	message1 [1]string
	id1      [1]core.ID
	payload  *payload      // nil if the payload is embedded in the event, or there is none
	arrived  time.Duration // see clock
	givenUp  bool          // by a subscription that has ended, with its handler. Guarded by Subscriber.mu
	used     atomic.Bool   // context1 is
	// context1 is the context of the first message that is made of it.
	context1 messageContext
}

// record returns what is to be stored in the quarantine; nil for what is handed to subscriptions.
func (d *delivery) record() *quarantined {
	r, _ := d.event.(*quarantined)
	return r
}

// ownerOf returns the delivery that m is part of.
func ownerOf(m *core.Message) *delivery { return m.Owner.(*delivery) }

func (s *Subscriber) newDelivery(event gateway.Event, size int64) *delivery {
	d := &delivery{event: event, arrived: s.now()}
	d.Owner, d.Key = d, s.cfg.OrderKey(event)
	switch e := event.(type) {
	case *gateway.MessageReceived:
		s.initMessage(d, e)
	case *gateway.FileReceived:
		s.initFile(d, e)
	default:
		d.Bytes = size
	}
	if d.tenant == "" && d.endpoint != "" {
		d.tenant = s.confirmer.tenantOf(d.endpoint)
	}
	d.Tenant = strings.ToLower(d.tenant)
	d.Fetching = d.payload != nil && s.cfg.Payload.Mode != PayloadLazy
	return d
}

func (s *Subscriber) initMessage(d *delivery, e *gateway.MessageReceived) {
	d.tenant, d.endpoint = e.TenantID, e.ReceivingEndpointID
	d.message1[0], d.messages = e.ID, d.message1[:]
	d.id1[0] = newID(e.ReceivingEndpointID, e.ID)
	d.IDs = d.id1[:]
	d.Family = xxh3.HashStringSeed(familyContext(e.AppMessageID), xxh3.Hash(d.id1[0][:16]))
	d.Bytes, d.Large = int64(len(e.Payload)), len(e.Payload) >= s.cfg.ChunkSize
	d.Hold = s.cfg.FileHold >= 0 && slices.Contains(s.cfg.Files, e.MessageType)
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, -1)
	}
}

func (s *Subscriber) initFile(d *delivery, e *gateway.FileReceived) {
	d.tenant, d.endpoint = e.TenantID, e.ReceivingEndpointID
	known := make(map[core.ID]struct{}, len(e.MessageIDs))
	for _, message := range e.MessageIDs {
		id := newID(e.ReceivingEndpointID, message)
		if _, again := known[id]; !again { // what is listed twice is one message
			known[id] = struct{}{}
			d.IDs, d.messages = append(d.IDs, id), append(d.messages, message)
		}
	}
	d.File = &core.File{ID: newFileID(d.IDs)}
	d.Bytes = int64(len(e.Payload))
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, e.Size)
	}
}

// embedded returns the payload in an event.
func embedded(event gateway.Event) []byte {
	switch e := event.(type) {
	case *gateway.MessageReceived:
		return e.Payload
	case *gateway.FileReceived:
		return e.Payload
	}
	return nil
}

func newID(endpointID, messageID string) (id core.ID) {
	putUUID(id[:16], endpointID)
	putUUID(id[16:], messageID)
	return id
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

// newFileID identifies a file by its receiving endpoint and the set of its messages. One without messages is delivered
// once, and has nothing in common with another. The second half is zero, which it never is for a message.
func newFileID(ids []core.ID) (id core.ID) {
	if len(ids) == 0 {
		own := uuid.New()
		copy(id[:], own[:])
		return id
	}
	sorted := slices.SortedFunc(slices.Values(ids), func(a, b core.ID) int { return slices.Compare(a[:], b[:]) })
	h := xxh3.New()
	for i := range sorted {
		_, _ = h.Write(sorted[i][:]) // a hash never fails
	}
	sum := h.Sum128().Bytes()
	copy(id[:], sum[:])
	return id
}

// identity names the event of d among the open ones; zero if it never comes again.
func (d *delivery) identity() (id core.ID) {
	switch {
	case d.File != nil:
		return d.File.ID
	case len(d.IDs) > 0:
		return d.IDs[0]
	}
	return id
}

// family returns what the context IDs of the message and of the other parts of its file have in common.
func (d *delivery) family() string {
	if e, ok := d.event.(*gateway.MessageReceived); ok {
		return familyContext(e.AppMessageID)
	}
	return ""
}

// numberedContext is the context ID of a payload with the number of a chunk.
var numberedContext = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}-[0-9]{1,9}$`)

// familyContext returns what the context IDs of the chunks of a payload have in common: all of
// it, except that some senders append a number to their UUID.
func familyContext(id string) string {
	const uuidLen = 36
	if len(id) > uuidLen && numberedContext.MatchString(id) {
		return id[:uuidLen]
	}
	return id
}

// isLarge reports whether the payload of d may be as large as a chunk.
func (s *Subscriber) isLarge(d *delivery) bool {
	e, ok := d.event.(*gateway.MessageReceived)
	if !ok {
		return false
	}
	size := int64(len(e.Payload))
	if d.payload != nil {
		size = max(d.payload.size, d.payload.opened.Load()-1)
	}
	return size < 0 || size >= int64(s.cfg.ChunkSize)
}
