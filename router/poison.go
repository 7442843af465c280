package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// Metadata keys that a message has in the poison queue in addition to its own. A
// message that was poisoned before keeps KeyPoisonFirst, and its
// KeyPoisonAttempts and KeyPoisonCount are increased.
const (
	// KeyPoisonReason is the redacted text of the error, see [RedactError].
	KeyPoisonReason = "x-router-poison-reason"
	// KeyPoisonClass is the [Class] of the error: "permanent" or "handler".
	KeyPoisonClass = "x-router-poison-class"
	// KeyPoisonRoute is the name of the route, or of Watermill's handler.
	KeyPoisonRoute = "x-router-poison-route"
	// KeyPoisonTopic is the topic that the message was received from.
	KeyPoisonTopic = "x-router-poison-topic"
	// KeyPoisonSubscriber is the type of the subscriber.
	KeyPoisonSubscriber = "x-router-poison-subscriber"
	// KeyPoisonAttempts counts the failed attempts, as a decimal number.
	KeyPoisonAttempts = "x-router-poison-attempts"
	// KeyPoisonFirst and KeyPoisonLast are the times of the first and the last
	// failure, RFC 3339 in UTC.
	KeyPoisonFirst = "x-router-poison-first"
	KeyPoisonLast  = "x-router-poison-last"
	// KeyPoisonCount counts how many times the message was poisoned.
	KeyPoisonCount = "x-router-poison-count"
	// KeyPoisonDedupID is what [gateway.KeyDedupID] was when the message came.
	// In the poison queue that key has a value of its own.
	KeyPoisonDedupID = "x-router-poison-dedup-id"
	// KeyPoisonDelivery names the delivery of a message that came from a broker, by its place
	// there.
	KeyPoisonDelivery = "x-router-poison-delivery"
	// KeyPoisonPayload is "inline" when the payload was in the message and has
	// gone into the claim check on the way into the poison queue. A replay puts
	// it back.
	KeyPoisonPayload = "x-router-poison-payload"
	// KeyPoisonPartial is "true" on a message that has reached some of its direct recipients, and not all: a
	// replay would send it to all of them again, so it keeps the message unless it is forced.
	KeyPoisonPartial = "x-router-poison-partial"
)

// poisonKeys are all keys that PoisonQueue adds.
var poisonKeys = []string{
	KeyPoisonReason, KeyPoisonClass, KeyPoisonRoute, KeyPoisonTopic, KeyPoisonSubscriber, KeyPoisonAttempts,
	KeyPoisonFirst, KeyPoisonLast, KeyPoisonCount, KeyPoisonDedupID, KeyPoisonDelivery, KeyPoisonPayload,
	KeyPoisonPartial,
}

// claimCheckRate is the slowest claim check that is waited for, in bytes per
// second.
const claimCheckRate = 1 << 20

// payloadWasInline is the value of KeyPoisonPayload.
const payloadWasInline = "inline"

// Defaults of [PoisonConfig].
const (
	DefaultPoisonTopic  = "poison"
	defaultFailingAfter = 10
)

// poisonTimeout bounds storing one message, and its payload in the claim check, with an extra second per MiB. Both
// continue when the message's context has ended, so that a shutdown does not lose the verdict.
const poisonTimeout = 30 * time.Second

// PoisonConfig configures [PoisonQueue].
type PoisonConfig struct {
	// Publisher stores the messages: a sink, or any Watermill publisher whose
	// Publish returns after the message is stored. Required.
	Publisher message.Publisher `yaml:"-"`
	// Topic is where they are stored. Empty means [DefaultPoisonTopic].
	Topic string `yaml:"topic"`
	// FailingAfter is how many consecutive messages of a route have to be poisoned until its state is failing ([StateFailing]). It
	// is for the Router. 0 means 10; negative is an error.
	FailingAfter int `yaml:"failing_after"`
	// ClaimCheck stores the payloads of messages that are too large for the Publisher, which is known only of a
	// [sinks.Sink]. Nil means none, and such messages stay open.
	ClaimCheck gateway.ClaimCheck `yaml:"-"`
	// Stop, when closed, tells that a shutdown is under way: it ends pauses, and what a handler fails with from then on is
	// no verdict. The Router sets it.
	Stop <-chan struct{} `yaml:"-"`
	// Classify is [Config.Classify]. Nil means [ClassOf] alone.
	Classify func(error) (Class, bool) `yaml:"-"`
	// Name is the route's name. The Router sets it; used alone, empty means the
	// name of Watermill's handler.
	Name string `yaml:"-"`
	// Observer is notified of poisoned messages. It may be nil.
	Observer Observer `yaml:"-"`

	// ending reports whether a shutdown has begun, perhaps a moment before Stop is closed.
	ending func() bool
}

