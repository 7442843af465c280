package tracing_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// TestEverythingEnds takes many messages through retries, returns and lost
// connections: every span ends, and the confirmation of every message is in the
// trace of a delivery that was acked.
func TestEverythingEnds(t *testing.T) {
	const messages = 500
	w := newWorld(t, tracing.Config{})
	var mu sync.Mutex
	times := map[string]int{}
	transform := func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		n := times[string(msg.Payload)]
		times[string(msg.Payload)]++
		switch number := int(msg.Payload[0]) + int(msg.Payload[1]); {
		case n > 0:
		case number%5 == 0:
			return nil, errors.New("once")
		case number%7 == 0:
			return nil, router.WithClass(errors.New("stale"), router.ClassRedeliver)
		case number%11 == 0:
			return nil, router.Permanent(errors.New("never"))
		}
		return pass(msg)
	}
	route := w.route(&testkit.Publisher{}, transform)
	route.From = w.Subscriber(tracing.SystemGateway, w.subscriber(func(c *subscriber.Config) {
		c.Order, c.MaxInFlight = subscriber.Unordered, 50
		c.Reconnect = subscriber.Backoff{Initial: 1, Max: 10}
	}))
	stop := w.start(router.Config{Poison: w.Sink("", newSink(w, "poison", &testkit.Publisher{}, sinks.PublisherConfig{}))}, route)
	for i := range messages {
		w.send(typeIn, fmt.Sprintf("%c%c%d", i%100+1, i/100+1, i), "")
		if i%100 == 50 {
			w.waitConfirmed(i / 2)
			w.server.CutStreams()
		}
	}
	w.waitConfirmed(messages)
	stop()

	acked := map[trace.SpanID]string{}
	for _, s := range w.allNamed("process " + typeIn) { // which also looks whether all have ended
		if attributes(s)[string(tracing.KeySettled)] == "ack" {
			acked[s.SpanContext().SpanID()] = attributes(s)["messaging.message.id"]
		}
	}
	confirmed := map[string]bool{}
	for _, s := range w.allNamed("confirm") {
		id := attributes(s)["messaging.message.id"]
		if acked[s.Parent().SpanID()] != id {
			t.Errorf("the confirmation of %s is no child of a delivery of it that was acked", id)
		}
		confirmed[id] = true
	}
	if len(confirmed) != messages {
		t.Errorf("%d messages have a span of their confirmation, want %d", len(confirmed), messages)
	}
}
