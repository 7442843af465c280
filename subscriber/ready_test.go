package subscriber_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// slowJoiner is a subscriber of another broker, whose Subscribe takes until it is released.
type slowJoiner struct{ joined chan struct{} }

func (s slowJoiner) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	<-s.joined
	messages := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(messages) })
	return messages, nil
}

func (slowJoiner) Close() error { return nil }

// However long Watermill's Router takes to start its handlers, none misses what waits at the service.
func TestNoHandlerOfWatermillsRouterMissesTheBacklog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	const n = 20
	for range n {
		f.send(typeJSON, []byte("x"))
	}
	r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
	cfg := f.config()
	cfg.Ready = r.Running()
	sub := f.subscriber(cfg)
	other := slowJoiner{make(chan struct{})}
	var archived, billed atomic.Int64
	count := func(n *atomic.Int64) message.NoPublishHandlerFunc {
		return func(*message.Message) error { n.Add(1); return nil }
	}
	r.AddConsumerHandler("archive", subscriber.AllData, sub, count(&archived))
	r.AddConsumerHandler("other", "other", other, count(new(atomic.Int64)))
	r.AddConsumerHandler("billing", typeJSON, sub, count(&billed))
	done := make(chan error, 1)
	go func() { done <- r.Run(f.Context()) }()
	if got := f.server.Stats(gatewaytest.OpEvents).Requests; got != 0 {
		t.Errorf("%d streams before every handler has subscribed", got)
	}
	close(other.joined)
	f.waitConfirmed(n)
	if archived.Load() != n || billed.Load() != n {
		t.Errorf("%d confirmed: archive got %d, billing %d", n, archived.Load(), billed.Load())
	}
	_ = r.Close()
	testkit.NoError(t, <-done)
}

// Watermill's Router returns from Run before the last confirmations are sent, and may leave the subscriber open. Close sends them.
func TestConfirmationsAfterWatermillsRouter(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*message.Router, context.CancelFunc){
		"context": func(_ *message.Router, cancel context.CancelFunc) { cancel() },
		"Close":   func(r *message.Router, _ context.CancelFunc) { _ = r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			const n = 20
			for range n {
				f.send(typeJSON, []byte("x"))
			}
			// Without a logger: a goroutine of the Router may log after Run has returned.
			r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
			cfg := f.config()
			cfg.Ready, cfg.Confirm.MaxAge = r.Running(), testkit.Patience
			sub := f.subscriber(cfg)
			var handled atomic.Int64
			r.AddConsumerHandler("archive", subscriber.AllData, sub, func(*message.Message) error { handled.Add(1); return nil })
			ctx, cancel := context.WithCancel(f.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			testkit.Eventually(t, "everything is handled", func() bool { return handled.Load() == n })
			end(r, cancel)
			testkit.NoError(t, <-done)
			testkit.NoError(t, sub.Close())
			f.waitConfirmed(n)
		})
	}
}
