package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// The ways to share the load that docs/high-availability.md names.

// BenchmarkShareRoutes has 1, 2 and 4 routes in one process, each of which stores every message in a
// stream of its own. The rate is that of the event stream; what is stored is as many times that.
func BenchmarkShareRoutes(b *testing.B) {
	base := startSource(b)
	const window = 256
	for _, routes := range []int{1, 2, 4} {
		b.Run(strconv.Itoa(routes), func(b *testing.B) {
			twoCores(b)
			url := natstest.Start(b).URL()
			prepare(b, base, b.N, kib, window)
			sub := testkit.Must(subscriber.New(subscriber.Config{Client: newClient(b, base), MaxInFlight: window, StartAfter: -1}, nil))(b)
			all := newCounted(routes * b.N)
			var r *router.Router
			for i := range routes {
				name := fmt.Sprintf("share%d", i)
				sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: url}, Stream: name, SubjectPrefix: name}, nil))(b)
				if r == nil {
					r = testkit.Must(router.New(router.Config{Poison: sink}, nil))(b)
				}
				testkit.NoError(b, r.Add(router.Route{Name: name, From: sub, Topic: subscriber.AllData, To: &countedPlaces{sink, all}}))
			}
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			result := make(chan error, 1)
			end := meter(b)
			go func() { result <- r.Run(ctx) }()
			select {
			case <-all.done:
			case err := <-result:
				b.Fatal("router ended: ", err)
			}
			stop()
			testkit.NoError(b, <-result)
			end()
			if got := sub.Stats().Confirmed; got != int64(b.N) {
				b.Fatalf("confirmed %d of %d", got, b.N)
			}
		})
	}
}

// BenchmarkShareConsumers has 1, 2 and 4 consumers behind a stream, which share a durable one. Each
// handles one message at a time and waits a millisecond for something else each time. What one has
// pulled, the others do not get, so it is to pull little: a repetition has some hundred messages.
func BenchmarkShareConsumers(b *testing.B) {
	for _, consumers := range []int{1, 2, 4} {
		b.Run(strconv.Itoa(consumers), func(b *testing.B) {
			twoCores(b)
			url := filledStream(b, "share")
			var handled atomic.Int64
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var running sync.WaitGroup
			var inputs []<-chan *message.Message
			for range consumers {
				source := testkit.Must(sourcenats.New(sourcenats.Config{
					Connection: nats.Connection{URL: url}, SubjectPrefix: nats.NoSubjectPrefix, Durable: "share", KeyHeader: wayBackHeader, MaxInFlight: 4,
				}, nil))(b)
				messages := testkit.Must(source.Subscribe(ctx, "share"))(b)
				defer func() { _ = source.Close() }()
				inputs = append(inputs, messages)
			}
			end := meter(b)
			for _, messages := range inputs {
				running.Go(func() {
					for msg := range messages {
						<-time.After(time.Millisecond) // the work
						msg.Ack()
						if handled.Add(1) == int64(b.N) {
							stop()
						}
					}
				})
			}
			running.Wait()
			end()
			if got := handled.Load(); got < int64(b.N) {
				b.Fatalf("%d of %d were handled", got, b.N)
			}
		})
	}
}
