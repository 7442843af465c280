package bench

import (
	"context"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// BenchmarkSynced is BenchmarkJetStream with 256 in flight, until all is confirmed: with confirmations that wait until the server
// has synced, as with a sync_interval of a second, and with those that do not.
func BenchmarkSynced(b *testing.B) {
	base := startSource(b)
	for _, durable := range []router.Durable{router.DurableAcknowledged, router.DurableSynced} {
		b.Run(durable.String(), func(b *testing.B) {
			twoCores(b)
			b.ReportAllocs()
			prepare(b, base, b.N, kib, 256)
			server := natstest.Start(b)
			sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}, Synced: sinks.Synced(time.Second)}, nil))(b)
			sub := testkit.Must(subscriber.New(subscriber.Config{Client: newClient(b, base), MaxInFlight: 256}, nil))(b)
			r := testkit.Must(router.New(router.Config{Poison: sink}, nil))(b)
			testkit.NoError(b, r.Add(router.Route{Name: "bench", From: sub, Topic: subscriber.AllData, To: sink, Durable: durable}))
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			result := make(chan error, 1)
			end := meter(b)
			go func() { result <- r.Run(ctx) }()
			testkit.Eventually(b, "all is confirmed", func() bool { return sub.Stats().Confirmed == int64(b.N) })
			end()
			stop()
			testkit.NoError(b, <-result)
		})
	}
}
