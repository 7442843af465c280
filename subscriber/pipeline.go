package subscriber

import "github.com/agrimill/agrimill/internal/msgctx"

var _ msgctx.Pipeline = (*messageContext)(nil)

// Begun implements [msgctx.Pipeline].
func (c *messageContext) Begun() {
	c.s.mu.Lock()
	c.it.Begun = true
	c.s.mu.Unlock()
}

// Placed implements [msgctx.Pipeline].
func (c *messageContext) Placed() {
	c.s.mu.Lock()
	defer c.s.unlock()
	c.it.Begun = true
	c.s.core.Placed(c.s.now(), c.it)
}

// Halt implements [msgctx.Pipeline].
func (c *messageContext) Halt() {
	c.s.mu.Lock()
	if l := c.it.Lane; l != nil { // else it was given up meanwhile
		l.Halted = true
	}
	c.s.mu.Unlock()
}

// Halted implements [msgctx.Pipeline].
func (c *messageContext) Halted() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.it.Lane == nil || c.it.Lane.Halted
}
