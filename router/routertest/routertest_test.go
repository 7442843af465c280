package routertest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
	"github.com/agrimill/agrimill/sinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a GoChannel that outlives the routers, which close what they read.
type source struct{ *gochannel.GoChannel }

func (source) Close() error { return nil }

func newSource(t *testing.T) source {
	s := source{gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, nil)}
	t.Cleanup(func() { _ = s.GoChannel.Close() })
	return s
}

const attempts = 3

func quick() router.RetrySettings {
	return router.RetrySettings{MaxAttempts: attempts, InitialBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}
}

func keys(scope string, msg *message.Message) (router.Keys, error) {
	return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
}

// discard is a sink that stores nothing.
type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

// shared is a store that several routers have, one after the other.
type shared struct{ router.DedupStore }

func newStore(t *testing.T) shared {
	store, err := router.NewMemoryStore(router.MemoryStoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return shared{store}
}

// agrimill's Router, with the handler as the transform of a route.
func TestRouter(t *testing.T) {
	t.Parallel()
	routertest.Run(t, routertest.Suite{
		New: func(t *testing.T, handle message.NoPublishHandlerFunc) routertest.Setup {
			from, poison, store := newSource(t), &poisonqueue.Queue{}, newStore(t)
			var mu sync.Mutex
			var current *router.Router
			return routertest.Setup{
				Send: func(msg *message.Message) error { return from.Publish("in", msg) },
				Run: func(ctx context.Context, running func()) error {
					r, err := router.New(router.Config{
						Poison: sinks.FromPublisher("poison", poison, sinks.PublisherConfig{}), Retry: quick(),
						Dedup: router.DedupSettings{Store: store, KeyFunc: keys},
					}, nil)
					if err != nil {
						return err
					}
					err = r.Add(router.Route{
						Name: "test", From: from, Topic: "in", To: sinks.FromPublisher("nowhere", discard{}, sinks.PublisherConfig{}), ToTopic: "out",
						Transform: func(msg *message.Message) ([]*message.Message, error) {
							return []*message.Message{msg}, handle(msg)
						},
					})
					if err != nil {
						return err
					}
					mu.Lock()
					current = r
					mu.Unlock()
					go func() { // ends with Run
						<-r.Running()
						running()
					}()
					return r.Run(ctx)
				},
				Poisoned: poison.All,
				Replay: func(ctx context.Context) error {
					mu.Lock()
					r := current
					mu.Unlock()
					_, err := r.Replay(ctx, poison, router.PoisonSelection{All: true})
					return err
				},
			}
		},
		MaxAttempts: attempts, Permanent: true, Outage: true, Panic: true, Drain: true, Redeliver: true, Order: true, Dedup: true,
	})
}

// Watermill's Router with agrimill's middlewares. It ends the contexts of open messages at
// shutdown, so it does not promise Drain.
func TestWatermillRouter(t *testing.T) {
	t.Parallel()
	routertest.Run(t, routertest.Suite{
		New: func(t *testing.T, handle message.NoPublishHandlerFunc) routertest.Setup {
			from, poison, store := newSource(t), &poisonqueue.Queue{}, newStore(t)
			return routertest.Setup{
				Send: func(msg *message.Message) error { return from.Publish("in", msg) },
				Run: func(ctx context.Context, running func()) error {
					stopping := make(chan struct{})
					queue, err1 := router.NewPoisonQueue(router.PoisonConfig{Publisher: poison, Stop: stopping}, nil)
					retry, err2 := router.NewRetry(router.RetryConfig{RetrySettings: quick(), Stop: stopping}, nil)
					dedup, err3 := router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, KeyFunc: keys}}, nil)
					r, err4 := message.NewRouter(message.RouterConfig{}, nil)
					if err := errors.Join(err1, err2, err3, err4); err != nil {
						return err
					}
					r.AddMiddleware(queue.Middleware, retry.Middleware, dedup.Middleware, router.NewRecoverer(nil))
					r.AddConsumerHandler("test", "in", from, handle)
					return runWatermill(ctx, r, running, func() { close(stopping) })
				},
				Poisoned: poison.All,
			}
		},
		MaxAttempts: attempts, Permanent: true, Outage: true, Panic: true, Redeliver: true, Order: true, Dedup: true,
	})
}

// runWatermill runs Watermill's Router until ctx ends.
func runWatermill(ctx context.Context, r *message.Router, running, stopping func()) error {
	result := make(chan error, 1)
	go func() { result <- r.Run(context.WithoutCancel(ctx)) }() // ends with Close
	<-r.Running()
	running()
	<-ctx.Done()
	stopping()
	return errors.Join(r.Close(), <-result)
}

// Watermill's Router alone promises next to nothing of this.
func TestWatermillRouterAlone(t *testing.T) {
	t.Parallel()
	routertest.Run(t, routertest.Suite{
		New: func(t *testing.T, handle message.NoPublishHandlerFunc) routertest.Setup {
			from := newSource(t)
			return routertest.Setup{
				Send: func(msg *message.Message) error { return from.Publish("in", msg) },
				Run: func(ctx context.Context, running func()) error {
					r, err := message.NewRouter(message.RouterConfig{}, nil)
					if err != nil {
						return err
					}
					r.AddConsumerHandler("test", "in", from, handle)
					return runWatermill(ctx, r, running, func() {})
				},
			}
		},
		Outage: true, Redeliver: true,
	})
}
