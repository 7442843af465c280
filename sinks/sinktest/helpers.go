package sinktest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// start returns a backend and a sink on it that is closed when the test ends.
func start(t *testing.T, h Suite) (Backend, sinks.Sink) {
	t.Helper()
	b := h.New(t, Settings{})
	return b, newSink(t, b)
}

func newSink(t *testing.T, b Backend) sinks.Sink {
	t.Helper()
	sink := b.NewSink(t)
	t.Cleanup(func() { closeSink(t, sink) })
	return sink
}

func closeSink(t *testing.T, sink sinks.Sink) {
	t.Helper()
	if err := sink.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

func publish(t *testing.T, sink sinks.Sink, topic string, messages ...*message.Message) {
	t.Helper()
	testkit.NoError(t, sink.Publish(topic, messages...))
}

// wantKind fails the test unless err is a *sinks.Error of this kind alone.
func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	var typed *sinks.Error
	if !errors.As(err, &typed) {
		t.Fatalf("%s: got %v (%T), want a *sinks.Error of kind %q", what, err, err, kind)
	}
	for _, k := range []error{sinks.ErrTooLarge, sinks.ErrRejected, sinks.ErrUnavailable, sinks.ErrClosed} {
		if errors.Is(err, k) != errors.Is(kind, k) {
			t.Fatalf("%s: got %v, want kind %q and no other", what, err, kind)
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s: %v matches a context error", what, err)
	}
}

func payloads(messages []*message.Message) []string {
	all := make([]string, len(messages))
	for i, msg := range messages {
		all[i] = string(msg.Payload)
	}
	return all
}

func wantPayloads(t *testing.T, b Backend, topic string, want ...string) {
	t.Helper()
	if got := payloads(b.Read(t, topic)); !slices.Equal(got, want) {
		t.Fatalf("topic %q holds %d messages %.200q, want %d %.200q", topic, len(got), got, len(want), want)
	}
}

// wantMessages compares everything in the topic with what was published.
func wantMessages(t *testing.T, h Suite, b Backend, topic string, want ...*message.Message) {
	t.Helper()
	stored := b.Read(t, topic)
	if len(stored) != len(want) {
		t.Fatalf("topic %q holds %d messages, want %d", topic, len(stored), len(want))
	}
	for i := range want {
		wantEqual(t, h, stored[i], want[i])
	}
}

// wantEqual compares one stored message with the published one.
func wantEqual(t *testing.T, h Suite, got, want *message.Message) {
	t.Helper()
	if !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("payload: got %d bytes, want %d, or other ones", len(got.Payload), len(want.Payload))
	}
	if h.Features.UUID && got.UUID != want.UUID {
		t.Errorf("UUID: got %q, want %q", got.UUID, want.UUID)
	}
	if !h.Features.Metadata {
		return
	}
	for name, value := range want.Metadata {
		if have, ok := got.Metadata[name]; !ok || have != value {
			t.Errorf("metadata %.100q: got %.100q (present: %v), want %.100q", name, have, ok, value)
		}
	}
	for name, value := range got.Metadata {
		if _, ok := want.Metadata[name]; !ok {
			t.Errorf("metadata %.100q: got %.100q, want none", name, value)
		}
	}
}

// wantAcked fails the test unless everything that was acked is stored.
func wantAcked(t *testing.T, b Backend, topic string, acked *sync.Map) {
	t.Helper()
	stored := payloads(b.Read(t, topic))
	acked.Range(func(payload, _ any) bool {
		if !slices.Contains(stored, payload.(string)) {
			t.Errorf("%v was acked and is not stored", payload)
		}
		return true
	})
}

// recovered publishes until it succeeds.
func recovered(t *testing.T, sink sinks.Sink, topic, payload string) {
	t.Helper()
	testkit.EventuallyNil(t, func() error {
		err := sink.Publish(topic, newMessage(payload))
		if err != nil {
			wantKind(t, "Publish after the outage", err, sinks.ErrUnavailable)
		}
		return err
	})
}

// noticed is a context that tells when it is looked at for the first time, which
// is when Publish has begun.
type noticed struct {
	context.Context
	once sync.Once
	used chan struct{}
}

func notice(ctx context.Context) *noticed { return &noticed{Context: ctx, used: make(chan struct{})} }

func (c *noticed) Done() <-chan struct{} {
	c.once.Do(func() { close(c.used) })
	return c.Context.Done()
}

func (c *noticed) Err() error {
	c.once.Do(func() { close(c.used) })
	return c.Context.Err()
}
