package subscriber

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// messageContext is the context of one message. It ends with the message, or when
// the drain timeout expires. Most messages end before anything waits on their
// context, so the machinery for waiting is created on first use.
type messageContext struct {
	drained context.Context
	value   msgctx.Value // for readers that use package msgctx
	nack    msgctx.Nack  // value refers to it

	// Whose message it is, for Following.
	s   *Subscriber
	sub *subscription
	d   *delivery

	mu     sync.Mutex
	over   bool
	waited context.Context // the standard library equivalent; nil until something waits
	cancel context.CancelFunc
}

// init makes the zero value a context that ends with drained at the latest.
func (c *messageContext) init(drained context.Context, open msgctx.Opener) {
	c.drained = drained
	c.value.Open, c.value.Nack = open, &c.nack
}

// follow has the handler of the message told what comes behind it.
func (c *messageContext) follow(s *Subscriber, sub *subscription, d *delivery) {
	c.s, c.sub, c.d, c.nack.Follows = s, sub, d, c
}

// Following implements [msgctx.Follows].
func (c *messageContext) Following(messageType string) []*message.Message {
	var messages []*message.Message
	c.s.mu.Lock()
	if q := c.sub.queues[c.d.order]; q != nil {
		for _, d := range q.items[slices.Index(q.items, c.d)+1:] {
			if e, ok := d.event.(*gateway.MessageReceived); ok && e.MessageType == messageType && d.payload.inMemory() {
				messages = append(messages, dataMessage(d, e))
			}
		}
	}
	c.s.mu.Unlock()
	if c.s.cfg.Unmarshaler == nil {
		return messages
	}
	var read []*message.Message
	for _, msg := range messages {
		if msg, err := c.s.cfg.Unmarshaler.Unmarshal(msg); err == nil { // else it is told when its turn comes
			read = append(read, msg)
		}
	}
	return read
}

// inMemory reports whether the payload is there; nil stands for one in the event.
func (p *payload) inMemory() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.ready:
		return p.err == nil && len(p.data) > 0
	default:
		return false
	}
}

// end ends the context.
func (c *messageContext) end() {
	c.mu.Lock()
	c.over = true
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Deadline implements context.Context.
func (c *messageContext) Deadline() (time.Time, bool) { return c.drained.Deadline() }

// Done implements context.Context.
func (c *messageContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waited == nil {
		c.waited, c.cancel = context.WithCancel(c.drained)
		if c.over {
			c.cancel()
		}
	}
	return c.waited.Done()
}

// Err implements context.Context.
func (c *messageContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Canceled
	}
	return c.drained.Err()
}

// Value implements context.Context.
func (c *messageContext) Value(key any) any {
	if _, ok := key.(msgctx.Key); ok {
		return &c.value
	}
	c.mu.Lock()
	waited := c.waited
	c.mu.Unlock()
	if waited != nil {
		// Package context recognizes itself in there, and then needs no goroutine
		// to derive from this context.
		return waited.Value(key)
	}
	return c.drained.Value(key)
}