// WithDefaults returns the configuration with the defaults filled in.
func (c PoisonConfig) WithDefaults() PoisonConfig {
	c.Topic = cmp.Or(c.Topic, DefaultPoisonTopic)
	c.FailingAfter = cmp.Or(c.FailingAfter, defaultFailingAfter)
	return c
}

// Validate reports every field with an invalid value; the error matches
// [ErrConfig].
func (c PoisonConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Publisher != nil, "Publisher", "is required")
	if topics, ok := c.Publisher.(sinks.Topics); ok {
		if err := topics.CheckTopic(cmp.Or(c.Topic, DefaultPoisonTopic)); err != nil {
			e.AddCause(err, "Topic", "%s", err)
		}
	}
	validate.NotNegative(&e, "FailingAfter", c.FailingAfter)
	return e.Err(ErrConfig)
}

// PoisonQueue is the middleware that stores messages that cannot be handled: payload and metadata as received, plus the
// KeyPoison… metadata. The message is then acknowledged.
//
// It only stores [ClassPermanent] and [ClassHandler], and nothing once the message's own context has ended: an interrupted
// handler may fail with any error. For the same reason it does not store what a handler fails with after Stop was
// closed, unless [Retry] found before that that it fails every time. Any other error is returned, and so is that of a
// message that the queue does not accept. The message then stays open.
//
// A message that is too large for the queue, without a claim check, stays open, too. It is logged once, with advice,
// and the gateway's subscriber sets it aside, unconfirmed, until the service redelivers it after a reconnect or a restart. With
// other subscribers it is nacked after a pause that grows from 10 seconds to 10 minutes; one that delivers in order
// waits for it meanwhile.
type PoisonQueue struct {
	config   PoisonConfig
	payloads payloads
	logger   watermill.LoggerAdapter
	failing  atomic.Bool // the last publish failed; it is logged once
	refused  *lru.Cache[refusedMessage, refusal]
	partial  atomic.Bool // one of refused has a reason
}

// maxRefusals bounds how many messages are remembered that the queue did not take. One that is forgotten is logged again.
const maxRefusals = 1024

// refusedPause is the wait before a message is returned that the queue will not take however often it is asked.
var refusedPause = backoff.Policy{Initial: 10 * time.Second, Max: 10 * time.Minute}

// refusedMessage is a message in all its deliveries to a route, as far as its subscriber names it.
type refusedMessage struct{ route, name string }

type refusal struct {
	times  int
	reason error // that it has reached only some of its recipients; nil if it has not
}

func (p *PoisonQueue) refusedMessage(ctx context.Context, msg *message.Message) refusedMessage {
	return refusedMessage{p.route(ctx), cmp.Or(msgctx.Delivery(ctx), msg.UUID)}
}

// maxFieldLength caps what a message brings into a line of the log, in bytes.
const maxFieldLength = 256

// NewPoisonQueue returns the middleware, or an error that matches [ErrConfig].
// A nil logger discards all output.
func NewPoisonQueue(config PoisonConfig, logger watermill.LoggerAdapter) (*PoisonQueue, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	logger = warnlog.Or(logger)
	refused, err := lru.New[refusedMessage, refusal](maxRefusals)
	if err != nil {
		return nil, err
	}
	return &PoisonQueue{
		refused: refused,
		// A route may poison everything.
		config: config, logger: warnlog.Limit(logger, warnlog.PerMessage),
		payloads: payloads{config.ClaimCheck},
	}, nil
}

// poisonPause is the wait before a message is returned that the queue did not take: it would come again at once.
var poisonPause = backoff.Policy{Initial: time.Second, Max: time.Second}

// Middleware is the message.HandlerMiddleware.
func (p *PoisonQueue) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		var err error
		// Who replays what is known as partial forces it.
		if d := deliveryOf(msg); p.partial.Load() && (d == nil || d.replay == nil || msg.Metadata[KeyPoisonPartial] == "") {
			known, _ := p.refused.Peek(p.refusedMessage(ctx, msg))
			err = known.reason // it must not be handled again
		}
		if err == nil {
			var out []*message.Message
			if out, err = h(msg); err == nil {
				return out, nil
			}
		}
		class := classifier(p.config.Classify).class(err)
		switch {
		case class != ClassPermanent && class != ClassHandler:
			if ClassOf(err) != class {
				err = WithClass(err, class) // for who is further out
			}
			return nil, err
		case ctx.Err() != nil, class == ClassHandler && p.stopping() && !is[*RetryError](err):
			p.notePartial(ctx, msg, err)
			return nil, WithClass(err, p.ended())
		}
		if failure := p.store(ctx, msg, class, err); failure != nil {
			return nil, failure
		}
		return nil, nil
	}
}

