package subscriber

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// messageContext is the context of one message. It ends with the message, or when
// the drain timeout expires. Most messages end before anything waits on their
// context, so the machinery for waiting is created on first use.
type messageContext struct {
	drained context.Context
	value   msgctx.Value // for readers that use package msgctx
	nack    msgctx.Nack  // value refers to it

	// Whose message it is, for Following and its pipeline.
	s  *Subscriber
	it *core.Item

	mu     sync.Mutex
	over   bool
	waited context.Context // the standard library equivalent; nil until something waits
	cancel context.CancelFunc
}

// newContext returns the context of a message for sub that is made of it.
func (s *Subscriber) newContext(sub *subscription, it *core.Item) *messageContext {
	d := ownerOf(it.Message)
	c := &d.context1
	if !d.used.CompareAndSwap(false, true) {
		c = new(messageContext)
	}
	c.s, c.it, c.drained = s, it, sub.drained
	c.value.Open, c.value.Nack = s.opener(d), &c.nack
	c.nack.Follows, c.nack.Leased, c.nack.Holds = c, s.cfg.Lease != nil, true
	if it.Kept != nil {
		c.nack.Keep(it.Kept)
	}
	if sub.pipelines {
		c.nack.Pipeline = c
		s.mu.Lock()
		c.nack.Behind, c.nack.Overtaken = it.Behind(), it.Overtaken
		s.mu.Unlock()
	}
	return c
}

// Following implements [msgctx.Follows].
func (c *messageContext) Following(messageType string) []*message.Message {
	var messages []*message.Message
	c.s.mu.Lock()
	for it := c.it.Next(); it != nil; it = it.Next() {
		d := ownerOf(it.Message)
		if e, ok := d.event.(*gateway.MessageReceived); ok && e.MessageType == messageType && !d.Fetching && (d.payload == nil || len(d.payload.data) > 0) {
			messages = append(messages, dataMessage(d, e))
		}
	}
	c.s.mu.Unlock()
	if c.s.cfg.Unmarshaler == nil {
		return messages
	}
	var read []*message.Message
	for _, msg := range messages {
		if msg, err := msgctx.Unmarshaled(c.s.cfg.Unmarshaler.Unmarshal(msg)); err == nil { // else it is told when its turn comes
			read = append(read, msg)
		}
	}
	return read
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
