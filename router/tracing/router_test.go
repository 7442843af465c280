package tracing_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// route is one from the gateway into a broker.
func (w *world) route(broker *testkit.Publisher, transform message.HandlerFunc) router.Route {
	w.Helper()
	return router.Route{
		Name: "farm", From: w.Subscriber(tracing.SystemGateway, w.subscriber()), Topic: typeIn,
		Transform: transform, To: w.Sink("", newSink(w, "broker", broker, sinks.PublisherConfig{})), ToTopic: "{type}",
	}
}

func pass(msg *message.Message) ([]*message.Message, error) {
	return []*message.Message{msg}, nil
}

func TestRetriesAndPoison(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	const payload = "seven tons of barley from the north field"
	poison := &testkit.Publisher{}
	stop := w.start(router.Config{
		Poison: w.Sink("", newSink(w, "poison", poison, sinks.PublisherConfig{})), Retry: router.RetrySettings{MaxAttempts: 2},
	}, w.route(&testkit.Publisher{}, func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.New("no field for " + string(msg.Payload) + " at http://host/x?token=abcdef")
	}))
	w.send(typeIn, payload, "north.json")
	w.waitConfirmed(1)
	stop()
	w.wantTree(`process app:test:json
  attempt farm
  attempt farm
  publish poison
  confirm
`)
	w.wantOneTrace()
	root := w.named("process app:test:json")
	w.wantStatus(root, codes.Error)
	w.wantAttribute(root, tracing.KeyOutcome, "poisoned")
	w.wantAttribute(root, tracing.KeySettled, "ack")
	w.wantAttribute(root, "error.type", "handler")
	if got := eventNames(root); !slices.Equal(got, []string{"retry", "poisoned"}) {
		t.Errorf("events %q", got)
	}
	retry := eventAttributes(root.Events()[0])
	if retry["error.type"] != "handler" || retry[string(tracing.KeyAttempt)] != "1" || retry[string(tracing.KeyDelay)] == "" || !strings.Contains(retry["exception.message"], "no field for") {
		t.Errorf("the event of the retry is %v", retry)
	}
	for i, span := range w.allNamed("attempt farm") {
		w.wantStatus(span, codes.Error)
		w.wantAttribute(span, tracing.KeyAttempt, []string{"1", "2"}[i])
		w.wantAttribute(span, "error.type", "handler")
	}
	w.wantStatus(w.named("publish poison"), codes.Unset)
	if all := w.everything(); containsAny(all, "barley", "north", "abcdef") {
		t.Errorf("a span says too much:\n%s", all)
	}
	if poison.Messages(router.DefaultPoisonTopic)[0].Metadata["traceparent"] == "" {
		t.Error("the poisoned message does not know its trace")
	}
}

// TestReplayContinuesTheTrace checks that what is replayed from the poison queue
// belongs to the trace in which it was poisoned.
func TestReplayContinuesTheTrace(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	queue, broken := &poisonqueue.Queue{}, true
	r, stop := w.run(router.Config{Poison: w.Sink("", sinks.FromPublisher("poison", queue, sinks.PublisherConfig{}))}, w.route(&testkit.Publisher{}, func(msg *message.Message) ([]*message.Message, error) {
		if broken {
			return nil, router.Permanent(errors.New("not now"))
		}
		return pass(msg)
	}))
	w.send(typeIn, "x", "")
	w.waitConfirmed(1)

	broken = false
	report, err := r.Replay(t.Context(), queue, router.PoisonSelection{All: true})
	if err != nil {
		t.Fatalf("%+v: %v", report, err)
	}
	stop()
	w.wantTree(`process app:test:json
  attempt farm
  publish poison
    attempt farm
      publish broker
  confirm
`)
	w.wantOneTrace()
}

func TestDuplicateAndFiltered(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := newSource()
	route := w.route(&testkit.Publisher{}, pass)
	route.From = w.Subscriber("test", from)
	route.Filter = func(msg *message.Message) (bool, error) { return string(msg.Payload) != "filtered", nil }
	stop := w.start(router.Config{Poison: &testkit.Publisher{}, Dedup: router.DedupSettings{KeyFunc: func(_ string, msg *message.Message) (router.Keys, error) {
		return router.Keys{Delivery: router.KeyOf(string(msg.Payload))}, nil
	}}}, route)
	for _, payload := range []string{"one", "one", "filtered"} {
		msg := message.NewMessage("1", []byte(payload))
		msg.Metadata = message.Metadata{gateway.KeyMessageType: typeIn, gateway.KeyContextID: "7f0c7a0e-0f0e-4c5c-8a55-6f3f7f6d1a01"}
		from.messages <- msg
		<-msg.Acked()
	}
	stop()
	spans := w.allNamed("process app:test:json")
	for i, want := range []struct {
		outcome string
		events  []string
	}{{"delivered", nil}, {"duplicate", []string{"duplicate"}}, {"filtered", nil}} {
		w.wantAttribute(spans[i], tracing.KeyOutcome, want.outcome)
		w.wantAttribute(spans[i], "messaging.message.conversation_id", "7f0c7a0e-0f0e-4c5c-8a55-6f3f7f6d1a01")
		w.wantStatus(spans[i], codes.Unset)
		if got := eventNames(spans[i]); !slices.Equal(got, want.events) {
			t.Errorf("%s: events %q", want.outcome, got)
		}
	}
}

