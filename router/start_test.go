package router_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/router"
)

// startRecorder notes whether the routes had started when it was subscribed.
type startRecorder struct {
	*source
	signal  <-chan struct{}
	started bool
}

func (s *startRecorder) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.signal = msgctx.SubscriptionOf(ctx).Start
	select {
	case <-s.signal:
		s.started = true
	default:
	}
	return s.source.Subscribe(ctx, topic)
}

// TestSourcesAreToldWhenAllRoutesAreSubscribed checks that a source which serves
// several routes can wait with reading until all of them exist.
func TestSourcesAreToldWhenAllRoutesAreSubscribed(t *testing.T) {
	first, second := &startRecorder{source: newSource()}, &startRecorder{source: newSource()}
	one, two := farmRoute(newSource(), newSink(nil)), farmRoute(newSource(), newSink(nil))
	one.From, two.From, two.Name = first, second, "second"
	r := start(t, router.Config{Poison: newSink(nil)}, one, two)
	<-r.Running()
	for _, s := range []*startRecorder{first, second} {
		if s.started {
			t.Error("s.started = true, want false")
		}
		<-s.signal
	}
}
