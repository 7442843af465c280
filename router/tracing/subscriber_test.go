package tracing_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/subscriber"
)

// TestWatermillSuite runs Watermill's own suite through both wrappers.
func TestWatermillSuite(t *testing.T) {
	for name, provider := range map[string]trace.TracerProvider{"recording": sdktrace.NewTracerProvider(), "off": noop.NewTracerProvider()} {
		t.Run(name, func(t *testing.T) {
			tr := testkit.Must(tracing.New(tracing.Config{TracerProvider: provider}))(t)
			pubSub := func(*testing.T) (message.Publisher, message.Subscriber) {
				channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10_000, Persistent: true}, nil)
				return tr.Publisher("gochannel", channel), tr.Subscriber("gochannel", channel)
			}
			// One message is traced like the other: the suite need not send thousands.
			tests.TestPubSub(t, tests.Features{ExactlyOnceDelivery: true, RequireSingleInstance: true, ForceShort: true}, pubSub, nil)
		})
	}
}

// source is a subscriber for one subscription: what the test sends into the
// channel is taken by whoever subscribed.
type source struct {
	messages chan *message.Message
	end      sync.Once
	err      error
}

func newSource() *source { return &source{messages: make(chan *message.Message)} }

func (s *source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	if s.err != nil {
		return nil, s.err
	}
	context.AfterFunc(ctx, func() { s.end.Do(func() { close(s.messages) }) })
	return s.messages, nil
}

func (s *source) Close() error {
	s.end.Do(func() { close(s.messages) })
	return s.err
}

const remote = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func remoteMessage(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte("x"))
	msg.Metadata["traceparent"] = remote
	return msg
}

func subscribe(t *testing.T, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	return testkit.Must(sub.Subscribe(t.Context(), topic))(t)
}

func TestConsumerSpan(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := newSource()
	sub := w.Subscriber("test", from)
	messages := subscribe(t, sub, "fields")

	from.messages <- remoteMessage("acked")
	msg := <-messages
	inside := trace.SpanContextFromContext(msg.Context())
	msg.Ack()
	from.messages <- remoteMessage("nacked")
	(<-messages).Nack()
	from.messages <- message.NewMessage("open", nil)
	<-messages
	w.close(sub)

	spans := w.allNamed("process fields")
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, want := range []struct {
		id, settled string
		status      codes.Code
		trace       string
	}{
		{"acked", "ack", codes.Unset, remote[3:35]},
		{"nacked", "nack", codes.Error, remote[3:35]},
		{"open", "open", codes.Error, ""},
	} {
		w.wantAttribute(spans[i], "messaging.message.id", want.id)
		w.wantAttribute(spans[i], tracing.KeySettled, want.settled)
		w.wantStatus(spans[i], want.status)
		if got := spans[i].SpanContext().TraceID().String(); want.trace != "" && got != want.trace || want.trace == "" && spans[i].Parent().IsValid() {
			t.Errorf("%s is in trace %s", want.id, got)
		}
	}
	if !inside.Equal(spans[0].SpanContext()) {
		t.Error("the message's context does not carry the span")
	}
}

// TestStartupSpanIsNoParent checks that a span around the program does not become
// the parent of every message.
func TestStartupSpanIsNoParent(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := newSource()
	sub := w.Subscriber("test", from)
	messages := subscribe(t, sub, "fields")
	ctx, span := w.provider.Tracer("test").Start(t.Context(), "startup")
	msg := message.NewMessage("1", nil)
	msg.SetContext(ctx)
	from.messages <- msg
	(<-messages).Ack()
	span.End()
	w.close(sub)
	if got := w.named("process fields"); got.Parent().IsValid() || got.SpanContext().TraceID() == span.SpanContext().TraceID() {
		t.Error("the span of the message is a child of the span around the program")
	}
}

func TestNewTraces(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := newSource()
	sub := w.Subscriber("test", from, tracing.NewTraces())
	messages := subscribe(t, sub, "fields")
	from.messages <- remoteMessage("1")
	(<-messages).Ack()
	from.messages <- message.NewMessage("2", nil)
	(<-messages).Ack()
	w.close(sub)
	spans := w.allNamed("process fields")
	for i, links := range []int{1, 0} {
		if spans[i].Parent().IsValid() || len(spans[i].Links()) != links {
			t.Errorf("span %d has the parent %v and the links %v", i, spans[i].Parent(), spans[i].Links())
		}
	}
	if got := spans[0].Links()[0].SpanContext.TraceID().String(); got != remote[3:35] {
		t.Errorf("linked to %s", got)
	}
}

// TestUntakenMessageIsNacked checks that the wrapper keeps no message to itself
// when the subscription ends.
func TestUntakenMessageIsNacked(t *testing.T) {
	for _, how := range []string{"context", "close"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, tracing.Config{})
			from := newSource()
			sub := w.Subscriber("test", from)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			messages := testkit.Must(sub.Subscribe(ctx, "fields"))(t)
			msg := message.NewMessage("1", nil)
			from.messages <- msg
			if how == "context" {
				cancel()
			} else if err := sub.Close(); err != nil {
				t.Fatal(err)
			}
			for range messages { // taken after all, or closed
				msg.Nack()
			}
			<-msg.Nacked()
			if how == "context" {
				w.close(sub)
			}
		})
	}
}

func TestClose(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := newSource()
	from.err = errors.New("closing hurts")
	sub := w.Subscriber("test", from)
	if _, err := sub.Subscribe(t.Context(), "fields"); !errors.Is(err, from.err) {
		t.Errorf("Subscribe: %v", err)
	}
	for range 2 {
		testkit.ErrorIs(t, sub.Close(), from.err)
	}
	if _, err := sub.Subscribe(t.Context(), "fields"); !errors.Is(err, tracing.ErrClosed) {
		t.Errorf("Subscribe after Close: %v", err)
	}
}

func TestUnwrap(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	sub := w.Subscriber(tracing.SystemGateway, w.subscriber())
	if unwrapped, ok := sub.(interface{ Unwrap() message.Subscriber }); !ok {
		t.Error("Unwrap is missing")
	} else if _, ok := unwrapped.Unwrap().(*subscriber.Subscriber); !ok {
		t.Errorf("Unwrap returns a %T", unwrapped.Unwrap())
	}
	w.close(sub)
}

// TestNothing checks that a nil *Tracing changes nothing.
func TestNothing(t *testing.T) {
	var off *tracing.Tracing
	from, broker := newSource(), gochannel.NewGoChannel(gochannel.Config{}, nil)
	if off.Subscriber("x", from) != message.Subscriber(from) || off.Publisher("x", broker) != message.Publisher(broker) ||
		off.Sink("x", nil) != nil || off.Chain(nil) != nil || off.Attempt("x") != nil || off.Observer(nil) != nil {
		t.Error("want what was given")
	}
	if hooks := off.Hooks(subscriber.Hooks{}); hooks.Confirmed != nil || hooks.ConfirmationRejected != nil {
		t.Error("want no hooks")
	}
	testkit.NoError(t, broker.Close())
}

func TestConfig(t *testing.T) {
	if _, err := tracing.New(tracing.Config{MaxUnconfirmed: -1}); !errors.Is(err, tracing.ErrConfig) {
		t.Errorf("got %v", err)
	}
	testkit.Must(tracing.New(tracing.Config{}))(t)
}
