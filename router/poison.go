package router

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/sinks"
)

// Metadata keys that a message has in the poison queue on top of its own. A
// message that was poisoned before keeps KeyPoisonFirst, and adds to
// KeyPoisonAttempts and KeyPoisonCount.
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
	// KeyPoisonDedupID is what [sinks.KeyDedupID] was when the message came.
	// In the poison queue that key has a value of its own.
	KeyPoisonDedupID = "x-router-poison-dedup-id"
	// KeyPoisonReplay names the [Router.Replay] that put the message (back) into
	// the queue.
	KeyPoisonReplay = "x-router-poison-replay"
)

// poisonKeys are all keys that PoisonQueue and Replay add.
var poisonKeys = []string{
	KeyPoisonReason, KeyPoisonClass, KeyPoisonRoute, KeyPoisonTopic, KeyPoisonSubscriber, KeyPoisonAttempts,
	KeyPoisonFirst, KeyPoisonLast, KeyPoisonCount, KeyPoisonDedupID, KeyPoisonReplay,
}

// Defaults of [PoisonConfig].
const (
	DefaultPoisonTopic   = "poison"
	DefaultPoisonTimeout = 30 * time.Second
)

// PoisonConfig configures [PoisonQueue].
type PoisonConfig struct {
	// Publisher stores the messages: a sink, or any Watermill publisher whose
	// Publish returns after the message is stored. Required.
	Publisher message.Publisher
	// Topic is where they are stored. Empty means [DefaultPoisonTopic].
	Topic string
	// Timeout bounds one publish. It goes on when the message's context has
	// ended, so that a shutdown does not lose the verdict. 0 means
	// [DefaultPoisonTimeout]; negative is an error.
	Timeout time.Duration
	// Stop, when closed, ends the pause after a failed publish. The Router sets it.
	Stop <-chan struct{}
	// Name is the route's name. The Router sets it; used alone, empty means the
	// name of Watermill's handler.
	Name string
	// Observer is told about poisoned messages. Nil means nobody.
	Observer Observer
}

func (c *PoisonConfig) setDefaults() {
	if c.Topic == "" {
		c.Topic = DefaultPoisonTopic
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultPoisonTimeout
	}
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c PoisonConfig) Validate() error {
	switch {
	case c.Publisher == nil:
		return fmt.Errorf("%w: poison queue: Publisher is required", ErrConfig)
	case c.Timeout < 0:
		return fmt.Errorf("%w: poison queue: Timeout is negative", ErrConfig)
	}
	return nil
}

// PoisonQueue is the middleware that puts messages aside which cannot be
// handled: payload and metadata as they came, plus the KeyPoison… metadata. The
// message is then acknowledged.
//
// Only [ClassPermanent] and [ClassHandler] go there, and nothing does once the
// message's context has ended: an interrupted handler may fail with any error.
// Everything else goes on outwards, and so does the error, joined with a
// [*PoisonError], when the queue does not take the message. The message then
// stays open.
type PoisonQueue struct {
	config  PoisonConfig
	logger  watermill.LoggerAdapter
	failing atomic.Bool // the last publish failed; it is logged once
}

// NewPoisonQueue returns the middleware, or an error that matches [ErrConfig].
// A nil logger is silent.
func NewPoisonQueue(config PoisonConfig, logger watermill.LoggerAdapter) (*PoisonQueue, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &PoisonQueue{config: config, logger: logger}, nil
}

// PoisonError says that the poison queue did not take a message. Its class is
// [ClassOutage]: the message is to be kept, whatever was wrong with it.
type PoisonError struct {
	// Topic is the topic of the poison queue.
	Topic string
	// Reason is why the message was to be poisoned.
	Reason error
	// Err is why that failed.
	Err error
}

// Error tells both errors.
func (e *PoisonError) Error() string {
	return fmt.Sprintf("poison queue %q does not take the message: %s (poisoned because of: %s)", e.Topic, e.Err, e.Reason)
}

// Unwrap returns both errors.
func (e *PoisonError) Unwrap() []error { return []error{e.Err, e.Reason} }

// ErrorClass returns [ClassOutage].
func (e *PoisonError) ErrorClass() Class { return ClassOutage }

// poisonPause is the wait before a message that the poison queue did not take is
// given back: subscribers deliver it again at once, and it would fail again.
var poisonPause = backoff.Policy{Min: time.Second, Max: time.Second}

