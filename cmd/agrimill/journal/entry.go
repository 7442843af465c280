package journal

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/router"
)

// Step is what an entry tells.
type Step string

// What happens to a message.
const (
	// StepReceived: the event stream delivered it.
	StepReceived Step = "received"
	// StepUndeliverable: its payload cannot be had for now.
	StepUndeliverable Step = "undeliverable"
	// StepStarted: a route began with it.
	StepStarted Step = "started"
	// StepRetry: an attempt failed, another one follows.
	StepRetry Step = "retry"
	// StepStored: a sink stored it, or one that was made of it.
	StepStored Step = "stored"
	// StepDelivered: the route is done, its sink has everything.
	StepDelivered Step = "delivered"
	// StepFiltered: the route does not want it.
	StepFiltered Step = "filtered"
	// StepDuplicate: the route had handled it before.
	StepDuplicate Step = "duplicate"
	// StepPoisoned: it is in the poison queue.
	StepPoisoned Step = "poisoned"
	// StepPoisonFailed: the poison queue did not take it.
	StepPoisonFailed Step = "poison failed"
	// StepReturned: the route gave it back; it comes again.
	StepReturned Step = "returned"
	// StepConfirmed: the service accepted the confirmation.
	StepConfirmed Step = "confirmed"
	// StepRejected: the service will never accept the confirmation.
	StepRejected Step = "confirmation rejected"
)

// steps are written as their places here, so the order stays.
var steps = [...]Step{
	"", StepReceived, StepUndeliverable, StepStarted, StepRetry, StepStored, StepDelivered, StepFiltered, StepDuplicate,
	StepPoisoned, StepPoisonFailed, StepReturned, StepConfirmed, StepRejected,
}

// stepOf returns what the event of a route is; empty if it is not recorded.
func stepOf(kind router.EventKind) Step {
	switch kind {
	case router.EventStarted:
		return StepStarted
	case router.EventRetry:
		return StepRetry
	case router.EventStored:
		return StepStored
	case router.EventDelivered:
		return StepDelivered
	case router.EventFiltered:
		return StepFiltered
	case router.EventDuplicate:
		return StepDuplicate
	case router.EventPoisoned:
		return StepPoisoned
	case router.EventPoisonFailed:
		return StepPoisonFailed
	case router.EventReturned:
		return StepReturned
	}
	return ""
}

// maxText is how many bytes of a text that comes from outside are kept, and maxIDs of the list of
// a file's messages.
const (
	maxText = 512
	maxIDs  = 16 << 10
)

// entry is one thing that happened, as it is kept.
type entry struct {
	at        int64 // Unix nanoseconds
	step      Step
	duplicate bool
	attempt   int
	delay     time.Duration
	bytes     int64 // of the payload, -1 if unknown
	sequence  uint64
	offset    int64
	partition int32

	route, tenant, endpoint, eventType, messageType string
	contextID, filename, uuid, delivery             string
	messageIDs                                      string // separated by commas
	class, text                                     string
	stream, subject, topic, key, sentAs             string
}

// texts are what append writes, in this order.
func (e *entry) texts() [17]*string {
	return [...]*string{
		&e.route, &e.tenant, &e.endpoint, &e.eventType, &e.messageType, &e.contextID, &e.filename, &e.uuid, &e.delivery,
		&e.messageIDs, &e.class, &e.text, &e.stream, &e.subject, &e.topic, &e.key, &e.sentAs,
	}
}

// received returns the entry of a message or file that the event stream delivered; of other events
// there is none.
func received(event gateway.Event) (entry, bool) {
	switch event := event.(type) {
	case *gateway.MessageReceived:
		e := entry{
			step: StepReceived, bytes: -1, tenant: event.TenantID, endpoint: event.ReceivingEndpointID,
			eventType: string(gateway.EventMessageReceived), messageType: event.MessageType, contextID: event.AppMessageID,
			filename: event.Filename, messageIDs: event.ID,
		}
		if event.PayloadURI == "" {
			e.bytes = int64(len(event.Payload))
		}
		return e, true
	case *gateway.FileReceived:
		return entry{
			step: StepReceived, bytes: event.Size, tenant: event.TenantID, endpoint: event.ReceivingEndpointID,
			eventType: string(gateway.EventFileReceived), messageType: event.MessageType, filename: event.Filename,
			messageIDs: joined(event.MessageIDs),
		}, true
	}
	return entry{}, false
}

// joined joins as many IDs as are kept.
func joined(ids []string) string {
	n := 0
	for _, id := range ids {
		n += len(id) + 1
	}
	list := make([]byte, 0, min(n, maxIDs))
	for i, id := range ids {
		if len(list)+len(id) >= maxIDs {
			break
		}
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, id...)
	}
	return string(list)
}

