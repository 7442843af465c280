package router

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/sinks"
)

// delivery is what the parts of the chain tell each other about one message. It is
// the message's context. One goroutine at a time uses it.
type delivery struct {
	// Context is the one that the message came with.
	context.Context
	// route and received are whose delivery it is.
	route    *route
	received *message.Message
	// replay: it comes from the poison queue, and is nowhere else; nil otherwise.
	replay *replayed

	dedupID // that of [Dedup]; zero without one
	// touched: the sink took the message in this attempt, so success means that
	// the sink is there. A filtered message or a duplicate proves nothing.
	// Without a sink, the handler counts as one.
	touched   bool
	filtered  bool
	rejected  bool // filtered by Filter
	duplicate bool
	poisoned  bool
	placed    bool // what was made has its place, and others may have theirs behind it

	retrying *retrying // the Retry that makes the attempt; nil without one
	own      retrying  // that of the first Retry
	// once has what is remembered over attempts, see remember; nil if nothing is.
	once map[any]any
	// value is what the subscriber tells, and SentAt: when the first attempt began. The publisher to the gateway finds it in
	// the message's context, perhaps still in an attempt that was abandoned, so it is set once.
	value msgctx.Value
	// made is what the handler made, see produced.go, and sent how many of its messages the sink has taken in this attempt.
	made   produced
	sent   int
	passed passed
	storing
}

// storing is what is told of a message that a sink is given.
type storing struct {
	// sending is when the attempt began to publish it, since began. A sink may still tell of an
	// attempt that was abandoned.
	sending atomic.Int64
	// records are what [Dedup] records once what was stored survives a power cut.
	records []msgctx.Record
	// durable is what the sinks said once it was stored, see horizon.
	durable *known
}

// began is a time that others are counted from: asking how much has passed costs less than asking
// for the time.
var began = time.Now()

type deliveryKey struct{}

// replayed is what is known of a delivery that comes from the poison queue.
type replayed struct {
	record string // the ID of its record there, if it has one
	reason string // why it was poisoned again, redacted
}

// Value implements context.Context.
func (d *delivery) Value(key any) any {
	switch key.(type) {
	case deliveryKey, msgctx.ReceiptsKey:
		return d
	case msgctx.Key:
		return &d.value
	case msgctx.DeliveryKey:
		// Not in value: what is made in the message's context is another message.
		return msgctx.Received(d.Context).Delivery
	}
	if d.replay == nil {
		if value := d.route.names.Value(key); value != nil {
			return value
		}
	}
	return d.Context.Value(key)
}

// pipeline returns who is told how far the delivery has come; nil if nobody is.
func (d *delivery) pipeline() msgctx.Pipeline {
	if !d.route.pipelined.Load() || d.value.Nack == nil {
		return nil
	}
	return d.value.Nack.Pipeline
}

// Stored is called by sinks, see [sinks.ReportStored].
func (d *delivery) Stored(_ *message.Message, receipt sinks.Receipt) {
	if d.route.health.next == nil {
		return
	}
	took := time.Since(began) - time.Duration(d.sending.Load())
	d.route.health.Observe(Event{Kind: EventStored, Context: d, Message: d.passed.told, Receipt: receipt, Delay: took})
}

func (d *delivery) begin() { d.sending.Store(int64(time.Since(began))) }

// publishing returns the context in which a message is published that was made in ctx: it has the values of ctx and of base,
// and ends when the delivery does. That of a handler may have ended when the handler has returned, as with Watermill's
// Timeout. base is the delivery's context, or what publishing made of it.
func (d *delivery) publishing(base, ctx context.Context) context.Context {
	if ctx == context.Background() {
		return base
	}
	// Asked for its end, the context of a delivery makes what tells of it, and most are never asked.
	if ctx == context.Context(d) || ctx.Done() == d.Done() && ctx.Value(deliveryKey{}) == d {
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
