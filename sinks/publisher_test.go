package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errStoreDown     = errors.New("store: down")
	errStoreTooLarge = errors.New("store: too large")
)

// store is a broker in memory. Its publishers are plain Watermill publishers:
// they ignore contexts and know no classes of errors.
type store struct {
	maxSize int

	mu     sync.Mutex
	topics map[string][]*message.Message
	down   bool
	flow   chan struct{} // closed while the store answers
}

func newStore(maxSize int) *store {
	s := &store{maxSize: maxSize, topics: map[string][]*message.Message{}, flow: make(chan struct{})}
	close(s.flow)
	return s
}

type storePublisher struct {
	*store
	closed chan struct{}
}

func (p storePublisher) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	flow := p.flow
	p.mu.Unlock()
	select {
	case <-flow:
	case <-p.closed:
		return errors.New("store: publisher closed")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return errStoreDown
	}
	for _, msg := range messages {
		if p.maxSize > 0 && len(msg.Payload) > p.maxSize {
			return errStoreTooLarge
		}
	}
	for _, msg := range messages {
		stored := msg.Copy()
		stored.Payload = slices.Clone(msg.Payload)
		p.topics[topic] = append(p.topics[topic], stored)
		msg.Ack() // nothing forbids a publisher to do this
	}
	return nil
}

func (p storePublisher) Close() error {
	close(p.closed) // panics when called twice
	return nil
}

type storeBackend struct {
	*store
}

func (b storeBackend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	sink := sinks.FromPublisher("store", storePublisher{b.store, make(chan struct{})},
		sinks.WithDescription(sinks.Description{
			MaxMessageSize: int64(b.maxSize),
			Durability:     sinks.DurabilityMemory,
			DurabilityNote: "for tests",
		}),
		sinks.WithHealth(func(context.Context) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.down {
				return errStoreDown
			}
			return nil
		}),
		sinks.WithCloseTimeout(100*time.Millisecond))
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func (b storeBackend) Read(_ *testing.T, topic string) []*message.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.topics[topic])
}

func (b storeBackend) setDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

func (b storeBackend) Break(*testing.T)  { b.setDown(true) }
func (b storeBackend) Repair(*testing.T) { b.setDown(false) }

func (b storeBackend) Hang(*testing.T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flow = make(chan struct{})
}

func (b storeBackend) Resume(*testing.T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.flow)
}

// TestFromPublisherConformance runs the suite for a sink made of a publisher in
// memory. A publisher has no timeout of its own for a broker that hangs, so
// that one feature is tested apart.
func TestFromPublisherConformance(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		New: func(_ *testing.T, settings sinktest.Settings) sinktest.Backend {
			return storeBackend{newStore(int(settings.MaxMessageSize))}
		},
		Features: sinktest.Features{
			UUID:                 true,
			Metadata:             true,
			MaxMessageSize:       true,
			Outage:               true,
			UnescapeTopicSegment: sinks.DefaultSegments.Unescape,
		},
	})
}

func TestFromPublisherWhileHanging(t *testing.T) {
	b := storeBackend{newStore(0)}
	sink := b.NewSink(t)
	b.Hang(t)

	// The call goes on without the caller, with its own copies.
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("1", []byte("abandoned"))
	msg.SetContext(ctx)
	cancelled := message.NewMessage("2", []byte("companion"))
	result := make(chan error, 1)
	go func() { result <- sink.Publish("topic", cancelled, msg) }()
	cancel()
	if err := <-result; err != context.Canceled {
		t.Errorf("Publish: %v", err)
	}
	copy(msg.Payload, "overwrite")

	// Close waits its time, then closes the publisher, which ends the calls.
	blocked := make(chan error, 1)
	go func() { blocked <- sink.Publish("topic", message.NewMessage("3", nil)) }()
	if err := sink.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-blocked; !errors.Is(err, sinks.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
	b.Resume(t)
}

func TestFromPublisherClassifies(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		name     string
		err      error
		classify func(error) error
		want     error
	}{
		{"unknown", cause, nil, sinks.ErrUnavailable},
		{"unknown to the classifier", cause, func(error) error { return nil }, sinks.ErrUnavailable},
		{"classified", cause, func(error) error { return sinks.ErrRejected }, sinks.ErrRejected},
		{"says so itself", fmt.Errorf("wrapped: %w", sinks.ErrTooLarge), func(error) error { return sinks.ErrRejected }, sinks.ErrTooLarge},
		{"from a sink within", sinks.NewError("inner", "topic", sinks.ErrRejected, cause), nil, sinks.ErrRejected},
		{"inner timeout", fmt.Errorf("%w: %w", cause, context.DeadlineExceeded), nil, sinks.ErrUnavailable},
		{"inner cancellation", context.Canceled, nil, sinks.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := sinks.FromPublisher("name", failing{c.err}, sinks.WithClassifier(c.classify))
			defer sink.Close()
			err := sink.Publish("topic", message.NewMessage("1", nil))
			var typed *sinks.Error
			if !errors.As(err, &typed) || !errors.Is(typed.Kind, c.want) || !errors.Is(err, c.want) {
				t.Fatalf("got %v, want kind %v", err, c.want)
			}
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v matches a context error that is not the message's", err)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Publish(string, ...*message.Message) error { return f.err }
func (f failing) Close() error                              { return nil }

func TestFromPublisherCloseError(t *testing.T) {
	cause := errors.New("cause")
	sink := sinks.FromPublisher("name", closing{cause})
	for range 2 {
		if err := sink.Close(); !errors.Is(err, cause) {
			t.Errorf("Close: %v", err)
		}
	}
}

type closing struct{ err error }

func (c closing) Publish(string, ...*message.Message) error { return nil }
func (c closing) Close() error                              { return c.err }

func ExampleFromPublisher() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})

	sink := sinks.FromPublisher("memory", pubSub)
	defer func() { _ = sink.Close() }()

	topic := "tenant." + sink.TopicSegment("iso:11783:-10:taskdata:zip")
	if err := sink.Publish(topic, message.NewMessage("1", []byte("task data"))); err != nil {
		fmt.Println(err)
		return
	}
	messages, err := pubSub.Subscribe(context.Background(), topic)
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := <-messages
	msg.Ack()
	fmt.Println(topic, string(msg.Payload))
	// Output: tenant.iso:11783:-10:taskdata:zip task data
}