// routed fills in the entry of what happened to a message on a route, and reports whether there is
// one. Retries become rarer in the journal as they go on, so that one message does not push out the
// others.
func (e *entry) routed(event *router.Event) bool {
	msg := event.Message
	if e.step = stepOf(event.Kind); e.step == "" || msg == nil || e.step == StepRetry && event.Attempt > 4 && bits.OnesCount(uint(event.Attempt)) > 1 {
		return false
	}
	meta := msg.Metadata
	e.route, e.uuid, e.attempt, e.delay, e.bytes, e.text = event.Route, msg.UUID, event.Attempt, event.Delay, -1, event.Text
	if e.messageIDs = meta[gateway.KeyMessageID]; e.messageIDs == "" {
		e.messageIDs = meta[gateway.KeyMessageIDs]
	}
	if e.messageIDs != "" {
		e.endpoint = meta[gateway.KeyReceivingEndpointID]
	} else if event.Context != nil {
		e.delivery = msgctx.Delivery(event.Context)
	}
	if event.Err != nil {
		e.class = event.Class.String()
	}
	switch e.step {
	case StepStarted: // the rest need not repeat it
		e.tenant, e.contextID, e.filename = meta[gateway.KeyTenantID], meta[gateway.KeyContextID], meta[gateway.KeyFilename]
		e.eventType, e.messageType = meta[gateway.KeyEventType], meta[gateway.KeyMessageType]
		if size, err := strconv.ParseInt(meta[gateway.KeyPayloadSize], 10, 64); err == nil {
			e.bytes = size
		} else if len(msg.Payload) > 0 {
			e.bytes = int64(len(msg.Payload))
		}
	case StepStored:
		r := &event.Receipt
		e.duplicate, e.stream, e.subject, e.sequence = r.Duplicate, r.Stream, r.Subject, r.Sequence
		e.topic, e.partition, e.offset, e.key, e.sentAs = r.Topic, r.Partition, r.Offset, r.Key, r.ID
	}
	return true
}

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// Which of texts may be longer than maxText.
const placeOfIDs = 9

// size is how many bytes append needs at most, and present has a bit for each text that is there.
func (e *entry) size() (n int, present uint32) {
	n = 14 + 6*binary.MaxVarintLen64
	for i, text := range e.texts() {
		if l := len(*text); l > 0 {
			present |= 1 << i
			if i == placeOfIDs {
				n += min(l, maxIDs) + 3
			} else {
				n += min(l, maxText) + 3
			}
		}
	}
	return n, present
}

// append writes the entry. present is what size said.
func (e *entry) append(data []byte, present uint32) []byte {
	data = binary.LittleEndian.AppendUint64(data, uint64(e.at))
	data = binary.LittleEndian.AppendUint32(data, present)
	var duplicate byte
	if e.duplicate {
		duplicate = 1
	}
	data = append(data, byte(slices.Index(steps[:], e.step)), duplicate)
	data = binary.AppendUvarint(data, uint64(e.attempt))
	data = binary.AppendVarint(data, int64(e.delay))
	data = binary.AppendVarint(data, e.bytes)
	data = binary.AppendUvarint(data, e.sequence)
	data = binary.AppendVarint(data, e.offset)
	data = binary.AppendVarint(data, int64(e.partition))
	for i, text := range e.texts() {
		if present&(1<<i) == 0 {
			continue
		}
		limit := maxText
		if i == placeOfIDs {
			limit = maxIDs
		}
		s := clip(*text, limit)
		data = binary.AppendUvarint(data, uint64(len(s)))
		data = append(data, s...)
	}
	return data
}

// read reads what append wrote and returns what follows.
func (e *entry) read(data []byte) []byte {
	e.at = int64(binary.LittleEndian.Uint64(data))
	present := binary.LittleEndian.Uint32(data[8:])
	e.step, e.duplicate = steps[data[12]], data[13] == 1
	data = data[14:]
	unsigned := func() uint64 {
		v, n := binary.Uvarint(data)
		data = data[n:]
		return v
	}
	signed := func() int64 {
		v, n := binary.Varint(data)
		data = data[n:]
		return v
	}
	e.attempt, e.delay, e.bytes = int(unsigned()), time.Duration(signed()), signed()
	e.sequence, e.offset, e.partition = unsigned(), signed(), int32(signed())
	for i, text := range e.texts() {
		if present&(1<<i) != 0 {
			n := int(unsigned())
			*text = string(data[:n])
			data = data[n:]
		}
	}
	return data
}