// route is the name of the route, or of the handler in a Router of Watermill.
func (p *PoisonQueue) route(ctx context.Context) string {
	return cmp.Or(p.config.Name, message.HandlerNameFromCtx(ctx))
}

func (p *PoisonQueue) stopping() bool { return isStopping(p.config.Stop, p.config.ending) }

// ended is the class of what failed when the message's time was over.
func (p *PoisonQueue) ended() Class {
	if p.stopping() {
		return ClassShutdown
	}
	return ClassRedeliver
}

// store publishes the message to the queue. When that fails it returns after a
// pause.
func (p *PoisonQueue) store(ctx context.Context, msg *message.Message, class Class, reason error) error {
	route := p.route(ctx)
	poisoned := p.envelope(ctx, route, msg, class, reason)
	fields := p.fields(route, poisoned)
	receipt, err := p.put(ctx, poisoned)
	if err != nil {
		p.notePartial(ctx, msg, reason) // its source may lose it, and deliver it again
	}
	for err != nil && poisoned.Metadata[KeyPoisonPartial] != "" && mayPass(err) && ctx.Err() == nil && !p.stopping() {
		// Whoever gets the message back would send it to all recipients again.
		if p.failing.CompareAndSwap(false, true) {
			p.logger.Error("poison queue unavailable; messages stay open", redacted(RedactError(err, msg)), fields)
		}
		sleep(ctx, p.config.Stop, poisonPause.Delay(0))
		receipt, err = p.put(ctx, poisoned)
	}
	if err != nil {
		return p.failed(ctx, msg, class, reason, err, fields)
	}
	p.refused.Remove(p.refusedMessage(ctx, msg))
	if p.failing.CompareAndSwap(true, false) {
		p.logger.Info("poison queue available again", fields)
	}
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
		d.poisoned = true
		if d.replay != nil {
			d.replay.reason = poisoned.Metadata[KeyPoisonReason]
		}
	}
	p.logger.Error("message moved to the poison queue", redacted(poisoned.Metadata[KeyPoisonReason]), fields)
	observe(p.config.Observer, Event{
		Route: route, Kind: EventPoisoned, Class: class, Context: ctx, Message: msg, Receipt: receipt, Err: reason, Text: poisoned.Metadata[KeyPoisonReason],
	})
	return nil
}

// mayPass reports whether the queue may take later what it did not take now.
func mayPass(err error) bool {
	class := ClassOf(err)
	return class != ClassPermanent && class != ClassRedeliver
}

// fields are those by which people look for a message in a log.
func (p *PoisonQueue) fields(route string, poisoned *message.Message) watermill.LogFields {
	meta := poisoned.Metadata
	fields := watermill.LogFields{
		"route": route, "message_uuid": poisoned.UUID, "class": meta[KeyPoisonClass], "poison_topic": p.config.Topic,
	}
	if n, err := strconv.Atoi(meta[KeyPoisonAttempts]); err == nil {
		fields["attempts"] = n
	}
	for field, key := range map[string]string{
		"context_id": gateway.KeyContextID, "filename": gateway.KeyFilename, "message_type": gateway.KeyMessageType,
	} {
		if value := meta[key]; value != "" {
			fields[field] = capText(value, maxFieldLength)
		}
	}
	return fields
}

// put publishes the record, with its payload or a reference to it, and returns where it is.
func (p *PoisonQueue) put(ctx context.Context, poisoned *message.Message) (sinks.Receipt, error) {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if msgctx.PayloadOpener(ctx) != nil || len(poisoned.Payload) > 0 {
		// This reads from the service, which ends with the message's context.
		if err := p.payloads.place(ctx, d, poisoned, sizeLimit(p.config.Publisher)); err != nil {
			return sinks.Receipt{}, err
		}
	} // else the payload is unavailable, and the record says so

	var receipt sinks.Receipt
	var err error
	if exceeds(p.config.Publisher, poisoned) {
		err = sinks.ErrTooLarge
	} else if receipt, err = p.publish(ctx, poisoned); !errors.Is(err, sinks.ErrTooLarge) {
		return receipt, err
	}
	if len(poisoned.Payload) == 0 {
		return sinks.Receipt{}, err // its metadata is too large
	}
	if p.payloads.store == nil {
		return sinks.Receipt{}, fmt.Errorf("the payload of %d bytes does not fit: %w: %w", len(poisoned.Payload), ErrNoClaimCheck, err)
	}
	// Under the record's own ID: what the route has stored for its sink may be
	// deleted when the sink's messages are.
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		poisonTimeout+time.Duration(len(poisoned.Payload)/claimCheckRate)*time.Second)
	defer cancel()
	if err := p.payloads.checkIn(storing, d, poisoned); err != nil {
		return sinks.Receipt{}, err
	}
	poisoned.Metadata[KeyPoisonPayload] = payloadWasInline
	return p.publish(ctx, poisoned)
}

