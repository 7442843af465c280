package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// produced is what a route has made of a message, for as long as it tries to publish it.
// Once the sink may have some of it, it stays what it is: a handler that is asked again may
// write another time into it, and the sink would store both.
type produced struct {
	product
	// begun: the sink may have some of it.
	begun bool

	// One message is the rule, and costs no allocation.
	oneMessage [1]*message.Message
	oneTopic   [1]string
	oneContext [1]context.Context
}

type product struct {
	messages []*message.Message
	topics   []string
	// contexts are those that the handler gave to the messages.
	contexts []context.Context
	// uuids are those of the messages that the handler has made in the last attempt, in
	// their order.
	uuids []madeMessage
}

func (p *produced) reset(n int) {
	p.begun = false
	if n == 1 {
		p.messages, p.topics, p.contexts = p.oneMessage[:], p.oneTopic[:], p.oneContext[:]
		return
	}
	p.messages, p.topics, p.contexts = make([]*message.Message, n), make([]string, n), make([]context.Context, n)
}

// stored returns the topics of what the sink has taken in this attempt.
func (d *delivery) stored() []string { return d.made.topics[:d.sent] }

// leaveOutStored takes what the sink has taken in this attempt out of what is published in the next one. When all of it has to
// survive a power cut, all of it is published again: it is asked about together.
func (d *delivery) leaveOutStored() {
	if p := &d.made.product; d.route.durable == nil {
		p.messages, p.topics, p.contexts = p.messages[d.sent:], p.topics[d.sent:], p.contexts[d.sent:]
	}
	d.sent = 0
}

// keepUpTo is how many bytes a route may have made of a message that waits with its
// subscriber, if the message itself is not larger, for them to be kept meanwhile.
const keepUpTo = 64 << 10

// keptProduct is what is kept of a delivery while the message waits with its subscriber.
type keptProduct struct {
	product // without messages if there is nothing to keep, or too much
	sentAt  time.Time
}

// keep returns what the next delivery of received goes on with.
func (d *delivery) keep(received *message.Message) *keptProduct {
	kept := &keptProduct{product{uuids: d.made.uuids}, d.value.SentAt}
	if !d.made.begun {
		return kept
	}
	size := 0
	for _, m := range d.made.messages {
		if !sameBytes(m.Payload, received.Payload) {
			size += len(m.Payload)
		}
	}
	if size <= max(keepUpTo, len(received.Payload)) {
		kept.messages = slices.Clone(d.made.messages)
		kept.topics = slices.Clone(d.made.topics)
		for _, ctx := range d.made.contexts {
			kept.contexts = append(kept.contexts, leaveDelivery(ctx))
		}
	}
	return kept
}

// leaveDelivery returns ctx without the delivery it belonged to.
func leaveDelivery(ctx context.Context) context.Context {
	if ctx.Value(deliveryKey{}) == nil {
		return ctx
	}
	return ofFormerDelivery{ctx}
}

// ofFormerDelivery has the values of a context but for those of the delivery it belonged to.
type ofFormerDelivery struct{ context.Context }

func (c ofFormerDelivery) Value(key any) any {
	switch key.(type) {
	case deliveryKey, msgctx.Key, msgctx.ReceiptsKey:
		return nil
	}
	return c.Context.Value(key)
}

func (d *delivery) resume(kept *keptProduct) {
	d.made.product, d.made.begun = kept.product, len(kept.messages) > 0
	if d.value.SentAt.IsZero() {
		d.value.SentAt = kept.sentAt
	}
}

