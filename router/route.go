package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/sinks"
)

// Route defines where messages come from, how they are processed and where they go.
type Route struct {
	// Name identifies the route in logs, metrics, Health, the poison queue and the dedup keys: a renamed route does not
	// recognize what it handled before. Required, unique within the Router.
	Name string
	// From delivers the messages: the gateway's Subscriber or any other Watermill subscriber, which bounds how many are in
	// flight, and keeps them in order: each is handled as soon as it is received. Required; several routes may share
	// one. The Router closes it. If it closes its channel on its own and has a method Err() error, Router.Run returns that
	// error as the reason. While a method ReadError() (since time.Time, err error) returns an error, a running route
	// is in an outage. Either may be that of a subscriber behind it, which its method Unwrap() message.Subscriber returns.
	From message.Subscriber
	// Topic is the topic that From is subscribed to. Required.
	Topic string

	// Filter reports whether the route accepts the message; others are acknowledged and counted. What every route refuses is
	// up to the subscriber, see subscriber.Config.Unmatched. An error is handled by its class: what cannot be told yet is an
	// [Outage]. It is asked in every attempt until Transform has made what is published; see [Once]. It must not
	// modify the message. Packages router/expr and router/farm make filters. Nil accepts all.
	Filter func(msg *message.Message) (bool, error)
	// Transform turns the received message into those that are published; none filters it out. It receives a copy that it
	// may modify and return (the payload's bytes are shared: replace them, do not write to them), and what it returns
	// belongs to the Router. Once the sink may have some of it, the Router publishes the same messages until all are
	// stored, and does not ask Transform again; what the sink refuses for good, and what was made for a delivery that
	// waits with its subscriber and is larger than 64 KiB and than the message, is made anew. A message that another
	// attempt produces again, with the same payload, keeps the UUID of the first attempt, and of several with one UUID the
	// first one keeps it. An error is handled by its class; undecodable data is [Permanent]. Nil passes the message on.
	Transform message.HandlerFunc
	// Middleware runs innermost, around Filter and Transform, whenever they do, the first one outermost. It sees the
	// messages that will be published and may modify them.
	Middleware []message.HandlerMiddleware

	// To is where the messages go. Required, unless Transform does all the work and returns none. Several routes may share
	// one. The Router closes it. Use [sinks.FromPublisher] for other Watermill publishers. An error of the sink that
	// [ClassOf] does not know counts as an outage.
	To sinks.Sink
	// ToTopic is the template of the topic, see [sinks.ParseTopicTemplate]; a message that lacks one of its values goes to
	// the poison queue, unless the template provides a default. Empty means [DefaultToTopic], and {type} for a sink whose
	// topic is the message type ([sinks.Description].TopicIsType), as that of the gateway. There the topic is what is sent
	// as the type; and what the metadata received says of its payload, gateway.KeyContextID and
	// gateway.KeySentTimestamp, is not sent with another payload.
	ToTopic string
	// TopicFunc returns the topic of a message instead of ToTopic. Only one of them may be set. It must be safe for
	// concurrent use and must not modify the message.
	TopicFunc func(msg *message.Message) (string, error)
	// Durable is what a message has to survive before it is confirmed: [DurableSynced] needs this module's subscriber of the gateway,
	// and a sink and a poison queue of which [sinks.Description].Synced is known; until it is, messages wait as in an
	// outage. The zero value is [DurableAcknowledged].
	Durable Durable
}

func (r *Route) validate() error {
	switch {
	case r.Name == "":
		return fmt.Errorf("%w: route: Name is required", ErrConfig)
	case r.From == nil:
		return fmt.Errorf("%w: route %q: From is required", ErrConfig, r.Name)
	case r.Topic == "":
		return fmt.Errorf("%w: route %q: Topic is required", ErrConfig, r.Name)
	case r.To == nil && r.Transform == nil:
		return fmt.Errorf("%w: route %q: To is required without Transform", ErrConfig, r.Name)
	case r.ToTopic != "" && r.TopicFunc != nil:
		return fmt.Errorf("%w: route %q: a template and a function for the topic exclude each other", ErrConfig, r.Name)
	}
	if r.TopicFunc == nil && r.To != nil {
		template := r.ToTopic
		switch {
		case template != "":
		case r.To.Describe().TopicIsType:
			template = "{type}"
		default:
			template = DefaultToTopic
		}
		topic, err := templateTopic(template, r.To)
		if err != nil {
			return fmt.Errorf("%w: route %q: topic in the sink: %w", ErrConfig, r.Name, err)
		}
		r.TopicFunc = topic
	}
	return nil
}

