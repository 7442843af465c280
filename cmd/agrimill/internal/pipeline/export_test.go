package pipeline

import (
	"context"
	"log/slog"
	"time"
	"weak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
)

// Ready looks now, and returns the checks as /readyz does.
func (p *Pipeline) Ready(ctx context.Context) []admin.Check {
	p.readiness.record(p.look(ctx, p.now()), time.Now())
	s := p.Snapshot()
	return s.Verdict.Apply(s.Checks)
}

// Logger returns the logger of all parts.
func (p *Pipeline) Logger() *slog.Logger { return p.logger }

// Router returns the router of the current generation, weakly: it goes when nothing holds the generation.
func (p *Pipeline) Router() weak.Pointer[router.Router] { return weak.Make(p.now().router) }

// Totals is of how many routes there are counts of earlier generations.
func (p *Pipeline) Totals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.totals)
}
