package subscriber_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber"
)

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered} {
		t.Run(name, func(t *testing.T) {
			testOutcomes(t, func(t *testing.T) outcomes {
				f := newFixture(t, gatewaytest.Config{})
				cfg := f.config()
				cfg.Order = order
				return outcomes{f, f.subscribe(f.subscriber(cfg), subscriber.AllData)}
			})
		})
	}
}

// outcomes is a subscription with what becomes of its messages for each outcome of a delivery.
type outcomes struct {
	*fixture
	messages <-chan *message.Message
}

func testOutcomes(t *testing.T, subscribe func(t *testing.T) outcomes) {
	t.Run("acked", func(t *testing.T) {
		s := subscribe(t)
		s.send(typeJSON, []byte("a"))
		nextOutcome(t, s, "a").Ack()
		s.waitConfirmed(1)
		s.server.CutStreams()
		s.nothing(s.messages)
	})
	t.Run("nacked", func(t *testing.T) {
		s := subscribe(t)
		s.send(typeJSON, []byte("a"))
		for range 3 {
			nextOutcome(t, s, "a").Nack()
		}
		nextOutcome(t, s, "a").Ack()
		s.waitConfirmed(1)
	})
	t.Run("put off", func(t *testing.T) { testPutOff(t, subscribe(t)) })
	for _, outcome := range []msgctx.Outcome{msgctx.SetAside, msgctx.Left} {
		t.Run(outcome.String(), func(t *testing.T) {
			s := subscribe(t)
			s.send(typeJSON, []byte("bad"))
			bad := nextOutcome(t, s, "bad")
			msgctx.NackOf(bad.Context()).Want(outcome)
			bad.Nack()
			s.send(typeJSON, []byte("good"))
			nextOutcome(t, s, "good").Ack()
			s.waitConfirmed(1)
			s.nothing(s.messages)
			// With its next delivery it starts afresh.
			s.server.CutStreams()
			nextOutcome(t, s, "bad").Nack()
			nextOutcome(t, s, "bad").Ack()
			s.waitConfirmed(2)
		})
	}
	t.Run("an ack counts whatever a nack would stand for", func(t *testing.T) {
		s := subscribe(t)
		s.send(typeJSON, []byte("a"))
		msg := nextOutcome(t, s, "a")
		msgctx.NackOf(msg.Context()).Want(msgctx.SetAside)
		msg.Ack()
		s.waitConfirmed(1)
	})
	t.Run("a nack never stands for an ack", func(t *testing.T) {
		s := subscribe(t)
		s.send(typeJSON, []byte("a"))
		msg := nextOutcome(t, s, "a")
		msgctx.NackOf(msg.Context()).Want(msgctx.Acked)
		msg.Nack()
		nextOutcome(t, s, "a").Ack()
		s.waitConfirmed(1)
	})
}

func testPutOff(t *testing.T, s outcomes) {
	s.send(typeJSON, []byte("a"))
	for range 3 {
		msg := nextOutcome(t, s, "a")
		msgctx.NackOf(msg.Context()).After(100 * time.Millisecond)
		began := time.Now()
		msg.Nack()
		msg = nextOutcome(t, s, "a")
		if waited := time.Since(began); waited < 100*time.Millisecond {
			t.Errorf("it came again after %v", waited)
		}
		msg.Nack()
	}
	nextOutcome(t, s, "a").Ack()
	s.waitConfirmed(1)
}

// nextOutcome waits for a message, checks its payload, and that its nack has its usual meaning.
func nextOutcome(t *testing.T, s outcomes, payload string) *message.Message {
	t.Helper()
	msg := s.next(s.messages)
	if string(msg.Payload) != payload {
		t.Fatalf("message %q, want %q", msg.Payload, payload)
	}
	switch nack := msgctx.NackOf(msg.Context()); {
	case nack == nil:
		t.Fatal("the context has no Nack")
	case nack.Outcome() != msgctx.Nacked:
		t.Fatalf("a nack of the new message means %v", nack.Outcome())
	}
	return msg
}
