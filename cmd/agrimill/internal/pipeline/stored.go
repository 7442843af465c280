package pipeline

import (
	"context"
	"iter"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/internal/spool"
)

// storedConnectTimeout is how long to wait for a broker to show what is in a message: somebody waits for it, and there may be
// other places to look at.
const storedConnectTimeout = 3 * time.Second

// Stored implements [admin.Source], with the brokers and buckets of the running configuration, and connections of its own.
func (p *Pipeline) Stored(ctx context.Context, m *journal.Message) iter.Seq2[admin.StoredCopy, error] {
	return stored.Each(ctx, p.now().config, m, stored.Options{
		// All of it in memory: there may be no directory for temporary files.
		Limits:         spool.Limits{Max: admin.MaxStored, Memory: admin.MaxStored},
		ConnectTimeout: storedConnectTimeout,
		Claims:         p.claimCheck,
	})
}
