package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/segmentio/asm/base64"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber"
)

var sizes = []int{1 << 10, 12 << 10, 192 << 10}

func sizeName(n int) string { return fmt.Sprintf("%dKiB", n>>10) }

func reportRate(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkFloorScan is the least that any reader has to do with an event that
// is in memory: find its lines, copy it once, decode its payload.
func BenchmarkFloorScan(b *testing.B) {
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			event, _ := eventTemplate(size, 0)
			buf := make([]byte, len(event))
			out := make([]byte, size+3)
			b.ReportAllocs()
			b.SetBytes(int64(len(event)))
			for b.Loop() {
				copy(buf, event)
				rest := buf
				for {
					i := bytes.IndexByte(rest, '\n')
					if i < 0 {
						break
					}
					rest = rest[i+1:]
				}
				start := bytes.Index(buf, []byte(`"payload":"`)) + len(`"payload":"`)
				end := start + bytes.IndexByte(buf[start:], '"')
				if _, err := base64.StdEncoding.Decode(out, buf[start:end]); err != nil {
					b.Fatal(err)
				}
			}
			reportRate(b)
		})
	}
}

// BenchmarkFloorHTTP reads the same stream over HTTP and does nothing with it.
func BenchmarkFloorHTTP(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			event, _ := eventTemplate(size, 0)
			b.SetBytes(int64(len(event)))
			prepare(b, base, b.N, size)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", http.NoBody)
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			buf := make([]byte, 64<<10)
			for left := b.N * len(event); left > 0; {
				n, err := resp.Body.Read(buf)
				if err != nil && err != io.EOF {
					b.Fatal(err)
				}
				left -= n
			}
			b.StopTimer()
			reportRate(b)
		})
	}
}

// BenchmarkStream reads and decodes the stream, without messages and
// confirmations.
func BenchmarkStream(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			event, _ := eventTemplate(size, 0)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			prepare(b, base, b.N, size)
			stream, err := newClient(b, base).ReceiveEvents(b.Context(), gateway.ReceiveEventsRequest{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			b.ResetTimer()
			for range b.N {
				raw, err := stream.Next()
				if err != nil {
					b.Fatal(err)
				}
				if _, err := gateway.DecodeEvent(raw.Type, raw.Data); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			reportRate(b)
		})
	}
}

// BenchmarkSubscriber is stream → decode → message → ack → batched confirmation.
func BenchmarkSubscriber(b *testing.B) {
	base := startSource(b)
	for _, order := range []struct {
		name  string
		order subscriber.Order
	}{{"ByKey", subscriber.OrderByKey}, {"Unordered", subscriber.Unordered}} {
		for _, size := range sizes {
			b.Run(order.name+"/"+sizeName(size), func(b *testing.B) {
				event, _ := eventTemplate(size, 0)
				b.SetBytes(int64(len(event)))
				b.ReportAllocs()
				prepare(b, base, b.N, size)
				sub, err := subscriber.New(subscriber.Config{Client: newClient(b, base), Order: order.order}, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ResetTimer()
				messages, err := sub.Subscribe(b.Context(), subscriber.AllData)
				if err != nil {
					b.Fatal(err)
				}
				for range b.N {
					msg := <-messages
					if len(msg.Payload) != size {
						b.Fatalf("payload of %d bytes", len(msg.Payload))
					}
					msg.Ack()
				}
				// Close sends the last confirmations.
				if err := sub.Close(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if got := sub.Stats().Confirmed; got != int64(b.N) {
					b.Fatalf("confirmed %d of %d", got, b.N)
				}
				reportRate(b)
			})
		}
	}
}