// Errors of messages that a route cannot publish, of [ClassPermanent].
var (
	// ErrNoSink: Transform returned messages, but the route has no sink.
	ErrNoSink = Permanent(errors.New("the route has no sink for the messages that its handler returned; give it one, or return none"))
	// ErrNilMessage: Transform or a middleware returned a nil message.
	ErrNilMessage = Permanent(errors.New("the handler returned a nil message"))
)

// errProduced is the error of a middleware outside of the chain that returned
// messages. Publishing them there would not be covered by the chain.
var errProduced = errors.New("a middleware outside of the chain returned messages; put it into the route")

// route is a Route that was added.
type route struct {
	Route
	payloads payloads
	health   *health
	retry    *Retry
	classify classifier
	dedup    *Dedup
	chain    message.HandlerFunc
	logger   watermill.LoggerAdapter
	names    names  // for the contexts of messages
	done     func() // called when a message is acked or nacked
	// unchanged: neither Transform nor a middleware stands between what is received and what is
	// published, so one is a copy of the other.
	unchanged bool
	// alone: nor is there anything else that an application put into the way of the message, or that may change it.
	// gives: and the subscriber has no use for the metadata, so they are published instead of a copy.
	alone bool
	gives atomic.Bool
	typed bool // the topic is the message type
	// durable is nil unless Durable is DurableSynced.
	durable *durable

	// pipelined: the subscriber was asked to deliver the next message of a key when the one
	// before it has its place. A replay may read it meanwhile.
	pipelined atomic.Bool
}

// assemble puts the handlers together, inside out.
func (rt *route) assemble(outside, chain []message.HandlerMiddleware) {
	rt.unchanged = rt.Transform == nil && !slices.ContainsFunc(rt.Middleware, func(m message.HandlerMiddleware) bool { return m != nil })
	h := rt.publish(wrap(rt.transform, rt.Middleware))
	rt.chain = wrap(wrap(h, chain), outside)
}

// wrap puts middlewares around h, the first one outermost.
func wrap(h message.HandlerFunc, middlewares []message.HandlerMiddleware) message.HandlerFunc {
	for i := len(middlewares) - 1; i >= 0; i-- {
		if middlewares[i] != nil {
			h = middlewares[i](h)
		}
	}
	return h
}

// handle takes a message through the chain and acks or nacks it, and reports which. A message that no
// longer counts as in flight is certainly one or the other.
func (rt *route) handle(msg *message.Message) (acked bool) {
	defer rt.done()
	d := &delivery{Context: msg.Context()}
	completed := false
	defer func() {
		if !completed { // runtime.Goexit, as by FailNow of a test: left open, it would keep its key waiting without end
			_ = rt.returned(d, msg, errors.New("the handler ended its goroutine"))
			msg.Nack()
		}
	}()
	err := rt.process(d, msg)
	completed = true
	switch {
	case err == nil:
		acked = msg.Ack() // false if a middleware has nacked it
	case !msg.Nack():
		acked = true
		rt.logger.Error("a middleware acked a message that was not stored; it will not be redelivered",
			redacted(err.Error()), watermill.LogFields{"message_uuid": msg.UUID})
	}
	return acked
}

// process takes a message through the chain, with d as its context, and reports
// the outcome. After an error, which is safe to log, the caller nacks the message.
func (rt *route) process(d *delivery, msg *message.Message) error {
	d.value = msgctx.Received(d.Context)
	d.value.Delivery = ""
	d.route, d.received, d.passed.told = rt, msg, msg
	if rt.durable != nil {
		d.begin()
	}
	msg.SetContext(d)
	if rt.health.next != nil {
		rt.health.Observe(Event{Kind: EventStarted, Context: d, Message: msg})
	}
	var out []*message.Message
	err := guarded(func() (err error) { // outside of the recoverer
		out, err = rt.chain(msg)
		return err
	})
	if err == nil && len(out) > 0 {
		err = errProduced
	}
	if h := d.horizon(); err == nil && h != nil {
		d.value.Nack.Hold(h, began.Add(time.Duration(d.sending.Load())), d.records...)
	}
	switch {
	case err != nil:
		return rt.returned(d, msg, err)
	case d.poisoned, d.duplicate && !d.touched:
		// reported by the middlewares
	case d.filtered:
		if nack := d.value.Nack; nack != nil && d.rejected {
			nack.Refuse() // the others may want it, see subscriber.Config.Unmatched
		}
		rt.health.Observe(Event{Kind: EventFiltered, Context: d, Message: msg})
	default:
		rt.health.Observe(Event{Kind: EventDelivered, Context: d, Message: msg})
	}
	return nil
}