// Middleware is the message.HandlerMiddleware.
func (p *PoisonQueue) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		out, err := h(msg)
		if err == nil {
			return out, nil
		}
		class := Classify(err)
		if class != ClassPermanent && class != ClassHandler {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, WithClass(err, ClassShutdown)
		}
		if failure := p.store(ctx, msg, class, err); failure != nil {
			p.pause(ctx)
			return nil, failure
		}
		if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
			d.poisoned = true
		}
		return nil, nil
	}
}

// store publishes the message to the queue.
func (p *PoisonQueue) store(ctx context.Context, msg *message.Message, class Class, reason error) error {
	route := p.config.Name
	if route == "" {
		route = message.HandlerNameFromCtx(ctx)
	}
	poisoned := p.envelope(ctx, route, msg, class, reason)
	publishCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.Timeout)
	defer cancel()
	poisoned.SetContext(publishCtx)

	fields := watermill.LogFields{
		"route": route, "message_uuid": msg.UUID, "class": class.String(),
		"attempts": poisoned.Metadata[KeyPoisonAttempts], "poison_topic": p.config.Topic,
	}
	if err := p.publish(poisoned); err != nil {
		failure := &PoisonError{Topic: p.config.Topic, Reason: reason, Err: err}
		text := RedactError(failure, msg)
		if p.failing.CompareAndSwap(false, true) {
			p.logger.Error("poison queue does not take messages, they stay open", redacted(text), fields)
		} else {
			fields["error"] = text
			p.logger.Debug("poison queue does not take a message", fields)
		}
		observe(p.config.Observer, Event{Route: route, Kind: EventPoisonFailed, Class: class, Err: failure, Text: text})
		return failure
	}
	if p.failing.CompareAndSwap(true, false) {
		p.logger.Info("poison queue takes messages again", fields)
	}
	p.logger.Error("message put into the poison queue", redacted(poisoned.Metadata[KeyPoisonReason]), fields)
	observe(p.config.Observer, Event{
		Route: route, Kind: EventPoisoned, Class: class, Err: reason, Text: poisoned.Metadata[KeyPoisonReason],
	})
	return nil
}

// publish calls the publisher; outside of the recoverer, so a panic is caught here.
func (p *PoisonQueue) publish(msg *message.Message) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value}
		}
	}()
	return p.config.Publisher.Publish(p.config.Topic, msg)
}

// envelope is the message with the KeyPoison… metadata.
func (p *PoisonQueue) envelope(ctx context.Context, route string, msg *message.Message, class Class, reason error) *message.Message {
	now := time.Now()
	attempts, first, last := 1, now, now
	text := reason
	var retried *RetryError
	if errors.As(reason, &retried) {
		attempts, first, last = retried.Attempts, retried.First, retried.Last
		text = retried.Err // the number of attempts has its own key
	}

	poisoned := msg.Copy()
	meta := poisoned.Metadata
	count := 1
	if n, err := strconv.Atoi(meta[KeyPoisonCount]); err == nil && n > 0 {
		count += n
		if n, err := strconv.Atoi(meta[KeyPoisonAttempts]); err == nil && n > 0 {
			attempts += n
		}
	} else {
		delete(meta, KeyPoisonFirst)
	}
	meta[KeyPoisonReason] = RedactError(text, msg)
	meta[KeyPoisonClass] = class.String()
	meta[KeyPoisonRoute] = route
	// A message that is replayed was not received by a subscriber this time.
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" || count == 1 {
		meta[KeyPoisonTopic] = topic
		meta[KeyPoisonSubscriber] = message.SubscriberNameFromCtx(ctx)
	}
	meta[KeyPoisonAttempts] = strconv.Itoa(attempts)
	if meta[KeyPoisonFirst] == "" {
		meta[KeyPoisonFirst] = first.UTC().Format(time.RFC3339Nano)
	}
	meta[KeyPoisonLast] = last.UTC().Format(time.RFC3339Nano)
	meta[KeyPoisonCount] = strconv.Itoa(count)

	// The same message may be poisoned by several routes and, after a replay,
	// several times: all of these are to be kept.
	if id, ok := meta[sinks.KeyDedupID]; ok {
		meta[KeyPoisonDedupID] = id
		delete(meta, sinks.KeyDedupID)
	}
	if id, ok := DedupID(ctx); ok {
		meta[sinks.KeyDedupID] = KeyOf("poison", route, id, strconv.Itoa(count)).String()
	}
	return poisoned
}

func (p *PoisonQueue) pause(ctx context.Context) {
	timer := time.NewTimer(poisonPause.Delay(0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.config.Stop:
	}
}
