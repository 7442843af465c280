package pipeline

import (
	"context"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
)

// historyInterval is how often the history learns of the routes and the journal. In that time the journal must not drop what it
// gets, so that latencies are complete: with its default bounds that takes 20,000 messages per second.
const historyInterval = 2 * time.Second

// remember keeps the history up to date until ctx ends.
func (p *Pipeline) remember(ctx context.Context) {
	tick := time.NewTicker(historyInterval)
	defer tick.Stop()
	for {
		open := p.subscriber.Open()
		now := p.snapshot(open)
		p.history.Update(admin.SamplesFrom(now, open), p.journal)
		p.history.AddUnconfirmed(now.Subscriber.Unconfirmed)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
