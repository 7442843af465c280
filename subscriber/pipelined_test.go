package subscriber_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// pipelined subscribes as a route with a pipelined sink does.
func (f *fixture) pipelined(sub *subscriber.Subscriber) <-chan *message.Message {
	f.Helper()
	messages := testkit.Must(sub.Subscribe(msgctx.WithSubscription(f.Context(), &msgctx.Subscription{Pipelines: true}), subscriber.AllData))(f)
	return messages
}

// place gives the next message, which has to be the one with the payload, its place.
func (f *fixture) place(messages <-chan *message.Message, payload string) *message.Message {
	f.Helper()
	msg := f.next(messages)
	if string(msg.Payload) != payload {
		f.Fatalf("got %.20q, want %q", msg.Payload, payload)
	}
	msgctx.NackOf(msg.Context()).Pipeline.Placed()
	return msg
}

// settle acks or nacks a message as a route does.
func settle(msg *message.Message, ack bool) {
	if ack {
		msg.Ack()
	} else {
		msg.Nack()
	}
}

// A key of which many messages are on their way without an answer leaves an eighth of the window to
// the first messages of others.
func TestPipelinedLeavesRoom(t *testing.T) {
	synctest.Test(t, testPipelinedLeavesRoom)
}

func testPipelinedLeavesRoom(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.MaxInFlight = 8
	messages := f.pipelined(f.subscriber(cfg))
	f.sendN(20, f.receiver)
	var open []*message.Message
	for i := range 7 {
		open = append(open, f.place(messages, fmt.Sprint(i)))
	}
	f.nothing(messages)
	f.send(typeJSON, []byte("other"), f.receiver2)
	f.send(typeJSON, []byte("another"), f.receiver2)
	other := f.place(messages, "other")
	f.nothing(messages)
	settle(other, true)
	f.waitConfirmed(1)
	settle(f.place(messages, "another"), true)
	f.waitConfirmed(2)
	for _, msg := range open {
		settle(msg, true)
	}
	for i := 7; i < 20; i++ {
		settle(f.place(messages, fmt.Sprint(i)), true)
	}
	f.waitConfirmed(22)
}

// Nothing more is delivered once one has failed, also if the route has not said so before.
func TestPipelinedFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	messages := f.pipelined(sub)
	f.sendN(4, f.receiver)
	first, second := f.place(messages, "0"), f.next(messages)
	settle(first, false)
	pipeline := msgctx.NackOf(second.Context()).Pipeline
	testkit.Eventually(f, "a message behind the one that has failed is told", pipeline.Halted)
	pipeline.Placed()
	f.nothing(messages)
	settle(second, true)
	again := f.next(messages)
	if got := msgctx.NackOf(again.Context()).Overtaken; string(again.Payload) != "0" || got != 1 {
		t.Errorf("got %q, overtaken by %d; want 0, by 1", again.Payload, got)
	}
	settle(again, true)
	settle(f.place(messages, "2"), true)
	settle(f.place(messages, "3"), true)
	f.waitConfirmed(4)
	if got := sub.Stats().Overtaken; got != 1 {
		t.Errorf("Overtaken = %d, want 1", got)
	}
}

// Of two subscriptions, the one that pipelines gets on while the other one has a message of the
// key; nothing is confirmed before both have acked it.
func TestPipelinedBesidePlain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	plain, pipelined := f.subscribe(sub, subscriber.AllData), f.pipelined(sub)
	f.sendN(3, f.receiver)
	held := f.next(plain)
	var open []*message.Message
	for i := range 3 {
		open = append(open, f.place(pipelined, fmt.Sprint(i)))
	}
	f.nothing(plain)
	settle(open[2], true)
	settle(open[0], true)
	held.Ack()
	f.waitConfirmed(1)
	f.ackN(plain, 2)
	f.waitConfirmed(2)
	settle(open[1], true)
	f.waitConfirmed(3)
}
