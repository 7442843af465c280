package bench

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// BenchmarkMiddleware is what each part of the router's chain costs alone,
// around a handler that does nothing, for messages that are all different.
func BenchmarkMiddleware(b *testing.B) {
	own := func(m message.HandlerMiddleware, err error) message.HandlerMiddleware {
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	for _, bench := range []struct {
		name string
		make func() message.HandlerMiddleware
	}{
		{"None", func() message.HandlerMiddleware {
			return func(h message.HandlerFunc) message.HandlerFunc { return h }
		}},
		{"PoisonQueue", func() message.HandlerMiddleware {
			m, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: newCounted(0)}, nil)
			return own(m.Middleware, err)
		}},
		{"Retry", func() message.HandlerMiddleware {
			m, err := router.NewRetry(router.RetryConfig{}, nil)
			return own(m.Middleware, err)
		}},
		{"Dedup", func() message.HandlerMiddleware {
			m, err := router.NewDedup(router.DedupConfig{Scope: "bench"}, nil)
			return own(m.Middleware, err)
		}},
		{"Recoverer", func() message.HandlerMiddleware { return router.NewRecoverer(nil) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			handle := bench.make()(func(*message.Message) ([]*message.Message, error) { return nil, nil })
			msg := received(kib)
			contexts := make([]string, 1<<12)
			for i := range contexts {
				contexts[i] = fmt.Sprintf("0d4c1e2f-93a1-4f6e-8a44-%012d", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i%len(contexts) == 0 {
					// The endpoint belongs to the key too.
					msg.Metadata[gateway.KeyReceivingEndpointID] = fmt.Sprintf("b1a7c9de-5f1b-4b7e-9c53-%012d", i)
				}
				msg.Metadata[gateway.KeyContextID] = contexts[i%len(contexts)]
				msg.Metadata[gateway.KeyMessageID] = contexts[i%len(contexts)]
				testkit.Must(handle(msg))(b)
				i++
			}
			reportRate(b)
		})
	}
}
