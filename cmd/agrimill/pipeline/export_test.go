package pipeline

import (
	"weak"

	"github.com/agrimill/agrimill/router"
)

// Router returns the router of the current generation, weakly: it goes when nothing holds the generation.
func (p *Pipeline) Router() weak.Pointer[router.Router] { return weak.Make(p.now().router) }
