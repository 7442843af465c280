package router_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// giver is a source that has no use for the metadata of what it has delivered.
type giver struct{ *source }

func (g *giver) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	asked := msgctx.SubscriptionOf(ctx)
	asked.Given = asked.IsTo(g)
	return g.source.Subscribe(ctx, topic)
}

// around is a subscriber around another one that may do anything with the messages.
type around struct{ message.Subscriber }

// sameMap reports whether two metadata are one.
func sameMap(a, b message.Metadata) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// readingSink leaves the messages that it is given as they are, and says so.
type readingSink struct{ sinks.Sink }

func (s readingSink) Describe() sinks.Description { return sinks.DescribeAs(s, s.Sink) }

// changingSink changes the messages that it is given. It need not say so, although the sink that it embeds does not.
type changingSink struct{ sinks.Sink }

func (s changingSink) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		msg.Metadata["changed"] = "yes"
	}
	return s.Sink.Publish(topic, messages...)
}

// Metadata are published instead of a copy only if nobody else has a use for them.
func TestGivenMetadata(t *testing.T) {
	middleware := func(h message.HandlerFunc) message.HandlerFunc { return h }
	for name, test := range map[string]struct {
		change func(config *router.Config, route *router.Route)
		set    string // a key that the message has
		given  bool
	}{
		"alone":     {given: true},
		"observed":  {given: true, change: func(c *router.Config, _ *router.Route) { c.Observer = router.ObserverFunc(func(router.Event) {}) }},
		"not given": {change: func(_ *router.Config, r *router.Route) { r.From = r.From.(*giver).source }},
		"around":    {change: func(_ *router.Config, r *router.Route) { r.From = around{r.From} }},
		"filter": {change: func(_ *router.Config, r *router.Route) {
			r.Filter = func(*message.Message) (bool, error) { return true, nil }
		}},
		"transform":          {change: func(_ *router.Config, r *router.Route) { r.Transform = message.PassthroughHandler }},
		"middleware":         {change: func(_ *router.Config, r *router.Route) { r.Middleware = []message.HandlerMiddleware{middleware} }},
		"middleware outside": {change: func(c *router.Config, _ *router.Route) { c.Middleware = []message.HandlerMiddleware{middleware} }},
		"own chain": {change: func(c *router.Config, _ *router.Route) {
			c.Chain = func(_ string, s router.Chain) []message.HandlerMiddleware {
				return []message.HandlerMiddleware{s.Poison, s.Retry, s.Dedup, middleware, s.Recoverer}
			}
		}},
		"sink around":     {change: func(_ *router.Config, r *router.Route) { r.To = wrappedSink{r.To} }},
		"reading sink":    {given: true, change: func(_ *router.Config, r *router.Route) { r.To = readingSink{r.To} }},
		"changing sink":   {change: func(_ *router.Config, r *router.Route) { r.To = changingSink{r.To} }},
		"named before":    {set: gateway.KeyDedupID},
		"poisoned before": {set: router.KeyPoisonCount},
	} {
		t.Run(name, func(t *testing.T) {
			var published message.Metadata
			from, to := &giver{newSource()}, newSink(func(_ string, msg *message.Message) error {
				published = msg.Metadata
				return nil
			})
			config, route := router.Config{Poison: to}, farmRoute(from, to)
			if test.change != nil {
				test.change(&config, &route)
			}
			start(t, config, route)
			msg := farmMessage("1", "endpoint", "context", "payload")
			if test.set != "" {
				msg.Metadata[test.set] = "1"
			}
			received, before := msg.Metadata, maps.Clone(msg.Metadata)
			from.messages <- msg
			<-msg.Acked()
			if published[gateway.KeyDedupID] == "" || published[gateway.KeyDedupID] == "1" {
				t.Errorf("published as %q", published[gateway.KeyDedupID])
			}
			if got := sameMap(received, published); got != test.given {
				t.Errorf("the received metadata were published: %t, want %t", got, test.given)
			}
			if !test.given && !maps.Equal(msg.Metadata, before) {
				t.Errorf("received %v became %v", before, msg.Metadata)
			}
		})
	}
}

// A message that fails has the metadata with which it was received, in each attempt, for observers,
// in the poison queue and where it is returned to, while the sink may still have those that were
// published.
func TestGivenMetadataAreTakenBack(t *testing.T) {
	var received message.Metadata
	unchanged := func(what string, metadata message.Metadata) {
		if !maps.Equal(metadata, received) {
			t.Errorf("%s has %v, want %v", what, metadata, received)
		}
	}
	var abandoned sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); abandoned.Wait() })
	attempts := 0
	from, to := &giver{newSource()}, newSink(func(_ string, msg *message.Message) error {
		if msg.Metadata[gateway.KeyDedupID] == "" {
			t.Error("published without a name")
		}
		attempts++
		switch attempts {
		case 1, 3:
			abandoned.Go(func() { // a sink that does not know yet that it has failed
				for {
					select {
					case <-stop:
						return
					default:
						_ = maps.Clone(msg.Metadata)
						sinks.ReportStored(msg, sinks.Receipt{})
					}
				}
			})
			return sinks.NewError("memory", "topic", sinks.ErrUnavailable, nil)
		case 2:
			panic("the sink is broken")
		case 4:
			return sinks.NewError("memory", "topic", sinks.ErrRejected, nil)
		}
		return errors.New("too many attempts")
	})
	poison := newSink(nil)
	config := router.Config{Poison: poison, Retry: fastRetry}
	config.Dedup.KeyFunc = func(scope string, msg *message.Message) (router.Keys, error) {
		unchanged("an attempt", msg.Metadata)
		return router.DefaultKeys(scope, msg)
	}
	config.Observer = router.ObserverFunc(func(e router.Event) {
		switch e.Kind {
		case router.EventStored:
			if e.Message.Metadata[gateway.KeyDedupID] == "" {
				t.Error("stored without a name")
			}
		case router.EventStarted, router.EventRetry, router.EventPoisoned:
			unchanged(e.Kind.String(), e.Message.Metadata)
		}
	})
	start(t, config, farmRoute(from, to))
	msg := farmMessage("1", "endpoint", "context", "payload")
	received = maps.Clone(msg.Metadata)
	from.messages <- msg
	testkit.Receive(t, "the ack", msg.Acked())
	unchanged("the received message", msg.Metadata)
	if attempts != 4 {
		t.Errorf("%d attempts, want 4", attempts)
	}
	poisoned := poison.all()
	if len(poisoned) != 1 {
		t.Fatalf("%d messages poisoned, want 1", len(poisoned))
	}
	if id, ok := poisoned[0].msg.Metadata[router.KeyPoisonDedupID]; ok {
		t.Errorf("poisoned with the name %q, which it did not come with", id)
	}
}