// failed reports that the queue did not take the message, which must be kept, whatever was wrong with it, and makes it wait.
func (p *PoisonQueue) failed(ctx context.Context, msg *message.Message, class Class, reason, err error, fields watermill.LogFields) error {
	failure := decide(fmt.Errorf("poison queue %q does not take the message: %w (poisoned because of: %w)", p.config.Topic, err, reason), ClassOutage)
	text := RedactError(failure, msg)
	switch verdict := ClassOf(err); {
	case verdict == ClassRedeliver, ctx.Err() != nil && errors.Is(err, ctx.Err()):
		// The payload is no longer available; a redelivery brings it.
		if verdict != ClassRedeliver {
			verdict = p.ended()
		}
		fields["error"] = text
		p.logger.Debug("poison queue rejected a message", fields)
		return WithClass(failure, verdict)
	case verdict == ClassPermanent:
		p.hold(ctx, msg, text, fields)
	case !errors.Is(err, sinks.ErrNotConnected) && p.failing.CompareAndSwap(false, true):
		p.logger.Error("poison queue unavailable; messages stay open", redacted(text), fields)
		sleep(ctx, p.config.Stop, poisonPause.Delay(0))
	default:
		fields["error"] = text
		p.logger.Debug("poison queue rejected a message", fields)
		sleep(ctx, p.config.Stop, poisonPause.Delay(0))
	}
	observe(p.config.Observer, Event{Route: p.route(ctx), Kind: EventPoisonFailed, Class: class, Context: ctx, Message: msg, Err: failure, Text: text})
	return failure
}

// hold keeps a message that the queue will never take from coming back at once.
func (p *PoisonQueue) hold(ctx context.Context, msg *message.Message, text string, fields watermill.LogFields) {
	id := p.refusedMessage(ctx, msg)
	now, _ := p.refused.Peek(id)
	now.times++
	p.refused.Add(id, now)
	if now.times == 1 {
		p.logger.Error("poison queue permanently rejects this message; it stays open", redacted(text), fields)
	} else {
		fields["error"], fields["times"] = text, now.times
		p.logger.Debug("poison queue still rejects the message", fields)
	}
	if nack := msgctx.NackOf(ctx); nack != nil {
		nack.Want(msgctx.SetAside)
		return
	}
	sleep(ctx, p.config.Stop, refusedPause.Delay(now.times-1))
}

// notePartial keeps a message from being handled again that some of its recipients have.
func (p *PoisonQueue) notePartial(ctx context.Context, msg *message.Message, reason error) {
	id := p.refusedMessage(ctx, msg)
	if id.name == "" || !errors.Is(reason, gateway.ErrPartialDelivery) { // without a name it could be another message
		return
	}
	known, _ := p.refused.Peek(id)
	known.reason = reason
	p.refused.Add(id, known)
	p.partial.Store(true)
}

// publish calls the publisher; outside of the recoverer, so a panic is caught here. The receipt is
// zero if the publisher does not tell.
func (p *PoisonQueue) publish(ctx context.Context, msg *message.Message) (receipt sinks.Receipt, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poisonTimeout)
	defer cancel()
	var at place
	msg.SetContext(context.WithValue(ctx, msgctx.ReceiptsKey{}, &at))
	if err = guarded(func() error { return p.config.Publisher.Publish(p.config.Topic, msg) }); err != nil {
		return sinks.Receipt{}, err
	}
	if told := at.Load(); told != nil {
		receipt = *told
	}
	return receipt, nil
}

// place is where a sink says that the record is, see [sinks.ReportStored].
type place struct{ atomic.Pointer[sinks.Receipt] }

// Stored is called by sinks.
func (p *place) Stored(_ *message.Message, receipt sinks.Receipt) { p.Store(&receipt) }
