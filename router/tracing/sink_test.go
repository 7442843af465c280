package tracing_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// traced is a broker behind a sink that is traced.
type traced struct {
	sinktest.NoFaults
	broker   *testkit.Publisher
	provider trace.TracerProvider
	settings sinktest.Settings
}

func (b traced) NewSink(t *testing.T) sinks.Sink {
	tr := testkit.Must(tracing.New(tracing.Config{TracerProvider: b.provider}))(t)
	return tr.Sink("", newSink(t, "memory", b.broker, sinks.PublisherConfig{Description: sinks.Description{
		MaxMessageSize: b.settings.MaxMessageSize, Durability: sinks.DurabilityMemory, DurabilityNote: "a map",
	}}))
}

// Read returns what was stored, apart from the trace context: everything else has
// to be as it was published.
func (b traced) Read(_ *testing.T, topic string) []*message.Message {
	var all []*message.Message
	for _, msg := range b.broker.Messages(topic) {
		plain := msg.Copy()
		for _, name := range (propagation.TraceContext{}).Fields() {
			delete(plain.Metadata, name)
		}
		all = append(all, plain)
	}
	return all
}

// TestWrappedSinkKeepsTheContract runs the conformance suite, with spans that are
// recorded and with spans that are not.
func TestWrappedSinkKeepsTheContract(t *testing.T) {
	for name, provider := range map[string]trace.TracerProvider{
		"recording": sdktrace.NewTracerProvider(), "off": noop.NewTracerProvider(),
		"not sampled": sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, sinktest.Suite{
				New: func(_ *testing.T, settings sinktest.Settings) sinktest.Backend {
					return traced{broker: &testkit.Publisher{}, provider: provider, settings: settings}
				},
				Features: sinktest.Features{
					// The trace context counts as well, so the exact limit is the
					// business of the sink inside.
					UUID: true, Metadata: true, MaxMessageSize: name == "off",
					ReservedNames:        []string{"Nats-Msg-Id", "traceparents", "x-traceparent"},
					UnescapeTopicSegment: sinks.DefaultSegments.Unescape,
				},
			})
		})
	}
}

func TestSinkLeavesTheMessageAlone(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	broker := &testkit.Publisher{}
	inner := newSink(t, "broker", broker, sinks.PublisherConfig{})
	sink := w.Sink("", inner)
	if unwrapped, ok := sink.(interface{ Unwrap() sinks.Sink }); !ok || unwrapped.Unwrap() != inner {
		t.Error("Unwrap does not return the sink")
	}
	ctx, span := w.provider.Tracer("test").Start(t.Context(), "the caller's")
	stale := message.Metadata{"Traceparent": "00-stale", "tracestate": "a=b", "other": "value"}
	messages := []*message.Message{message.NewMessage("1", []byte("x")), message.NewMessage("2", []byte("yy"))}
	for _, msg := range messages {
		msg.Metadata = maps.Clone(stale)
		msg.SetContext(ctx)
	}
	testkit.NoError(t, sink.Publish("topic", messages...))
	span.End()
	for i, stored := range broker.Messages("topic") {
		if !maps.Equal(messages[i].Metadata, stale) || messages[i].Context() != ctx {
			t.Errorf("message %d was changed: %v", i, messages[i].Metadata)
		}
		published := w.allNamed("publish broker")[i]
		want := message.Metadata{"other": "value", "traceparent": "00-" + published.SpanContext().TraceID().String() + "-" + published.SpanContext().SpanID().String() + "-01"}
		if !maps.Equal(stored.Metadata, want) {
			t.Errorf("message %d was stored with %v, want %v", i, stored.Metadata, want)
		}
		if published.Parent().SpanID() != span.SpanContext().SpanID() {
			t.Errorf("message %d: the span is no child of the caller's", i)
		}
	}
}

// TestSpanOfAPublication: it ends with the publication, and has its error.
func TestSpanOfAPublication(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	broker := &testkit.Publisher{}
	sink := w.Sink("", newSink(t, "broker", broker, sinks.PublisherConfig{}))
	p := testkit.Must(sink.PublishAsync("topic", message.NewMessage("1", []byte("x"))))(t)
	testkit.Must(p.Result())(t)
	span := w.named("publish broker")
	w.wantStatus(span, codes.Unset)
	testkit.Contains(t, broker.Messages("topic")[0].Metadata["traceparent"], span.SpanContext().SpanID().String())

	refusing := &testkit.Publisher{}
	refusing.Fail(sinks.ErrRejected)
	failing := w.Sink("", newSink(t, "failing", refusing, sinks.PublisherConfig{}))
	p = testkit.Must(failing.PublishAsync("topic", message.NewMessage("2", nil)))(t)
	if _, err := p.Result(); err == nil {
		t.Error("no error")
	}
	w.wantStatus(w.named("publish failing"), codes.Error)

	testkit.NoError(t, sink.Close())
	closed := w.Sink("closed", sink)
	if _, err := closed.PublishAsync("topic", message.NewMessage("3", nil)); err == nil {
		t.Error("no error after Close")
	}
	for _, span := range w.allNamed("publish broker")[1:] {
		w.wantStatus(span, codes.Error)
	}
}

