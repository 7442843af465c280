package journal

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/router"
)

// Step is what an entry tells.
type Step int

// What happens to a message. Their order stays: a journal in a file has their numbers.
const (
	// StepReceived: the event stream delivered it.
	StepReceived Step = iota + 1
	// StepUndeliverable: its payload cannot be had for now.
	StepUndeliverable
	// StepStarted: a route began with it.
	StepStarted
	// StepRetry: an attempt failed, another one follows.
	StepRetry
	// StepStored: a sink stored it, or one that was made of it.
	StepStored
	// StepDelivered: the route is done, its sink has everything.
	StepDelivered
	// StepFiltered: the route does not want it.
	StepFiltered
	// StepDuplicate: the route had handled it before.
	StepDuplicate
	// StepPoisoned: it is in the poison queue, at the place if its sink tells.
	StepPoisoned
	// StepPoisonFailed: the poison queue did not take it.
	StepPoisonFailed
	// StepReturned: the route gave it back; it comes again.
	StepReturned
	// StepConfirmed: the service accepted the confirmation.
	StepConfirmed
	// StepRejected: the service will never accept the confirmation.
	StepRejected
	// StepHeld: it is held back, because it may be a part of a file.
	StepHeld
	// StepJoined: its file has come, and takes its place.
	StepJoined
	// StepFetched: its payload was downloaded.
	StepFetched
	// StepUntaken: there is no route that takes it.
	StepUntaken
	// StepUnclaimed: no file came that it is a part of; it goes on alone.
	StepUnclaimed
	// StepLost: the broker had acknowledged it, and does not have it any longer.
	StepLost
)

var steps = []string{
	"", "received", "undeliverable", "started", "retry", "stored", "delivered", "filtered", "duplicate", "poisoned", "poison failed",
	"returned", "confirmed", "confirmation rejected", "held", "joined to a file", "fetched", "no route takes it", "no file came",
	"lost by the broker",
}

// String says it in a few words.
func (s Step) String() string { return enum.Text(s, steps) }

// MarshalText returns String.
func (s Step) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String returns.
func (s *Step) UnmarshalText(text []byte) error { return enum.Parse(s, text, steps) }

// ofRoute has what the events of a route are; 0 if they are not recorded.
var ofRoute = [...]Step{
	router.EventStarted: StepStarted, router.EventRetry: StepRetry, router.EventStored: StepStored, router.EventDelivered: StepDelivered,
	router.EventFiltered: StepFiltered, router.EventDuplicate: StepDuplicate, router.EventPoisoned: StepPoisoned,
	router.EventPoisonFailed: StepPoisonFailed, router.EventReturned: StepReturned,
}

// maxText is how many bytes of a text that comes from outside are kept, maxPlace of one that says where
// something is stored, which is of no use if it is cut, and maxIDs of the list of a file's messages.
const (
	maxText  = 512
	maxPlace = 4 << 10
	maxIDs   = 16 << 10
)

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
	step      Step
	duplicate bool
	attempt   int
	delay     time.Duration
	bytes     int64 // of the payload, -1 if unknown
	sequence  uint64
	offset    int64
	partition int32

	present uint32 // a bit for each text that is there
	size    int
	texts   [numTexts]string
}

// set adds a text.
func (r *record) set(t text, value string) {
	if value == "" {
		return
	}
	if len(value) > maxText {
		value = clip(value, t.limit())
	}
	r.present |= 1 << t
	r.texts[t] = value
	r.size += len(value) + 3
}

