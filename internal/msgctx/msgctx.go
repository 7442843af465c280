// Package msgctx contains all values that the packages of this module pass to each other
// in contexts, so that any middleware or wrapper in between preserves them.
//
// The context of a message carries one [Value]:
//
//	field    set by                              read by
//	Open     subscriber; router, for a replay    router, publisher, sinks, subscriber.OpenPayload
//	Nack     subscriber                          router: the poison queue sets the message aside,
//	                                             one whose copy is being handled waits, a filter says
//	                                             that it refuses the message, and a route that what it
//	                                             has stored does not survive a power cut yet
//	SentAt   router                              publisher
//	Delivery sources; router, for a replay       router: the delivery key
//	Stored   sources                             router/farm: the order of device descriptions
//
// Under [ReceiptsKey] it carries who wants to know where the message is stored: router, for sinks.ReportStored.
//
// The context of Subscribe carries a [Subscription], which the router sets and the subscriber reads.
package msgctx

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// Opener opens a payload. size is -1 if it is unknown.
type Opener func(ctx context.Context) (payload io.ReadCloser, size int64, err error)

// Value is the data in a message's context. One that is in a context does not change, except SentAt, which the router sets
// before it first publishes: others create a new one.
type Value struct {
	// Open opens a payload that is not in the message; nil if it is.
	Open Opener
	// Nack is what a nack of the message stands for; nil if its subscriber knows one meaning only.
	Nack *Nack
	// SentAt is when the message was first sent, for retries; zero if it has not been sent.
	SentAt time.Time
	// Delivery names the message by its place with the broker, the same for each delivery; empty if its subscriber cannot
	// tell. It holds for the message that was received and not for what is made of it, see [DeliveryKey].
	Delivery string
	// Stored is when the broker stored the message, by its clock or that of who sent it; zero if nobody can tell.
	Stored time.Time
}

// Key is the key of the *Value, for contexts that carry it without [With].
type Key struct{}

// With returns a context that carries v.
func With(ctx context.Context, v Value) context.Context { return context.WithValue(ctx, Key{}, &v) }

// PayloadOpener returns the Value.Open of the message with context ctx.
func PayloadOpener(ctx context.Context) Opener { return from(ctx).Open }

// NackOf returns the Value.Nack of the message with context ctx.
func NackOf(ctx context.Context) *Nack { return from(ctx).Nack }

// SentAt returns the Value.SentAt of the message with context ctx.
func SentAt(ctx context.Context) time.Time { return from(ctx).SentAt }

// Stored returns the Value.Stored of the message with context ctx.
func Stored(ctx context.Context) time.Time { return from(ctx).Stored }

// DeliveryKey is the key of the name of the delivery, for a context that hides the
// Value.Delivery of the one around it.
type DeliveryKey struct{}

// ReceiptsKey is the key of who is told where the message is stored, see sinks.ReportStored.
type ReceiptsKey struct{}

// Delivery returns the Value.Delivery of the message with context ctx.
func Delivery(ctx context.Context) string {
	if name, ok := ctx.Value(DeliveryKey{}).(string); ok {
		return name
	}
	return from(ctx).Delivery
}

// Received returns the fields of ctx set by the subscriber: all but SentAt, which may
// belong to another route if messages pass from one to the next within the process.
func Received(ctx context.Context) Value {
	v := *from(ctx)
	v.SentAt = time.Time{}
	return v
}

type replayedKey struct{}

// WithReplayed returns a context for a message that is replayed from a poison queue: it comes once, and what it waits for, it
// waits for where it is.
func WithReplayed(ctx context.Context) context.Context {
	return context.WithValue(ctx, replayedKey{}, true)
}

// Replayed reports whether ctx is that of [WithReplayed].
func Replayed(ctx context.Context) bool { return ctx.Value(replayedKey{}) != nil }

func from(ctx context.Context) *Value {
	if v, ok := ctx.Value(Key{}).(*Value); ok {
		return v
	}
	return &Value{}
}

// Known reports whether ctx is that of a message from a subscriber of this module, or one in which package router publishes:
// that of a copy which a handler made is neither.
func Known(ctx context.Context) bool {
	return ctx.Value(Key{}) != nil || ctx.Value(ReceiptsKey{}) != nil
}

type subscriptionKey struct{}

// Subscription is what a router asks of the subscriber that it subscribes to, in the context of Subscribe.
type Subscription struct {
	// Route is the name of the route.
	Route string
	// Start keeps the subscriber from reading its source until it is closed, unless it is nil: a message goes only to
	// the subscriptions that exist when it arrives, so all of them have to be made first.
	Start <-chan struct{}
	// Pipelines asks for [Nack.Pipeline]: whoever handles the messages tells when one has its place, and puts off what
	// fails after that.
	Pipelines bool
	// To is the subscriber that is meant by what follows, and not one that it wraps: who stands in between may do with
	// messages what that knows nothing of. See [Subscription.IsTo].
	To any
	// Handler may be called for each message in place of sending that on the channel.
	Handler Handler
	// Given is an answer, set before Subscribe returns: nobody else uses the metadata of a message once it was delivered.
	Given bool
}

