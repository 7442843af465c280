package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
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
		sinks.PublisherConfig{
			Description: sinks.Description{
				MaxMessageSize: int64(b.maxSize),
				Durability:     sinks.DurabilityMemory,
				DurabilityNote: "for tests",
			},
			Health: func(context.Context) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.down {
					return errStoreDown
				}
				return nil
			},
			CloseTimeout: 100 * time.Millisecond,
		})
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
	sinktest.Run(t, sinktest.Suite{
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

	// The call continues without the caller, with its own copies.
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
	testkit.NoError(t, sink.Close())
	testkit.ErrorIs(t, <-blocked, sinks.ErrClosed)
	b.Resume(t)
}

// TestFromPublisherThatLooksAtTheContext: a publisher may be as fast as the sink to
// see that a message's context has ended.
func TestFromPublisherThatLooksAtTheContext(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		sink := sinks.FromPublisher("name", looking{cancel}, sinks.PublisherConfig{})
		msg := message.NewMessage("1", nil)
		msg.SetContext(ctx)
		if err := sink.Publish("topic", msg); err != context.Canceled {
			t.Fatalf("Publish: %v", err)
		}
		_ = sink.Close()
	}
}

// looking ends the context and sees it at once.
type looking struct{ end context.CancelFunc }

func (l looking) Publish(_ string, messages ...*message.Message) error {
	l.end()
	return fmt.Errorf("gave up: %w", messages[0].Context().Err())
}
func (looking) Close() error { return nil }

// TestFromPublisherHangingForOneMessage: a message whose publish hangs comes again
// and again. It costs a few goroutines and copies of its payload, and messages of
// other topics nothing.
func TestFromPublisherHangingForOneMessage(t *testing.T) {
	hanging := &hangingTopic{topic: "bad", release: make(chan struct{})}
	sink := sinks.FromPublisher("name", hanging, sinks.PublisherConfig{})
	publish := func(topic string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		msg := message.NewMessage("same", make([]byte, 100))
		msg.SetContext(ctx)
		return sink.Publish(topic, msg)
	}
	for range 100 {
		if err := publish("bad"); err != context.DeadlineExceeded {
			t.Fatalf("Publish: %v", err)
		}
	}
	if n := hanging.calls.Load(); n > 16 {
		t.Errorf("%d calls of the publisher for one message", n)
	}
	if err := sink.Publish("good", message.NewMessage("other", nil)); err != nil {
		t.Errorf("another topic: %v", err)
	}
	result := make(chan error, 1)
	go func() { result <- sink.Publish("bad", message.NewMessage("patient", nil)) }()
	close(hanging.release)
	if err := <-result; err != nil {
		t.Errorf("Publish after the publisher went on: %v", err)
	}
	testkit.NoError(t, sink.Close())
}

type hangingTopic struct {
	topic   string
	release chan struct{}
	calls   atomic.Int64
}

func (h *hangingTopic) Publish(topic string, _ ...*message.Message) error {
	if topic == h.topic {
		h.calls.Add(1)
		<-h.release
	}
	return nil
}
func (h *hangingTopic) Close() error { return nil }

// TestFromPublisherGivesCopies: a publisher may change what it gets.
func TestFromPublisherGivesCopies(t *testing.T) {
	sink := sinks.FromPublisher("name", changing{}, sinks.PublisherConfig{})
	if sink.Describe().ReadOnly != sink {
		t.Error("the sink does not say that it only reads")
	}
	msg := message.NewMessage("1", []byte("payload"))
	msg.Metadata.Set("key", "value")
	want := msg.Copy()
	want.Payload = slices.Clone(msg.Payload)
	testkit.NoError(t, sink.Publish("topic", msg, msg))
	p := testkit.Must(sink.PublishAsync("topic", msg))(t)
	testkit.Must(p.Result())(t)
	if !msg.Equals(want) {
		t.Errorf("got %v, want %v", msg, want)
	}
	testkit.NoError(t, sink.Close())
}

// changing changes whatever it gets.
type changing struct{}

func (changing) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		msg.UUID = ""
		clear(msg.Payload)
		msg.Metadata.Set("key", "changed")
		msg.Ack()
		<-msg.Acked()
	}
	return nil
}
func (changing) Close() error { return nil }

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
			sink := sinks.FromPublisher("name", failing{c.err}, sinks.PublisherConfig{Classify: c.classify})
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

// A panic of the publisher is one of whoever called Publish, where a Recoverer stands, and not the end of the process.
func TestFromPublisherThatPanics(t *testing.T) {
	sink := sinks.FromPublisher("name", closing{}, sinks.PublisherConfig{
		Store: func(string, *message.Message) (sinks.Receipt, error) { panic("not again") },
	})
	defer func() { testkit.NoError(t, sink.Close()) }()
	func() {
		defer func() {
			if value := recover(); value != "not again" {
				t.Errorf("recovered %v", value)
			}
		}()
		t.Error("returned", sink.Publish("topic", message.NewMessage("1", nil)))
	}()
	_, err := testkit.Must(sink.PublishAsync("topic", message.NewMessage("2", nil)))(t).Result()
	if !errors.Is(err, sinks.ErrUnavailable) || !strings.Contains(err.Error(), "not again") {
		t.Errorf("published: %v", err)
	}
}

// FailNow in a publisher ends its goroutine: the call ends with an error, and Close does not wait for it.
func TestFromPublisherThatEndsItsGoroutine(t *testing.T) {
	sink := sinks.FromPublisher("name", closing{}, sinks.PublisherConfig{
		Store: func(string, *message.Message) (sinks.Receipt, error) { runtime.Goexit(); return sinks.Receipt{}, nil },
	})
	testkit.ErrorIs(t, sink.Publish("topic", message.NewMessage("1", nil)), sinks.ErrUnavailable)
	_, err := testkit.Must(sink.PublishAsync("topic", message.NewMessage("2", nil)))(t).Result()
	testkit.ErrorIs(t, err, sinks.ErrUnavailable)
	testkit.NoError(t, sink.Close())
}

func TestFromPublisherCloseError(t *testing.T) {
	cause := errors.New("cause")
	sink := sinks.FromPublisher("name", closing{cause}, sinks.PublisherConfig{})
	for range 2 {
		testkit.ErrorIs(t, sink.Close(), cause)
	}
}

type closing struct{ err error }

func (c closing) Publish(string, ...*message.Message) error { return nil }
func (c closing) Close() error                              { return c.err }

func ExampleFromPublisher() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})

	sink := sinks.FromPublisher("memory", pubSub, sinks.PublisherConfig{})
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
