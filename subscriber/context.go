package subscriber

import (
	"context"
	"sync"
	"time"
)

// messageContext is the context of one message. It ends with the message, and when
// the drain time is over. Most messages end before anybody waits for that, so what
// the wait takes is made for those who do.
type messageContext struct {
	drained context.Context

	mu     sync.Mutex
	over   bool
	waited context.Context // the same as a context of the standard library; nil when nobody has waited
	cancel context.CancelFunc
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
	c.mu.Lock()
	waited := c.waited
	c.mu.Unlock()
	if waited != nil {
		// Package context finds itself there, and needs no goroutine to derive
		// from this context.
		return waited.Value(key)
	}
	return c.drained.Value(key)
}