// TestReturned checks that what is returned is an error, and comes in a trace of
// its own the next time.
func TestReturned(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	failures := 1
	stop := w.start(router.Config{Poison: &testkit.Publisher{}}, w.route(&testkit.Publisher{}, func(msg *message.Message) ([]*message.Message, error) {
		if failures > 0 {
			failures--
			return nil, router.WithClass(errors.New("stale"), router.ClassRedeliver)
		}
		return pass(msg)
	}))
	w.send(typeIn, "x", "")
	w.waitConfirmed(1)
	stop()
	spans := w.allNamed("process app:test:json")
	if len(spans) != 2 {
		t.Fatalf("%d deliveries", len(spans))
	}
	w.wantStatus(spans[0], codes.Error)
	w.wantAttribute(spans[0], tracing.KeySettled, "nack")
	w.wantAttribute(spans[0], tracing.KeyOutcome, "returned")
	w.wantAttribute(spans[0], "error.type", "redeliver")
	w.wantStatus(spans[1], codes.Unset)
	confirm := w.named("confirm")
	if confirm.SpanContext().TraceID() != spans[1].SpanContext().TraceID() {
		t.Error("the confirmation belongs to the delivery that was acked")
	}
}

// TestPanicEndsTheSpan checks that nothing stays open.
func TestPanicEndsTheSpan(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	h := w.Attempt("farm")(func(*message.Message) ([]*message.Message, error) { panic("barley") })
	msg := message.NewMessage("1", nil)
	before := msg.Context()
	func() {
		defer func() { _ = recover() }()
		_, _ = h(msg)
	}()
	if len(w.spans()) != 1 || msg.Context() != before {
		t.Error("the span has not ended, or the message has another context")
	}
}

// TestOwnChain checks that attempts are seen in a chain that someone assembled.
func TestOwnChain(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	var routes []string
	stop := w.start(router.Config{Poison: &testkit.Publisher{}, Chain: func(route string, c router.Chain) []message.HandlerMiddleware {
		routes = append(routes, route)
		return []message.HandlerMiddleware{c.Retry, c.Recoverer}
	}}, w.route(&testkit.Publisher{}, pass))
	w.send(typeIn, "x", "")
	w.waitConfirmed(1)
	stop()
	w.named("attempt farm")
	if !slices.Equal(routes, []string{"farm"}) {
		t.Errorf("asked for the chains of %q", routes)
	}
}

// TestSeveralRoutes checks that each route has a trace of its own, with a
// confirmation, and that a file is confirmed once in its trace.
func TestSeveralRoutes(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	from := w.Subscriber(tracing.SystemGateway, w.subscriber(func(c *subscriber.Config) { c.Files = []string{typeFile} }))
	sink := w.Sink("", newSink(w, "broker", &testkit.Publisher{}, sinks.PublisherConfig{}))
	stop := w.start(router.Config{Poison: sink},
		router.Route{Name: "one", From: from, Topic: subscriber.AllData, To: sink, ToTopic: "{type}"},
		router.Route{Name: "two", From: from, Topic: subscriber.AllData, To: sink, ToTopic: "{type}"},
	)
	ids := w.send(typeFile, strings.Repeat("a field ", 400_000), "field.zip") // several chunks
	if len(ids) < 2 {
		t.Fatalf("%d chunks", len(ids))
	}
	w.waitConfirmed(len(ids))
	stop()
	confirms := w.allNamed("confirm")
	roots := w.allNamed("process ALL_DATA")
	if len(confirms) != 2 || len(roots) != 2 || confirms[0].SpanContext().TraceID() == confirms[1].SpanContext().TraceID() {
		t.Fatalf("want two traces with a confirmation each\n%s", w.tree())
	}
	for _, c := range confirms {
		if c.Parent().SpanID() != roots[0].SpanContext().SpanID() && c.Parent().SpanID() != roots[1].SpanContext().SpanID() {
			t.Error("a confirmation is no child of its message")
		}
	}
}

func TestRejectedConfirmation(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	var rejected int
	sub := w.subscriber(func(c *subscriber.Config) {
		c.Hooks = w.Hooks(subscriber.Hooks{
			Confirmed:            func(string, []gateway.MessageConfirmation) { t.Error("confirmed") },
			ConfirmationRejected: func(string, gateway.MessageConfirmation, error) { rejected++ },
		})
	})
	w.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 400})
	from := w.Subscriber(tracing.SystemGateway, sub)
	messages := subscribe(t, from, subscriber.AllData)
	w.send(typeIn, "x", "")
	(<-messages).Ack()
	w.close(from)
	confirm := w.named("confirm")
	w.wantStatus(confirm, codes.Error)
	w.wantAttribute(confirm, "error.type", "permanent")
	if rejected != 1 {
		t.Errorf("the hook was called %d times", rejected)
	}
}

// TestUnconfirmedIsBounded checks that messages that are never confirmed do not
// fill the memory.
func TestUnconfirmedIsBounded(t *testing.T) {
	w := newWorld(t, tracing.Config{MaxUnconfirmed: 1})
	from := w.Subscriber(tracing.SystemGateway, w.subscriber(func(c *subscriber.Config) { c.Order = subscriber.Unordered }))
	messages := subscribe(t, from, subscriber.AllData)
	w.send(typeIn, "1", "")
	w.send(typeIn, "2", "")
	first, second := <-messages, <-messages
	first.Ack()
	second.Ack()
	w.waitConfirmed(2)
	w.close(from)
	w.wantAttribute(w.named("confirm"), "messaging.message.id", second.Metadata[gateway.KeyMessageID])
}