// returned reports that a message is returned to its source, and returns its error
// as text that is safe to log.
func (rt *route) returned(ctx context.Context, msg *message.Message, err error) error {
	class := rt.classify.class(err)
	text := RedactError(err, msg)
	fields := watermill.LogFields{"message_uuid": msg.UUID, "class": class.String(), "error": text}
	if nack := msgctx.NackOf(ctx); nack != nil && nack.Delay() > 0 {
		rt.logger.Debug("message waits with its subscriber", fields)
		return errors.New(text) // it was reported as a retry
	}
	if class == ClassShutdown {
		rt.logger.Debug("message returned; it will be redelivered", fields)
	} else {
		rt.logger.Info("message returned; it will be redelivered", fields)
	}
	rt.health.Observe(Event{Kind: EventReturned, Class: class, Context: ctx, Message: msg, Err: err, Text: text})
	return errors.New(text)
}

// transform is the innermost handler: it returns what is to be published.
func (rt *route) transform(msg *message.Message) ([]*message.Message, error) {
	if rt.Filter != nil {
		if accepted, err := rt.Filter(msg); err != nil {
			return nil, err
		} else if !accepted {
			return rt.filteredOut(msg)
		}
	}
	if rt.Transform == nil {
		if rt.unchanged {
			return deliveryOf(msg).passOn(msg, rt.gives.Load()), nil
		}
		return []*message.Message{outgoing(msg)}, nil
	}
	return rt.Transform(msg.CopyWithContext())
}

// filteredOut ends a message that the route does not accept.
func (rt *route) filteredOut(msg *message.Message) ([]*message.Message, error) {
	d := deliveryOf(msg)
	d.filtered, d.rejected = true, true
	if d.replay != nil {
		return nil, errFilteredReplay
	}
	return nil, nil
}

// outgoing is a copy that nobody waits for: unlike message.Copy, without the
// channels of Ack and Nack.
func outgoing(msg *message.Message) *message.Message {
	own := &message.Message{UUID: msg.UUID, Metadata: maps.Clone(msg.Metadata), Payload: msg.Payload}
	own.SetContext(msg.Context())
	return own
}

// passed is the copy that a route publishes which changes nothing.
type passed struct {
	message.Message
	used  bool
	given bool // and has the metadata of what was received
	// told is what was received, as observers get it while a sink may have its metadata.
	told *message.Message
}

// passOn is outgoing for a route that publishes what it receives, as its handler returns it. The
// first time, it costs no allocation but the metadata, which are those of msg if they are given.
func (d *delivery) passOn(msg *message.Message, given bool) []*message.Message {
	p := &d.passed
	if p.used {
		return []*message.Message{outgoing(msg)} // the sink may still have the other one
	}
	p.used = true
	own := &p.Message
	own.UUID, own.Metadata, own.Payload = msg.UUID, msg.Metadata, msg.Payload
	if p.given = given && msg == d.received && d.onlyNamed(msg); p.given {
		p.told = own
	} else {
		own.Metadata = maps.Clone(msg.Metadata)
	}
	own.SetContext(msg.Context())
	d.made.oneMessage[0] = own
	return d.made.oneMessage[:]
}

// onlyNamed reports whether the metadata of what is published differ from those of msg by
// [gateway.KeyDedupID] alone.
func (d *delivery) onlyNamed(msg *message.Message) bool {
	meta := msg.Metadata
	_, named := meta[gateway.KeyDedupID]
	return meta != nil && !named && d.replay == nil && len(msg.Payload) < describeFrom && (d.value.Nack == nil || d.value.Nack.Overtaken == 0) &&
		meta[gateway.KeyPayloadMode] == "" && meta[KeyPoisonCount] == ""
}

// takeBack makes the metadata of the message what they were, after they have been published and the
// message is needed again. The sink may still have the others.
func (d *delivery) takeBack() {
	if d.passed.given && !d.touched {
		d.passed.given = false
		own := maps.Clone(d.received.Metadata)
		delete(own, gateway.KeyDedupID)
		d.received.Metadata = own
	}
}
