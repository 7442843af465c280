package router

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// delivery is what the parts of the chain tell each other about one message. It
// hangs in the message's context. One goroutine at a time uses it.
type delivery struct {
	key    Key
	hasKey bool
	// touched: the sink took the message in this attempt, so success means that
	// the sink is there. A filtered message or a duplicate proves nothing.
	// Without a sink, the handler counts as one.
	touched   bool
	filtered  bool
	duplicate bool
	poisoned  bool

	// What is known of payloads from earlier attempts: the one that was with the
	// service, and those in the claim check, by key.
	lazy   *located
	stored map[string]*located
}

type deliveryKey struct{}

// deliveryContext carries a delivery in one allocation.
type deliveryContext struct {
	context.Context
	names    context.Context // see intake; empty when the message is replayed
	delivery delivery
}

func (c *deliveryContext) Value(key any) any {
	if _, ok := key.(deliveryKey); ok {
		return &c.delivery
	}
	if value := c.names.Value(key); value != nil {
		return value
	}
	return c.Context.Value(key)
}

// deliveryOf returns nil when the message is not under this package's Router.
func deliveryOf(msg *message.Message) *delivery {
	d, _ := msg.Context().Value(deliveryKey{}).(*delivery)
	return d
}