// received makes the record of a message or file that the event stream delivered, and reports whether it is one.
func (r *record) received(event gateway.Event, what Step, reason string) bool {
	r.step = what
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
func (r *record) confirmation(what Step, tenant string, c *gateway.MessageConfirmation, reason string) {
	r.step, r.bytes = what, 0
	r.set(textTenant, tenant)
	r.set(textEndpoint, c.EndpointID)
	r.set(textMessageIDs, c.MessageID)
	r.set(textText, reason)
}

// lost makes the record of what stored has stored.
func (r *record) lost(stored *Entry) {
	r.step, r.bytes, r.sequence = StepLost, -1, stored.numbers[numberSequence]
	r.offset, r.partition = stored.signed(numberOffset), int32(stored.signed(numberPartition))
	for t, value := range stored.texts {
		if t := text(t); t != textTenant && t != textSentAs { // nobody repeats the one, and the broker had not sent it
			r.set(t, string(value))
		}
	}
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
	if event.Kind >= 0 && int(event.Kind) < len(ofRoute) {
		r.step = ofRoute[event.Kind]
	}
	if r.step == 0 || msg == nil || r.step == StepRetry && event.Attempt > 4 && bits.OnesCount(uint(event.Attempt)) > 1 {
		return false
	}
	meta := msg.Metadata
	r.attempt, r.delay, r.bytes = event.Attempt, event.Delay, -1
	ids := meta[gateway.KeyMessageID]
	if ids == "" {
		ids = meta[gateway.KeyMessageIDs]
	}
	r.set(textRoute, event.Route)
	started := r.step == StepStarted
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
	if r.step == StepStored || r.step == StepPoisoned {
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

// Numbers of an entry, as varints, those with a sign as zigzag. What is not there is zero. A byte has a bit for each, behind that of
// hasDuplicate.
const (
	numberAttempt = iota
	numberDelay
	numberBytes
	numberSequence
	numberOffset
	numberPartition

	hasDuplicate = 1
)

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

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
	data = append(data, byte(r.step), 0)
	for i, v := range [...]uint64{
		numberAttempt: uint64(r.attempt), numberDelay: zigzag(int64(r.delay)), numberBytes: zigzag(r.bytes),
		numberSequence: r.sequence, numberOffset: zigzag(r.offset), numberPartition: zigzag(int64(r.partition)),
	} {
		if v != 0 {
			numbers |= 2 << i
			data = binary.AppendUvarint(data, v)
		}
	}
	data[head+headSize-1] = numbers
	for present := r.present; present != 0; present &= present - 1 {
		s := r.texts[bits.TrailingZeros32(present)]
		if len(s) < 0x80 { // as nearly always: a varint of one byte, without a call
			data = append(data, byte(len(s)))
		} else {
			data = binary.AppendUvarint(data, uint64(len(s)))
		}
		data = append(data, s...)
	}
	return data
}

// Entry is one thing that happened, as it is read. Its texts are parts of what is read, so they are valid during the call that
// gets it.
type Entry struct {
	// At is when it was, in Unix nanoseconds.
	At   int64
	Step Step

	duplicate bool
	numbers   [7]uint64 // one for each bit
	present   uint32    // a bit for each text
	texts     [numTexts][]byte
}

// read reads what append wrote and returns what follows. What it does not understand is the end.
func (e *Entry) read(data []byte) (rest []byte, ok bool) {
	if len(data) < headSize || int(data[12]) >= len(steps) {
		return nil, false
	}
	for ; e.present != 0; e.present &= e.present - 1 {
		e.texts[bits.TrailingZeros32(e.present)] = nil // of the entry before
	}
	e.At, e.Step, e.duplicate, e.numbers = int64(binary.LittleEndian.Uint64(data)), Step(data[12]), data[13]&hasDuplicate != 0, [7]uint64{}
	e.present = binary.LittleEndian.Uint32(data[8:]) & (1<<numTexts - 1)
	numbers := data[13] >> 1
	data = data[headSize:]
	for ; numbers != 0; numbers &= numbers - 1 {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, false
		}
		e.numbers[bits.TrailingZeros8(numbers)], data = v, data[n:]
	}
	for present := e.present; present != 0; present &= present - 1 {
		if len(data) == 0 {
			return nil, false
		}
		n, size := uint64(data[0]), 1 // nearly always: a varint of one byte
		if n >= 0x80 {
			if n, size = binary.Uvarint(data); size <= 0 {
				return nil, false
			}
		}
		if n > uint64(len(data)-size) {
			return nil, false
		}
		end := size + int(n)
		e.texts[bits.TrailingZeros32(present)], data = data[size:end:end], data[end:]
	}
	return data, true
}

// Route is empty for what happens before a route gets the message, and for confirmations.
func (e *Entry) Route() []byte { return e.texts[textRoute] }

// Tenant is there when a message is received and when a route begins with it, and of confirmations.
func (e *Entry) Tenant() []byte { return e.texts[textTenant] }

// Endpoint is the receiving one, in all entries of what came from the gateway.
func (e *Entry) Endpoint() []byte { return e.texts[textEndpoint] }

// ID is the same in all entries of a message: its message ID, of a file that of its first message. Of one that does not
// come from the gateway it is the place with the broker, or its UUID.
func (e *Entry) ID() []byte {
	if ids := e.texts[textMessageIDs]; ids != nil {
		first, _, _ := bytes.Cut(ids, []byte{','})
		return first
	}
	if delivery := e.texts[textDelivery]; delivery != nil {
		return delivery
	}
	return e.texts[textUUID]
}

// Attempt counts the attempts of a route, that of the entry included; 0 if the entry does not tell.
func (e *Entry) Attempt() int { return int(min(e.numbers[numberAttempt], math.MaxInt32)) }

// Delay is when it is tried again; of StepStored, how long the sink took.
func (e *Entry) Delay() time.Duration { return time.Duration(e.signed(numberDelay)) }

// bytes is the size of the payload, -1 if unknown.
func (e *Entry) bytes() int64 { return e.signed(numberBytes) }

func (e *Entry) signed(number int) int64 {
	v := e.numbers[number]
	return int64(v>>1) ^ -int64(v&1)
}

func (e *Entry) text(t text) string { return string(e.texts[t]) }
