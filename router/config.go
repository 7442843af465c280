package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrConfig is matched by the errors of Validate methods and constructors, and
// of [Router.Add].
var ErrConfig = errors.New("router: invalid configuration")

// DefaultCloseTimeout is the default of [Config.CloseTimeout].
const DefaultCloseTimeout = 30 * time.Second

// Config configures a [Router].
type Config struct {
	// Poison is where messages go that cannot be handled: a sink, or any
	// Watermill publisher whose Publish returns after the message is stored.
	// Required. It may be one of the routes' sinks. The Router closes it.
	//
	// A message that is too large for it goes there with its payload in
	// ClaimCheck. Without one it stays unacknowledged, see [PoisonConfig].
	Poison message.Publisher
	// PoisonTopic is the topic of the poison queue. Empty means
	// [DefaultPoisonTopic].
	PoisonTopic string
	// PoisonTimeout bounds one publish to the poison queue. 0 means
	// [DefaultPoisonTimeout]; negative is an error.
	PoisonTimeout time.Duration

	// Retry configures the retries. Stop, Name and Observer are set per route.
	Retry RetryConfig
	// Dedup configures the recognition of duplicates. Scope and Observer are
	// set per route. The Router closes the Store if it has a method Close() error.
	Dedup DedupConfig

	// ClaimCheck stores payloads that are too large for a sink or for the poison
	// queue: the message is then published with an empty payload and the
	// metadata gateway.KeyPayloadMode, KeyPayloadReference, KeyPayloadSHA256 and
	// KeyPayloadSize. Who reads it finds the payload there with
	// claimcheck.Store.OpenMessage; the publisher does so by itself. Nil means
	// none: a message that is too large goes to the poison queue. The Router
	// neither closes it nor deletes from it: let the bucket expire what is older
	// than the broker keeps messages.
	ClaimCheck ClaimCheck
	// MaxInlinePayload is the largest payload in bytes that a route takes into
	// the message when it is still with the service (subscriber.PayloadLazy) and
	// the sink needs it. A larger one, and one of unknown size, is streamed into
	// ClaimCheck; without one the message goes to the poison queue. A sink that
	// opens payloads by itself ([sinks.Description.OpensPayloads]) is left to do
	// so. 0 means [DefaultMaxInlinePayload]; negative is an error.
	MaxInlinePayload int64

	// CloseTimeout bounds Close. At 80 % of it the contexts of the subscriptions
	// are cancelled, whether the messages in flight are done or not; at 90 % the
	// sinks are closed, whether the subscribers are or not. 0 means
	// [DefaultCloseTimeout]; negative is an error.
	CloseTimeout time.Duration

	// Middleware runs outside of the chain, first one outermost, once per
	// delivery: it sees what the message has come to, not the single attempts.
	// It may not return messages of its own. For a place inside of the chain see
	// Chain and [Route.Middleware].
	Middleware []message.HandlerMiddleware
	// Chain assembles the chain of a route, outside in, from the standard
	// parts; own middlewares may stand anywhere between them, and parts may be
	// left out. It is called by Add. Nil means Poison, Retry, Dedup, Recoverer.
	Chain func(route string, standard Chain) []message.HandlerMiddleware

	// Observer is told what happens to the messages of all routes. Nil means
	// nobody.
	Observer Observer
}

// Chain holds the standard middlewares of one route.
type Chain struct {
	Poison message.HandlerMiddleware
	Retry  message.HandlerMiddleware
	// Dedup is nil when [DedupConfig.Off] is set. Nil middlewares are skipped.
	Dedup     message.HandlerMiddleware
	Recoverer message.HandlerMiddleware
}

func (c *Config) setDefaults() {
	if c.PoisonTopic == "" {
		c.PoisonTopic = DefaultPoisonTopic
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	if c.CloseTimeout < 0 {
		return fmt.Errorf("%w: CloseTimeout is negative", ErrConfig)
	}
	if err := validPayloads(c.MaxInlinePayload); err != nil {
		return err
	}
	poison := PoisonConfig{Publisher: c.Poison, Topic: c.PoisonTopic, Timeout: c.PoisonTimeout}
	if err := poison.Validate(); err != nil {
		return err
	}
	if err := c.Retry.Validate(); err != nil {
		return err
	}
	return c.Dedup.Validate()
}
