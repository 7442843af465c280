package journal

import (
	"encoding/binary"
	"math/bits"
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
	// StepHeld: it is held back, because it may be a part of a file.
	StepHeld Step = "held"
	// StepUnclaimed: no file came that it is a part of; it goes on alone.
	StepUnclaimed Step = "no file came"
	// StepJoined: its file has come, and takes its place.
	StepJoined Step = "joined to a file"
	// StepFetched: its payload was downloaded.
	StepFetched Step = "fetched"
	// StepUntaken: there is no route that takes it.
	StepUntaken Step = "no route takes it"
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
	// StepPoisoned: it is in the poison queue, at the place if its sink tells.
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

// code is a step as it is written: its place in steps.
type code byte

const (
	codeReceived code = iota + 1
	codeUndeliverable
	codeStarted
	codeRetry
	codeStored
	codeDelivered
	codeFiltered
	codeDuplicate
	codePoisoned
	codePoisonFailed
	codeReturned
	codeConfirmed
	codeRejected
	codeHeld
	codeJoined
	codeFetched
	codeUntaken
	codeUnclaimed
)

// steps are in the order of the codes, which stays: a journal in a file has them.
var steps = [...]Step{
	"", StepReceived, StepUndeliverable, StepStarted, StepRetry, StepStored, StepDelivered, StepFiltered, StepDuplicate,
	StepPoisoned, StepPoisonFailed, StepReturned, StepConfirmed, StepRejected, StepHeld, StepJoined, StepFetched, StepUntaken,
	StepUnclaimed,
}

// codeOf returns what the event of a route is; 0 if it is not recorded.
func codeOf(kind router.EventKind) code {
	switch kind {
	case router.EventStarted:
		return codeStarted
	case router.EventRetry:
		return codeRetry
	case router.EventStored:
		return codeStored
	case router.EventDelivered:
		return codeDelivered
	case router.EventFiltered:
		return codeFiltered
	case router.EventDuplicate:
		return codeDuplicate
	case router.EventPoisoned:
		return codePoisoned
	case router.EventPoisonFailed:
		return codePoisonFailed
	case router.EventReturned:
		return codeReturned
	}
	return 0
}

// maxText is how many bytes of a text that comes from outside are kept, maxPlace of one that says where
// something is stored, which is of no use if it is cut, and maxIDs of the list of a file's messages.
const (
	maxText  = 512
	maxPlace = 4 << 10
	maxIDs   = 16 << 10
)

// entry is one thing that happened, as it is read.
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

// text is one of the texts of an entry.
type text byte

const (
	textRoute text = iota
	textTenant
	textEndpoint
	textEventType
	textMessageType
	textContextID
	textFilename
	textUUID
	textDelivery
	textMessageIDs
	textClass
	textText
	textStream
	textSubject
	textTopic
	textKey
	textSentAs
	numTexts
)

// texts are in the order of the constants above.
func (e *entry) texts() [numTexts]*string {
	return [...]*string{
		&e.route, &e.tenant, &e.endpoint, &e.eventType, &e.messageType, &e.contextID, &e.filename, &e.uuid, &e.delivery,
		&e.messageIDs, &e.class, &e.text, &e.stream, &e.subject, &e.topic, &e.key, &e.sentAs,
	}
}

// limit is how many bytes of it are kept.
func (t text) limit() int {
	switch t {
	case textMessageIDs:
		return maxIDs
	case textStream, textSubject, textTopic, textKey:
		return maxPlace
	}
	return maxText
}

// record is an entry to be written. Most have few of the numbers and texts.
type record struct {
	code      code
	duplicate bool
	attempt   int
	delay     time.Duration
	bytes     int64 // of the payload, -1 if unknown
	sequence  uint64
	offset    int64
	partition int32

	present uint32 // a bit for each text that is there
	n, size int
	texts   [numTexts]string // those that are there, in the order of the constants
}

// set adds a text. Those with smaller numbers come first.
func (r *record) set(t text, value string) {
	if value == "" {
		return
	}
	if len(value) > maxText {
		value = clip(value, t.limit())
	}
	r.present |= 1 << t
	r.texts[r.n] = value
	r.n++
	r.size += len(value) + 3
}

// received makes the record of a message or file that the event stream delivered, and reports whether it is one.
func (r *record) received(event gateway.Event, what code, reason string) bool {
	r.code = what
	switch event := event.(type) {
	case *gateway.MessageReceived:
		if r.bytes = -1; event.PayloadURI == "" {
			r.bytes = int64(len(event.Payload))
		}
		r.set(textTenant, event.TenantID)
		r.set(textEndpoint, event.ReceivingEndpointID)
		r.set(textEventType, string(gateway.EventMessageReceived))
		r.set(textMessageType, event.MessageType)
		r.set(textContextID, event.AppMessageID)
		r.set(textFilename, event.Filename)
		r.set(textMessageIDs, event.ID)
	case *gateway.FileReceived:
		r.bytes = event.Size
		r.set(textTenant, event.TenantID)
		r.set(textEndpoint, event.ReceivingEndpointID)
		r.set(textEventType, string(gateway.EventFileReceived))
		r.set(textMessageType, event.MessageType)
		r.set(textFilename, event.Filename)
		r.set(textMessageIDs, joined(event.MessageIDs))
	default:
		return false
	}
	r.set(textText, reason)
	return true
}

// confirmation makes the record of one.
func (r *record) confirmation(what code, tenant string, c *gateway.MessageConfirmation, reason string) {
	r.code, r.bytes = what, 0
	r.set(textTenant, tenant)
	r.set(textEndpoint, c.EndpointID)
	r.set(textMessageIDs, c.MessageID)
	r.set(textText, reason)
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

// routed makes the record of what happened to a message on a route, and reports whether there is
// one. Retries become rarer in the journal as they go on, so that one message does not push out the
// others.
func (r *record) routed(event *router.Event) bool {
	msg := event.Message
	if r.code = codeOf(event.Kind); r.code == 0 || msg == nil || r.code == codeRetry && event.Attempt > 4 && bits.OnesCount(uint(event.Attempt)) > 1 {
		return false
	}
	meta := msg.Metadata
	r.attempt, r.delay, r.bytes = event.Attempt, event.Delay, -1
	ids := meta[gateway.KeyMessageID]
	if ids == "" {
		ids = meta[gateway.KeyMessageIDs]
	}
	r.set(textRoute, event.Route)
	started := r.code == codeStarted
	if started { // the rest need not repeat it
		r.set(textTenant, meta[gateway.KeyTenantID])
	}
	if ids != "" {
		r.set(textEndpoint, meta[gateway.KeyReceivingEndpointID])
	}
	if started {
		r.set(textEventType, meta[gateway.KeyEventType])
		r.set(textMessageType, meta[gateway.KeyMessageType])
		r.set(textContextID, meta[gateway.KeyContextID])
		r.set(textFilename, meta[gateway.KeyFilename])
		if size, err := strconv.ParseInt(meta[gateway.KeyPayloadSize], 10, 64); err == nil {
			r.bytes = size
		} else if len(msg.Payload) > 0 {
			r.bytes = int64(len(msg.Payload))
		}
	}
	r.set(textUUID, msg.UUID)
	if ids == "" && event.Context != nil {
		r.set(textDelivery, msgctx.Delivery(event.Context))
	}
	r.set(textMessageIDs, ids)
	if event.Err != nil {
		r.set(textClass, event.Class.String())
	}
	r.set(textText, event.Text)
	if r.code == codeStored || r.code == codePoisoned {
		at := &event.Receipt
		r.duplicate, r.sequence, r.partition, r.offset = at.Duplicate, at.Sequence, at.Partition, at.Offset
		r.set(textStream, at.Stream)
		r.set(textSubject, at.Subject)
		r.set(textTopic, at.Topic)
		r.set(textKey, at.Key)
		r.set(textSentAs, at.ID)
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

// Bits of what follows the texts that are there; what has none is zero.
const (
	hasDuplicate = 1 << iota
	hasAttempt
	hasDelay
	hasBytes
	hasSequence
	hasOffset
	hasPartition
)

// headSize is how many bytes an entry begins with: time, texts, step, numbers.
const headSize = 8 + 4 + 1 + 1

// room is how many bytes append needs at most.
func (r *record) room() int { return headSize + 6*binary.MaxVarintLen64 + r.size }

// append writes the record as an entry.
func (r *record) append(data []byte, at int64) []byte {
	var numbers byte
	if r.duplicate {
		numbers |= hasDuplicate
	}
	head := len(data)
	data = binary.LittleEndian.AppendUint64(data, uint64(at))
	data = binary.LittleEndian.AppendUint32(data, r.present)
	data = append(data, byte(r.code), 0)
	if r.attempt != 0 {
		numbers |= hasAttempt
		data = binary.AppendUvarint(data, uint64(r.attempt))
	}
	if r.delay != 0 {
		numbers |= hasDelay
		data = binary.AppendVarint(data, int64(r.delay))
	}
	if r.bytes != 0 {
		numbers |= hasBytes
		data = binary.AppendVarint(data, r.bytes)
	}
	if r.sequence != 0 {
		numbers |= hasSequence
		data = binary.AppendUvarint(data, r.sequence)
	}
	if r.offset != 0 {
		numbers |= hasOffset
		data = binary.AppendVarint(data, r.offset)
	}
	if r.partition != 0 {
		numbers |= hasPartition
		data = binary.AppendVarint(data, int64(r.partition))
	}
	data[head+headSize-1] = numbers
	for _, s := range r.texts[:r.n] {
		if len(s) < 0x80 { // as nearly always: a varint of one byte, without a call
			data = append(data, byte(len(s)))
		} else {
			data = binary.AppendUvarint(data, uint64(len(s)))
		}
		data = append(data, s...)
	}
	return data
}

// read reads what append wrote and returns what follows. What it does not understand is the end.
func (e *entry) read(data []byte) (rest []byte, ok bool) {
	if len(data) < headSize || int(data[12]) >= len(steps) {
		return nil, false
	}
	e.at = int64(binary.LittleEndian.Uint64(data))
	present := binary.LittleEndian.Uint32(data[8:])
	numbers := data[13]
	e.step, e.duplicate = steps[data[12]], numbers&hasDuplicate != 0
	data, ok = data[headSize:], true
	unsigned := func() uint64 {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			data, ok = nil, false
			return 0
		}
		data = data[n:]
		return v
	}
	signed := func() int64 {
		v := unsigned()
		return int64(v>>1) ^ -int64(v&1)
	}
	if numbers&hasAttempt != 0 {
		e.attempt = int(unsigned())
	}
	if numbers&hasDelay != 0 {
		e.delay = time.Duration(signed())
	}
	if numbers&hasBytes != 0 {
		e.bytes = signed()
	}
	if numbers&hasSequence != 0 {
		e.sequence = unsigned()
	}
	if numbers&hasOffset != 0 {
		e.offset = signed()
	}
	if numbers&hasPartition != 0 {
		e.partition = int32(signed())
	}
	for i, text := range e.texts() {
		if present&(1<<i) == 0 {
			continue
		}
		n := unsigned()
		if !ok || n > uint64(len(data)) {
			return nil, false
		}
		*text, data = string(data[:n]), data[n:]
	}
	return data, ok
}
