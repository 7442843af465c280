package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
)

// A delivery that its source names is that place with the broker: a redelivery is recognized,
// also after a replay, and equal records are several, although a handler has copied the IDs
// of one message of the gateway into all of them.
func TestDeliveriesOfABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, from, to := &poisonqueue.Queue{}, newSource(), newBroker()
		var repaired atomic.Bool
		route := farmRoute(from, to)
		route.TopicFunc = func(*message.Message) (string, error) { return "out", nil }
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			if string(msg.Payload) == "broken" && !repaired.Load() {
				return nil, router.Permanent(errors.New("broken"))
			}
			return []*message.Message{msg}, nil
		}
		r := start(t, router.Config{Poison: q}, route)
		at := func(place, payload string) *message.Message {
			msg := farmMessage("id", "endpoint", "context", payload)
			msg.SetContext(msgctx.With(context.Background(), msgctx.Value{Delivery: place}))
			return msg
		}
		deliver := func(place, payload string) {
			t.Helper()
			msg := at(place, payload)
			from.deliver(t, msg)
		}
		for range 2 {
			deliver("1", "part")
			deliver("2", "part")
		}
		deliver("3", "broken")
		deliver("4", "broken")
		testkit.Equal(t, to.payloads(), []string{"part", "part"})

		repaired.Store(true)
		testkit.Equal(t, replayAll(t, r.Router, q), router.ReplayReport{Sent: 2})
		for _, place := range []string{"3", "4"} {
			deliver(place, "broken")
		}
		testkit.Equal(t, to.payloads(), []string{"part", "part", "broken", "broken"})
	})
}

// What a route makes of a delivery is not that delivery for the route behind it, although it
// has its context.
func TestMadeOfADeliveryOfABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, between, to := newSource(), newSource(), newSink(nil)
		first := farmRoute(from, newSink(func(_ string, msg *message.Message) error {
			next := msg.Copy()
			next.SetContext(msg.Context())
			between.messages <- next
			return nil
		}))
		first.Name = "first"
		first.Transform = func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{msg.Copy(), msg.Copy(), msg.Copy()}, nil
		}
		start(t, router.Config{Poison: newSink(nil)}, first, farmRoute(between, to))
		msg := message.NewMessage("uuid", []byte("payload"))
		msg.SetContext(msgctx.With(context.Background(), msgctx.Value{Delivery: "1"}))
		from.deliver(t, msg)
		synctest.Wait()
		to.wantStored(t, 3)
	})
}