func TestSinkContinuesTheTraceOfTheMetadata(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	broker := &testkit.Publisher{}
	sink := w.Sink("", newSink(t, "broker", broker, sinks.PublisherConfig{}))
	msg := message.NewMessage("1", nil)
	msg.Metadata["Traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" // as written by others
	msg.Metadata["Tracestate"] = "vendor=1"
	testkit.NoError(t, sink.Publish("topic", msg))
	span := w.named("publish broker")
	if got := span.Parent().SpanID().String(); got != "b7ad6b7169203331" {
		t.Errorf("the parent is %s", got)
	}
	if got := broker.Messages("topic")[0].Metadata["tracestate"]; got != "vendor=1" {
		t.Errorf("tracestate is %q", got)
	}
}

// TestNotSampled checks that the decision not to record travels on, and costs no
// span.
func TestNotSampled(t *testing.T) {
	w := newWorld(t, tracing.Config{}, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	stored := w.publish(message.NewMessage("1", nil))
	header := stored[0].Metadata["traceparent"]
	if len(w.spans()) != 0 || len(header) != 55 || header[53:] != "00" {
		t.Errorf("%d spans, traceparent %q", len(w.spans()), header)
	}
}

// TestPassThrough checks that without a tracer a trace of others passes untouched.
func TestPassThrough(t *testing.T) {
	off := testkit.Must(tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider()}))(t)
	broker := &testkit.Publisher{}
	sink := off.Sink("", newSink(t, "broker", broker, sinks.PublisherConfig{}))
	const header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, value := range []string{header, "", "nonsense"} {
		msg := message.NewMessage("1", nil)
		if value != "" {
			msg.Metadata["traceparent"] = value
		}
		testkit.NoError(t, sink.Publish("topic"+value, msg))
		if got := broker.Messages("topic" + value)[0].Metadata["traceparent"]; got != value {
			t.Errorf("%q became %q", value, got)
		}
	}
}

func TestOtherPropagators(t *testing.T) {
	w := newWorld(t, tracing.Config{Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})})
	member := testkit.Must(baggage.NewMember("season", "2026"))(t)
	bag := testkit.Must(baggage.New(member))(t)
	msg := message.NewMessage("1", nil)
	msg.SetContext(baggage.ContextWithBaggage(t.Context(), bag))
	stored := w.publish(msg)
	if stored := stored[0].Metadata; stored["baggage"] != "season=2026" || stored["traceparent"] == "" {
		t.Errorf("stored with %v", stored)
	}
}

func TestSinkErrors(t *testing.T) {
	payload := "seven tons of barley from the north field"
	for name, test := range map[string]struct {
		err   error
		class string
	}{
		"unavailable": {sinks.ErrUnavailable, "outage"},
		"rejected":    {sinks.ErrRejected, "permanent"},
		"leaky":       {errors.New("cannot store " + payload), "outage"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracing.Config{})
			broker := &testkit.Publisher{}
			broker.Fail(test.err)
			sink := w.Sink("somewhere", newSink(t, "broker", broker, sinks.PublisherConfig{}))
			err := sink.Publish("topic", message.NewMessage("1", []byte(payload)), message.NewMessage("2", []byte(payload)))
			testkit.ErrorIs(t, err, test.err)
			for _, span := range w.allNamed("publish broker") {
				w.wantStatus(span, codes.Error)
				w.wantAttribute(span, "error.type", test.class)
				w.wantAttribute(span, "messaging.system", "somewhere")
				if d := span.Status().Description; len(d) < 10 || slices.Contains([]string{payload}, d) {
					t.Errorf("description %q", d)
				}
			}
			if all := w.everything(); len(w.spans()) != 2 || containsAny(all, "barley", "north field") {
				t.Errorf("%d spans: %s", len(w.spans()), all)
			}
		})
	}
}

// TestHostileText checks that what a sender chooses cannot make an exporter refuse
// the batch, nor fill it.
func TestHostileText(t *testing.T) {
	w := newWorld(t, tracing.Config{Filename: true})
	sink := w.Sink("", newSink(t, "broker", &testkit.Publisher{}, sinks.PublisherConfig{}))
	msg := message.NewMessage("\xff\xfe", nil)
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = "ä"[i%2]
	}
	msg.Metadata = message.Metadata{
		gateway.KeyMessageType: "a\xffb", gateway.KeyFilename: string(long), gateway.KeyContextID: "no UUID \xff",
		gateway.KeyTenantID: "\x80", "traceparent": "00-\xff", "tracestate": string(long),
	}
	testkit.NoError(t, sink.Publish("topic \xff", msg))
	span := w.named("publish broker")
	for key, value := range attributes(span) {
		if len(value) > 300 || !validUTF8(value) {
			t.Errorf("%s is %.100q", key, value)
		}
	}
	w.wantAttribute(span, tracing.KeyMessageType, "a\uFFFDb")
	w.wantAttribute(span, "messaging.message.conversation_id", "")
	if attributes(span)[string(tracing.KeyFilename)] == "" {
		t.Error("the filename was asked for")
	}
}

func TestPayloadElsewhere(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	sink := w.Sink("", newSink(t, "broker", &testkit.Publisher{}, sinks.PublisherConfig{}))
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{gateway.KeyPayloadMode: gateway.PayloadModeClaimCheck, gateway.KeyPayloadSize: "12345", gateway.KeyPayloadReference: "bucket/secret"}
	testkit.NoError(t, sink.Publish("topic", msg))
	w.wantAttribute(w.named("publish broker"), "messaging.message.body.size", "12345")
	if containsAny(w.everything(), "bucket/secret") {
		t.Error("the reference is in the span")
	}
}
