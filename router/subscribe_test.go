package router_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
)

// panicky panics when it is subscribed for the first time.
type panicky struct {
	*source
	times int
}

func (p *panicky) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if p.times++; p.times == 1 {
		panic("no map")
	}
	return p.source.Subscribe(ctx, topic)
}

// A subscriber that panics has failed, like one that returns an error: neither the
// process nor the other routes end with it.
func TestSubscriberPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &panicky{source: newSource()}, newSink(nil)
		route := farmRoute(from, to)
		start(t, router.Config{Poison: newSink(nil)}, route)
		msg := farmMessage("1", "e", "c", "p")
		from.messages <- msg
		if got := verdict(t, msg); got != "ack" || from.times != 2 {
			t.Errorf("verdict %q after %d subscriptions", got, from.times)
		}
	})
}