// Handler handles a message, and reports whether it is acked. What a nack means is in the message's [Nack]. The message
// may be handled until its context ends; what comes of it later is not waited for.
type Handler func(msg *message.Message) (acked bool)

// WithSubscription returns a context for Subscribe. With nil it is one for messages: a handler may subscribe in it, and
// that asks for nothing.
func WithSubscription(ctx context.Context, s *Subscription) context.Context {
	return context.WithValue(ctx, subscriptionKey{}, s)
}

// SubscriptionOf returns what [WithSubscription] was given, or an empty one.
func SubscriptionOf(ctx context.Context) *Subscription {
	if s, _ := ctx.Value(subscriptionKey{}).(*Subscription); s != nil {
		return s
	}
	return &Subscription{}
}

// IsTo reports whether sub, which can be compared, is meant.
func (s *Subscription) IsTo(sub any) bool { return s.To != nil && s.To == sub }

// HandOn is for a subscriber that hands on the messages of another one and does nothing else with them: if sub is meant,
// from is from now on.
func (s *Subscription) HandOn(sub, from any) {
	if s.IsTo(sub) {
		s.To = from
	}
}

// Missing returns an error that names the first of the messages that is nil, for a sink, which refuses the call before it sends anything.
func Missing(messages ...*message.Message) error {
	if i := slices.Index(messages, nil); i >= 0 {
		return fmt.Errorf("message %d of %d is nil", i+1, len(messages))
	}
	return nil
}

// Unmarshaled returns what an Unmarshaler, which may be the application's, made: an error if that is nothing, and a message that
// can be acked, nacked and given metadata, also if it was not made by [message.NewMessage].
func Unmarshaled(msg *message.Message, err error) (*message.Message, error) {
	switch {
	case err != nil:
		return nil, err
	case msg == nil:
		return nil, errors.New("the configured Unmarshaler returned neither a message nor an error: let it return an error for what it cannot read")
	case msg.Acked() == nil || msg.Nacked() == nil || msg.Metadata == nil:
		return msg.CopyWithContext(), nil
	}
	return msg, nil
}

// Marshaled returns what a Marshaler, which may be the application's, made: an error if that is nothing.
func Marshaled[T any](made *T, err error) (*T, error) {
	if made == nil && err == nil {
		return nil, errors.New("the configured Marshaler returned neither a message nor an error: let it return an error for what it cannot write")
	}
	return made, err
}

// FirstEnd returns a context that ends with the first of the contexts of messages, some of which may be nil; of one message, its own.
// stop releases it.
func FirstEnd(messages []*message.Message) (first context.Context, stop func()) {
	if len(messages) == 1 && messages[0] != nil {
		return messages[0].Context(), func() {}
	}
	first, end := context.WithCancel(context.Background())
	stops := []func() bool{}
	for _, msg := range messages {
		if msg != nil && msg.Context().Done() != nil {
			stops = append(stops, context.AfterFunc(msg.Context(), end))
		}
	}
	return first, func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
}

// FromBroker prepares a message that a source has read from a broker. Its [gateway.KeyDedupID] becomes
// [gateway.KeyReceivedDedupID], because a handler may copy metadata onto all that it makes of the message. A message without a
// UUID gets one of its place, so that it is the same for every delivery: it becomes the context ID.
func FromBroker(msg *message.Message, namespace string, place func() string) {
	id := msg.Metadata[gateway.KeyDedupID]
	delete(msg.Metadata, gateway.KeyDedupID)
	delete(msg.Metadata, gateway.KeyReceivedDedupID)
	if id != "" {
		msg.Metadata[gateway.KeyReceivedDedupID] = id
	}
	if msg.UUID == "" {
		msg.UUID = uuid.NewHash(sha256.New(), uuid.MustParse(namespace), []byte(place()), 8).String()
	}
}

// Apart returns what a handler of Watermill's Router publishes, for a sink that tells copies by [gateway.KeyDedupID]: without the ID
// if several messages have the same one. They have it from the message that they were made of, if its subscriber has not
// called [FromBroker].
func Apart(messages []*message.Message) []*message.Message {
	if len(messages) < 2 || message.HandlerNameFromCtx(messages[0].Context()) == "" {
		return messages
	}
	apart, seen, shared := make([]*message.Message, len(messages)), make(map[string]bool, len(messages)), false
	for i, msg := range messages {
		id := msg.Metadata[gateway.KeyDedupID]
		shared = shared || id != "" && seen[id]
		seen[id] = true
		apart[i] = msg.CopyWithContext()
		delete(apart[i].Metadata, gateway.KeyDedupID)
	}
	if !shared {
		return messages
	}
	return apart
}
