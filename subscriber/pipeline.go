package subscriber

import (
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

var _ msgctx.Pipeline = pipeline{}

// pipeline is the [msgctx.Pipeline] of an item.
type pipeline struct {
	s  *Subscriber
	it *core.Item
}

// Begun implements [msgctx.Pipeline].
func (p pipeline) Begun() {
	p.s.mu.Lock()
	p.it.Begun = true
	p.s.mu.Unlock()
}

// Placed implements [msgctx.Pipeline].
func (p pipeline) Placed() {
	p.s.mu.Lock()
	defer p.s.unlock()
	p.it.Begun = true
	p.s.core.Placed(p.s.now(), p.it)
}

// Halt implements [msgctx.Pipeline].
func (p pipeline) Halt() {
	p.s.mu.Lock()
	p.it.Lane.Halted = true
	p.s.mu.Unlock()
}

// Halted implements [msgctx.Pipeline].
func (p pipeline) Halted() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.it.Lane.Halted
}

// Settled implements [msgctx.Pipeline].
func (pipeline) Settled() {}
