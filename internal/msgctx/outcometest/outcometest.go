// Package outcometest is the conformance suite for subscribers that set msgctx.Value's
// Nack: what they do with a message for each outcome of its delivery.
package outcometest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// Subscription is one subscription of the subscriber under test, and its source.
type Subscription struct {
	// Send has the source send a message with this payload.
	Send func(payload string)
	// Next waits for the next message, Nothing makes sure for a moment that none comes.
	Next    func() *message.Message
	Nothing func()
	// Confirmed waits until n messages are confirmed to the source, in all.
	Confirmed func(n int)
	// Reconnect has the source redeliver what is unconfirmed.
	Reconnect func()
}

// Run tests a subscriber. subscribe is called once per test.
func Run(t *testing.T, subscribe func(t *testing.T) Subscription) {
	t.Run("acked", func(t *testing.T) {
		s := subscribe(t)
		s.Send("a")
		next(t, s, "a").Ack()
		s.Confirmed(1)
		s.Reconnect()
		s.Nothing()
	})
	t.Run("nacked", func(t *testing.T) {
		s := subscribe(t)
		s.Send("a")
		for range 3 {
			next(t, s, "a").Nack()
		}
		next(t, s, "a").Ack()
		s.Confirmed(1)
	})
	t.Run("put off", func(t *testing.T) { testPutOff(t, subscribe(t)) })
	for _, outcome := range []msgctx.Outcome{msgctx.SetAside, msgctx.Left} {
		t.Run(outcome.String(), func(t *testing.T) {
			s := subscribe(t)
			s.Send("bad")
			bad := next(t, s, "bad")
			want(bad, outcome)
			bad.Nack()
			s.Send("good")
			next(t, s, "good").Ack()
			s.Confirmed(1)
			s.Nothing()
			// With its next delivery it starts afresh.
			s.Reconnect()
			next(t, s, "bad").Nack()
			next(t, s, "bad").Ack()
			s.Confirmed(2)
		})
	}
	t.Run("an ack counts whatever a nack would stand for", func(t *testing.T) {
		s := subscribe(t)
		s.Send("a")
		msg := next(t, s, "a")
		want(msg, msgctx.SetAside)
		msg.Ack()
		s.Confirmed(1)
	})
	t.Run("a nack never stands for an ack", func(t *testing.T) {
		s := subscribe(t)
		s.Send("a")
		msg := next(t, s, "a")
		want(msg, msgctx.Acked)
		msg.Nack()
		next(t, s, "a").Ack()
		s.Confirmed(1)
	})
}

func testPutOff(t *testing.T, s Subscription) {
	s.Send("a")
	for range 3 {
		msg := next(t, s, "a")
		msgctx.NackOf(msg.Context()).After(100 * time.Millisecond)
		began := time.Now()
		msg.Nack()
		msg = next(t, s, "a")
		if waited := time.Since(began); waited < 100*time.Millisecond {
			t.Errorf("it came again after %v", waited)
		}
		msg.Nack()
	}
	next(t, s, "a").Ack()
	s.Confirmed(1)
}

// next waits for a message, checks its payload, and that its nack has its usual meaning.
func next(t *testing.T, s Subscription, payload string) *message.Message {
	t.Helper()
	msg := s.Next()
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

func want(msg *message.Message, outcome msgctx.Outcome) { msgctx.NackOf(msg.Context()).Want(outcome) }