func sameBytes(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// namer gives the messages that a route has made their names.
type namer struct {
	delivery *delivery
	received *message.Message
	replay   int       // how often the message was poisoned
	room     [512]byte // of content
	// Of several messages.
	equals map[Key]int
	uuids  map[string]bool
}

func (d *delivery) namer(received *message.Message, messages int) namer {
	n := namer{delivery: d, received: received}
	if messages > 1 {
		n.uuids = make(map[string]bool, messages)
	}
	if d.key == (Key{}) {
		return n
	}
	if text := received.Metadata[KeyPoisonCount]; text != "" {
		if count, err := strconv.Atoi(text); err == nil && count > 0 {
			n.replay = count
		}
	}
	if messages > 1 {
		n.equals = make(map[Key]int, messages)
	}
	return n
}

// content returns what names what the handler has put into a message, until it is called again: the delivery, which has the
// route in its key, the number of the replay, the payload, and the metadata that were not received like that, without those that
// tell a trace, which is another one in each attempt.
func (n *namer) content(m *message.Message) []byte {
	buf := append(n.room[:0], "made"...)
	buf = append(buf, n.delivery.key[:]...)
	buf = binary.AppendUvarint(buf, uint64(n.replay))
	if n.delivery.route.unchanged {
		return append(buf, 'r') // as below, without a look at it
	}
	if bytes.Equal(m.Payload, n.received.Payload) {
		buf = append(buf, 'r')
	} else {
		digest := xxh3.Hash128(m.Payload).Bytes()
		buf = append(append(buf, 'p'), digest[:]...)
	}
	var keySpace [8]string
	set := keySpace[:0]
	for key, value := range m.Metadata {
		if was, ok := n.received.Metadata[key]; ok && was == value || key == gateway.KeyDedupID || tellsTrace(key) {
			continue
		}
		set = append(set, key)
	}
	slices.Sort(set)
	for _, key := range set {
		buf = appendPart(appendPart(buf, key), m.Metadata[key])
	}
	return buf
}

// name returns the name of a message with that content in a topic: the ordinal among equals
// makes two of what is the same otherwise.
func (n *namer) name(content []byte, topic string) Key {
	name := hash(appendPart(content, topic))
	if n.equals == nil {
		return name
	}
	ordinal := n.equals[name]
	n.equals[name] = ordinal + 1
	if ordinal == 0 {
		return name
	}
	return hash(binary.AppendUvarint(name[:len(name):len(name)], uint64(ordinal)))
}

// tellsTrace reports whether a key is one of the W3C trace context.
func tellsTrace(key string) bool {
	return strings.EqualFold(key, "traceparent") || strings.EqualFold(key, "tracestate")
}

// madeMessage is a message that a handler has made.
type madeMessage struct {
	content xxh3.Uint128
	uuid    string
}

// uuidNamespace keeps derived UUIDs apart from those of others.
const uuidNamespace = "5be0ff8c-51a4-4d24-8f5d-2a1b0b7d8f0e"

// assignUUID sees to it that the i-th message that the handler returned has a UUID of its own, and the same one in each
// attempt: handlers tend to make new ones, or to give that of the received message to all, and the publisher to the gateway
// derives the context ID from it, by which receivers recognise a copy. Another payload keeps the UUID that it has.
func (n *namer) assignUUID(m *message.Message, i int) {
	d, received := n.delivery, n.received.UUID
	if n.uuids != nil {
		if n.uuids[m.UUID] {
			m.UUID = ""
		}
		defer func() { n.uuids[m.UUID] = true }()
	}
	if m.UUID != "" && m.UUID == received {
		return
	}
	content := xxh3.Hash128(m.Payload)
	if reference := m.Metadata[gateway.KeyPayloadReference]; reference != "" && len(m.Payload) == 0 {
		content = xxh3.HashString128(reference)
	}
	for len(d.made.uuids) <= i {
		d.made.uuids = append(d.made.uuids, madeMessage{})
	}
	switch last := &d.made.uuids[i]; {
	case last.uuid != "" && last.content == content:
		m.UUID = last.uuid
	case m.UUID == "":
		m.UUID = d.deriveUUID(received, content, i)
		fallthrough
	default:
		*last = madeMessage{content, m.UUID}
	}
}

// deriveUUID makes a UUID that is the same when the message is delivered again,
// unless there is nothing to tell that by.
func (d *delivery) deriveUUID(received string, content xxh3.Uint128, i int) string {
	var name []byte
	switch {
	case d.key != (Key{}):
		name = appendPart(name, d.key.String())
	case received != "":
		name = appendPart(name, received)
	default:
		return uuid.NewString()
	}
	digest := content.Bytes()
	name = append(appendPart(name, strconv.Itoa(i)), digest[:]...)
	return uuid.NewHash(sha256.New(), uuid.MustParse(uuidNamespace), name, 8).String()
}
