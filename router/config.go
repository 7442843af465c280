package router

import (
	"cmp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/validate"
)

// ErrConfig is matched by the errors of constructors, Validate methods and
// [Router.Add].
var ErrConfig = final.New("router: invalid configuration")

// defaultCloseTimeout is the default of [Config.CloseTimeout].
const defaultCloseTimeout = 30 * time.Second

// Config configures a [Router].
type Config struct {
	// Poison is where messages go that cannot be handled: a sink, also one of the routes', or any Watermill publisher
	// whose Publish returns after the message is stored. Required. The Router closes it. See [PoisonConfig.ClaimCheck] for
	// messages that are too large for it.
	Poison message.Publisher
	// PoisonTopic is the topic of the poison queue. Empty means [DefaultPoisonTopic]. No route publishes to it: if a
	// route's template yields it and both go to the same sink, an escape is appended. Two sinks for one broker need topics
	// that cannot be equal.
	PoisonTopic string
	// FailingAfter is [PoisonConfig.FailingAfter] of each route, with its default.
	FailingAfter int

	// Retry determines how often and how fast messages are retried.
	Retry RetrySettings
	// Dedup determines how duplicates are recognized. The Router closes the Store if it has
	// a method Close() error.
	Dedup DedupSettings

	// ClaimCheck stores payloads that are too large for a sink or for the poison queue: the message is then published
	// with an empty payload and the metadata gateway.KeyPayloadMode, KeyPayloadReference, KeyPayloadSHA256 and
	// KeyPayloadSize. Readers open the payload with claimcheck.Store.OpenMessage; the publisher does so automatically. Nil
	// means none: a message that is too large goes to the poison queue. The Router neither closes it nor deletes from
	// it: let the bucket expire objects older than the broker keeps messages.
	//
	// A payload that is still with the service (subscriber.PayloadLazy) and that the sink needs and does not open itself
	// ([sinks.Description.OpensPayloads]) is loaded up to 1 MiB; a larger one, and one of unknown size, goes through ClaimCheck.
	ClaimCheck gateway.ClaimCheck

	// CloseTimeout bounds Close. At 80 % of it the contexts of the subscriptions are canceled even if messages are still
	// in flight; at 90 % the sinks are closed even if subscribers are not. 0 means 30 seconds; negative is an error.
	CloseTimeout time.Duration

	// Middleware runs outside of the chain, the first one outermost, once per delivery: it sees the final outcome of a
	// message, not attempts. It must not return messages of its own. See Chain and [Route.Middleware] for inside.
	Middleware []message.HandlerMiddleware
	// Chain assembles the chain of a route, outermost first, from the standard parts, which may be omitted, and others,
	// anywhere between them. It is called by Add. Nil means Poison, Retry, Dedup, Recoverer.
	Chain func(route string, standard Chain) []message.HandlerMiddleware

	// Classify says what is to be done about an error of a handler, a middleware or a sink of which the application knows
	// more than [ClassOf], which decides about all others: with false, and with [ClassNone]. It is asked first, also about
	// errors that have a class, with the error as it came, wrapped. It may be called by several goroutines at once, must
	// not block, and when it panics it does not know. Nil means that [ClassOf] decides alone.
	//
	// [ClassOutage] of an error that concerns one message only makes that message, and its route, wait for ever;
	// [ClassPermanent] of an outage empties the source into the poison queue.
	Classify func(err error) (class Class, ok bool)

	// Observer is notified of what happens to the messages of all routes. It may be
	// nil.
	Observer Observer
}

// Chain holds the standard middlewares of one route. Nil ones are skipped.
type Chain struct {
	Poison    message.HandlerMiddleware
	Retry     message.HandlerMiddleware
	Dedup     message.HandlerMiddleware
	Recoverer message.HandlerMiddleware
}

func (c *Config) setDefaults() {
	c.PoisonTopic = cmp.Or(c.PoisonTopic, DefaultPoisonTopic)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, defaultCloseTimeout)
	c.FailingAfter = cmp.Or(c.FailingAfter, defaultFailingAfter)
}

// Validate reports every field with an invalid value; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Check(c.Poison != nil, "Poison", "is required")
	validate.NotNegative(&e, "FailingAfter", c.FailingAfter)
	e.Join("Retry", c.Retry.Validate())
	e.Join("Dedup", c.Dedup.Validate())
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	return e.Err(ErrConfig)
}
