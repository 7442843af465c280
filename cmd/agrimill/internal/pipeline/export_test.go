package pipeline

import (
	"weak"

	"github.com/agrimill/agrimill/router"
)

// Router returns the router of the current generation, weakly: it goes when nothing holds the generation.
func (p *Pipeline) Router() weak.Pointer[router.Router] { return weak.Make(p.now().router) }

// Totals is of how many routes there are counts of earlier generations.
func (p *Pipeline) Totals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.totals)
}
