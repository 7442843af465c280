package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

var _ message.PublisherDecorator = sinks.DetachContexts

// Watermill's Router publishes after Watermill's Timeout has ended the context of the
// message.
func TestDetachContextsInWatermillsRouter(t *testing.T) {
	s := newStore(0)
	sink := sinks.FromPublisher("store", storePublisher{s, make(chan struct{})}, sinks.PublisherConfig{})
	in := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
	r.AddMiddleware(middleware.Timeout(time.Hour))
	r.AddPublisherDecorators(sinks.DetachContexts)
	var calls atomic.Int64
	r.AddHandler("h", "in", in, "out", sink, func(msg *message.Message) ([]*message.Message, error) {
		calls.Add(1)
		return []*message.Message{msg}, nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(t.Context()) }()
	<-r.Running()
	sent := message.NewMessage("1", []byte("x"))
	sent.Metadata.Set("key", "value")
	testkit.NoError(t, in.Publish("in", sent))
	var stored []*message.Message
	testkit.Eventually(t, "the message is stored", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		stored = s.topics["out"]
		return len(stored) > 0
	})
	if !stored[0].Equals(sent) {
		t.Errorf("stored %v, want %v", stored[0], sent)
	}
	testkit.NoError(t, errors.Join(r.Close(), <-result))
	if got := calls.Load(); got != 1 {
		t.Errorf("%d calls of the handler, want 1", got)
	}
}

func TestDetachContextsKeepsValues(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	cancel()
	msg := message.NewMessageWithContext(ctx, "1", nil)
	pub := testkit.Must(sinks.DetachContexts(publishFunc(func(_ string, got ...*message.Message) error {
		if value := got[0].Context().Value(key{}); value != "value" {
			t.Errorf("value = %v, want value", value)
		}
		return got[0].Context().Err()
	})))(t)
	testkit.NoError(t, pub.Publish("out", msg))
	if msg.Context().Err() == nil {
		t.Error("the message of the caller was changed")
	}
	if _, err := sinks.DetachContexts(nil); err == nil {
		t.Error("no error without a publisher")
	}
}

type publishFunc func(topic string, messages ...*message.Message) error

func (f publishFunc) Publish(topic string, messages ...*message.Message) error {
	return f(topic, messages...)
}
func (publishFunc) Close() error { return nil }

// A sink as the publisher of Watermill's Router.
func ExampleDetachContexts() {
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	stored, err := broker.Subscribe(context.Background(), "out")
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(middleware.Timeout(time.Minute))
	r.AddPublisherDecorators(sinks.DetachContexts)
	in := gochannel.NewGoChannel(gochannel.Config{}, nil)
	r.AddHandler("copy", "in", in, "out", sinks.FromPublisher("broker", broker, sinks.PublisherConfig{}), message.PassthroughHandler)
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	if err := in.Publish("in", message.NewMessage("1", []byte("10 t of lime"))); err != nil {
		log.Fatal(err)
	}
	msg := <-stored
	fmt.Println(string(msg.Payload))
	msg.Ack()
	fmt.Println(r.Close(), <-result)
	// Output:
	// 10 t of lime
	// <nil> <nil>
}

// A nil message is refused by its place, and nothing is sent: otherwise the handler's mistake would be a panic in the Router.
func TestDetachContextsRefusesANilMessage(t *testing.T) {
	t.Parallel()
	pub := &testkit.Publisher{}
	detached := testkit.Must(sinks.DetachContexts(pub))(t)
	err := detached.Publish("out", message.NewMessage("1", nil), nil)
	if err == nil || !strings.Contains(err.Error(), "2 of 2") || len(pub.Messages("out")) > 0 {
		t.Errorf("%v, %d messages published", err, len(pub.Messages("out")))
	}
}
