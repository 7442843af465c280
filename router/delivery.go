package router

import (
	"context"
	"crypto/sha256"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// delivery is what the parts of the chain tell each other about one message. It
// hangs in the message's context. One goroutine at a time uses it.
type delivery struct {
	// ctx is the context that the message came with, whatever middlewares and handlers
	// make of it.
	ctx context.Context

	key    Key
	hasKey bool
	// touched: the sink took the message in this attempt, so success means that
	// the sink is there. A filtered message or a duplicate proves nothing.
	// Without a sink, the handler counts as one.
	touched   bool
	filtered  bool
	rejected  bool // filtered by Filter or Select
	duplicate bool
	poisoned  bool
	reason    string // why it was poisoned, redacted
	replayed  bool   // it comes from the poison queue, and is nowhere else

	publishes bool      // the route has a sink, and asks retrying before it publishes
	retrying  *retrying // the Retry that makes the attempt; nil without one
	own       retrying  // that of the first Retry
	sent      []string  // topics that the sink has taken messages for in this attempt
	sent1     [1]string

	// What is known of payloads from earlier attempts: the one that was with the
	// service, and those in the claim check, by key.
	lazy   *located
	stored map[string]*located

	// once has what Once remembers; nil if nothing asked.
	once map[any]any

	// value is what the subscriber tells, and SentAt: when the first attempt began.
	// The publisher to the gateway finds it in the message's context, perhaps still
	// in an attempt that was abandoned, so it is set once.
	value msgctx.Value
	// made has the messages that the handler made in the last attempt, in their
	// order.
	made []madeMessage
}

// madeMessage is a message that a handler has made.
type madeMessage struct {
	content xxh3.Uint128
	uuid    string
}

// uuidNamespace keeps derived UUIDs apart from those of others.
const uuidNamespace = "5be0ff8c-51a4-4d24-8f5d-2a1b0b7d8f0e"

// assignUUID sees to it that the i-th message that the handler returned has a UUID,
// and the same one in each attempt: handlers tend to make new ones, and the
// publisher to the gateway derives the context ID from it, by which receivers
// recognise a copy. Another payload keeps the UUID that the handler gave it.
// received is the UUID of the message that was received.
func (d *delivery) assignUUID(received string, m *message.Message, i int) {
	if m.UUID != "" && m.UUID == received {
		return
	}
	content := xxh3.Hash128(m.Payload)
	if reference := m.Metadata[gateway.KeyPayloadReference]; reference != "" && len(m.Payload) == 0 {
		content = xxh3.HashString128(reference)
	}
	for len(d.made) <= i {
		d.made = append(d.made, madeMessage{})
	}
	switch last := &d.made[i]; {
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
	case d.hasKey:
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

type deliveryKey struct{}

// deliveryContext carries a delivery in one allocation.
type deliveryContext struct {
	context.Context
	names    *names // nil when the message is replayed
	delivery delivery
}

func (c *deliveryContext) Value(key any) any {
	switch key.(type) {
	case deliveryKey:
		return &c.delivery
	case msgctx.Key:
		return &c.delivery.value
	}
	if value := c.names.Value(key); value != nil {
		return value
	}
	return c.Context.Value(key)
}

// publishing returns the context in which a message is published that was made in ctx:
// it has the values of ctx and of base, and ends when the delivery does. The context of
// a handler may have ended when the handler has returned: Watermill's Timeout, say, ends
// it then. base is the delivery's context, or what publishing made of it.
func (d *delivery) publishing(base, ctx context.Context) context.Context {
	if ctx == context.Background() {
		return base
	}
	if ctx.Done() == d.ctx.Done() && ctx.Value(deliveryKey{}) == d {
		return ctx
	}
	// Without WithoutCancel, context.Cause would tell why the handler's ended.
	return &publishContext{Context: base, values: context.WithoutCancel(ctx)}
}

// publishContext has the values of another context in front of its own.
type publishContext struct {
	context.Context
	values context.Context
}

func (c *publishContext) Value(key any) any {
	if value := c.values.Value(key); value != nil {
		return value
	}
	return c.Context.Value(key)
}

// deliveryOf returns nil when the message is not under this package's Router.
func deliveryOf(msg *message.Message) *delivery {
	d, _ := msg.Context().Value(deliveryKey{}).(*delivery)
	return d
}
