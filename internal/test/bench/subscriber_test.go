package bench

import (
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// BenchmarkStream reads and decodes the stream, without messages and
// confirmations.
func BenchmarkStream(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(newEvent(size, 0).data)))
			b.ReportAllocs()
			prepare(b, base, b.N, size, 16)
			stream := testkit.Must(newClient(b, base).ReceiveEvents(b.Context(), gateway.ReceiveEventsRequest{}))(b)
			defer func() { _ = stream.Close() }()
			end := meter(b)
			for range b.N {
				raw := testkit.Must(stream.Next())(b)
				testkit.Must(gateway.DecodeEvent(raw.Type, raw.Data))(b)
			}
			end()
		})
	}
}

var orders = []struct {
	name  string
	order subscriber.Order
}{{"ByKey", subscriber.OrderByKey}, {"Unordered", subscriber.Unordered}}

// BenchmarkSubscriber is stream → decode → message → ack → batched confirmation.
func BenchmarkSubscriber(b *testing.B) {
	base := startSource(b)
	for _, order := range orders {
		for _, size := range sizes {
			b.Run(order.name+"/"+sizeName(size), func(b *testing.B) {
				b.SetBytes(int64(len(newEvent(size, 0).data)))
				b.ReportAllocs()
				subscribe(b, base, size, order.order)
			})
		}
	}
}

// subscribe takes b.N events, acks them and has them confirmed.
func subscribe(b *testing.B, base string, size int, order subscriber.Order) {
	prepare(b, base, b.N, size, 16)
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: newClient(b, base), Order: order, StartAfter: -1}, nil))(b)
	end := meter(b)
	messages := testkit.Must(sub.Subscribe(b.Context(), subscriber.AllData))(b)
	for range b.N {
		msg := <-messages
		if len(msg.Payload) != size {
			b.Fatalf("payload of %d bytes", len(msg.Payload))
		}
		msg.Ack()
	}
	// Close sends the last confirmations.
	testkit.NoError(b, sub.Close())
	end()
	if got := sub.Stats().Confirmed; got != int64(b.N) {
		b.Fatalf("confirmed %d of %d", got, b.N)
	}
}

// BenchmarkTwoCores is the Subscriber and the Router, by key with 1 KiB, on two processors, of which
// the gateway's process takes its share.
func BenchmarkTwoCores(b *testing.B) {
	base := startSource(b)
	b.Run("Subscriber", func(b *testing.B) {
		twoCores(b)
		b.ReportAllocs()
		subscribe(b, base, kib, subscriber.OrderByKey)
	})
	b.Run("Router", func(b *testing.B) {
		twoCores(b)
		b.ReportAllocs()
		sink := newCounted(b.N)
		route(b, base, kib, 16, subscriber.Config{}, sink, sink.done)
	})
}
