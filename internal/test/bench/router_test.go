package bench

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// counted is a sink that stores nothing and tells when it got n messages.
type counted struct {
	left atomic.Int64
	done chan struct{}
}

func newCounted(n int) *counted {
	c := &counted{done: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *counted) Publish(_ string, messages ...*message.Message) error {
	if c.left.Add(-int64(len(messages))) == 0 {
		close(c.done)
	}
	return nil
}

func (c *counted) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	p := &sinks.Publication{}
	p.Resolve(sinks.Receipt{}, c.Publish(topic, msg))
	return p, nil
}

func (*counted) Close() error                  { return nil }
func (c *counted) Describe() sinks.Description { return sinks.Description{Name: "none", ReadOnly: c} }
func (*counted) CheckTopic(string) error       { return nil }

func (*counted) TopicSegment(value string) string { return sinks.DefaultSegments.Escape(value) }
func (*counted) Health(context.Context) error     { return nil }

// BenchmarkRouter is the Router with its whole chain over the Subscriber, into a
// sink that does nothing.
func BenchmarkRouter(b *testing.B) {
	base := startSource(b)
	for _, order := range orders {
		for _, size := range sizes[:2] {
			b.Run(order.name+"/"+sizeName(size), func(b *testing.B) {
				b.SetBytes(int64(len(newEvent(size, 0).data)))
				b.ReportAllocs()
				sink := newCounted(b.N)
				route(b, base, size, 16, subscriber.Config{Order: order.order}, sink, sink.done)
			})
		}
	}
}

// route carries b.N events through a Router into sink until done, confirms them
// and closes everything.
func route(b *testing.B, base string, size, endpoints int, cfg subscriber.Config, sink sinks.Sink, done <-chan struct{}) {
	prepare(b, base, b.N, size, endpoints)
	cfg.Client = newClient(b, base)
	sub := testkit.Must(subscriber.New(cfg, nil))(b)
	r := testkit.Must(router.New(router.Config{Poison: sink}, nil))(b)
	testkit.NoError(b, r.Add(router.Route{Name: "bench", From: sub, Topic: subscriber.AllData, To: sink}))
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	result := make(chan error, 1)
	end := meter(b)
	go func() { result <- r.Run(ctx) }()
	select {
	case <-done:
	case err := <-result:
		b.Fatal("router ended: ", err)
	}
	stop()
	testkit.NoError(b, <-result)
	end()
	if got := sub.Stats().Confirmed; got != int64(b.N) {
		b.Fatalf("confirmed %d of %d", got, b.N)
	}
	if got := r.Health()[0].Delivered; got != uint64(b.N) {
		b.Fatalf("delivered %d of %d", got, b.N)
	}
}

// BenchmarkRouterPublisher is BenchmarkRouter into a Watermill publisher that does nothing, as a sink.
func BenchmarkRouterPublisher(b *testing.B) {
	base := startSource(b)
	for _, size := range sizes[:2] {
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(newEvent(size, 0).data)))
			b.ReportAllocs()
			count := newCounted(b.N)
			route(b, base, size, 16, subscriber.Config{}, sinks.FromPublisher("none", count, sinks.PublisherConfig{}), count.done)
		})
	}
}
