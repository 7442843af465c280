package subscriber_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber"
)

// A nack stands for what its handler wants, but never for an ack; an ack counts whatever a nack would stand for.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	messages := f.subscribe(f.subscriber(f.config()), subscriber.AllData)
	next := func(payload string, want msgctx.Outcome) *message.Message {
		t.Helper()
		msg := f.next(messages)
		nack := msgctx.NackOf(msg.Context())
		if got := nack.Outcome(); string(msg.Payload) != payload || got != msgctx.Nacked {
			t.Fatalf("message %q, of which a nack means %v; want %q, %v", msg.Payload, got, payload, msgctx.Nacked)
		}
		nack.Want(want)
		return msg
	}
	f.send(typeJSON, []byte("bad"))
	next("bad", msgctx.Acked).Nack()
	next("bad", msgctx.Left).Nack()
	f.send(typeJSON, []byte("good"))
	next("good", msgctx.SetAside).Ack()
	f.waitConfirmed(1)
	f.nothing(messages)
	// With its next delivery it starts afresh.
	f.server.CutStreams()
	next("bad", msgctx.Nacked).Nack()
	next("bad", msgctx.Nacked).Ack()
	f.waitConfirmed(2)
}
