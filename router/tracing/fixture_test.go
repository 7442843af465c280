package tracing_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	typeIn   = "app:test:json"
	typeBack = "app:test:report"
	typeFile = "iso:11783:-10:taskdata:zip"
)

// world is a gateway, and a tracing whose spans are recorded.
type world struct {
	*testing.T
	*tracing.Tracing
	server   *gatewaytest.Server
	client   *gateway.Client
	sender   gateway.Endpoint
	receiver gateway.Endpoint
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newWorld(t *testing.T, cfg tracing.Config, options ...sdktrace.TracerProviderOption) *world {
	t.Helper()
	server := gatewaytest.New(t, gatewaytest.Config{})
	types := []string{typeIn, typeBack, typeFile}
	w := &world{
		T: t, server: server,
		sender:   server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types, Receive: []string{typeBack}}),
		receiver: server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Send: types, Receive: types, Subscribe: []string{typeIn, typeFile}}),
		recorder: tracetest.NewSpanRecorder(),
	}
	client := testkit.Must(gateway.New(server.ClientConfig()))(t)
	t.Cleanup(func() { _ = client.Close() })
	w.client = client
	w.provider = sdktrace.NewTracerProvider(append(options, sdktrace.WithSpanProcessor(w.recorder))...)
	cfg.TracerProvider = w.provider
	w.Tracing = testkit.Must(tracing.New(cfg))(t)
	return w
}

// subscriber returns a subscriber of the gateway that is not wrapped yet.
func (w *world) subscriber(change ...func(*subscriber.Config)) *subscriber.Subscriber {
	w.Helper()
	cfg := subscriber.Config{
		Client: w.client, Hooks: w.Hooks(subscriber.Hooks{}),
		Nack:    subscriber.Backoff{Initial: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		Confirm: subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond}, StartAfter: time.Millisecond,
	}
	for _, f := range change {
		f(&cfg)
	}
	sub := testkit.Must(subscriber.New(cfg, nil))(w)
	w.Cleanup(func() { _ = sub.Close() })
	return sub
}

// start runs routes and returns how to stop them, which also waits for all spans.
func (w *world) start(cfg router.Config, routes ...router.Route) (stop func()) {
	w.Helper()
	_, stop = w.run(cfg, routes...)
	return stop
}

func (w *world) run(cfg router.Config, routes ...router.Route) (r *router.Router, stop func()) {
	w.Helper()
	cfg.Chain, cfg.Observer = w.Chain(cfg.Chain), w.Observer(cfg.Observer)
	if cfg.Retry.InitialBackoff == 0 {
		cfg.Retry.InitialBackoff = time.Millisecond
	}
	r = testkit.Must(router.New(cfg, nil))(w)
	for _, route := range routes {
		testkit.NoError(w, r.Add(route))
	}
	ctx, cancel := context.WithCancel(w.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-result; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.Cleanup(stop)
	return r, stop
}

// close fails the test unless something closes.
func (w *world) close(what io.Closer) {
	w.Helper()
	testkit.NoError(w, what.Close())
}

// publish publishes messages into a traced sink, and returns what the broker has.
func (w *world) publish(messages ...*message.Message) []*message.Message {
	w.Helper()
	broker := &testkit.Publisher{}
	testkit.NoError(w, w.Sink("", newSink(w, "broker", broker, sinks.PublisherConfig{})).Publish("topic", messages...))
	return broker.Messages("topic")
}

// send gives the gateway a message for the receiver.
func (w *world) send(messageType, payload, filename string) []string {
	w.Helper()
	return testkit.Must(w.server.Send(gatewaytest.SendRequest{
		From: w.sender.ID, MessageType: messageType, Payload: []byte(payload), Filename: filename,
	}))(w)
}

// wait waits for the gateway's ledger.
func (w *world) wait(what string, cond func([]gatewaytest.LedgerEntry) bool) {
	w.Helper()
	if err := w.server.Wait(testkit.Context(w), cond); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

func (w *world) waitConfirmed(n int) {
	w.Helper()
	if err := w.server.WaitConfirmed(testkit.Context(w), n); err != nil {
		w.Fatalf("%d confirmations: %v", n, err)
	}
}

// spans are the ended spans, in the order in which they began.
func (w *world) spans() []sdktrace.ReadOnlySpan {
	w.Helper()
	spans := w.recorder.Ended()
	if started := w.recorder.Started(); len(started) != len(spans) {
		w.Errorf("%d spans were started, %d have ended", len(started), len(spans))
	}
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return spans
}

// named returns the one span of this name.
func (w *world) named(name string) sdktrace.ReadOnlySpan {
	w.Helper()
	found := w.allNamed(name)
	if len(found) != 1 {
		w.Fatalf("%d spans %q, want one; there are\n%s", len(found), name, w.tree())
	}
	return found[0]
}

func (w *world) allNamed(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(w.spans(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
}

// tree draws all spans.
func (w *world) tree() string {
	var b strings.Builder
	spans := w.spans()
	known := map[trace.SpanID]bool{}
	for _, s := range spans {
		known[s.SpanContext().SpanID()] = true
	}
	var draw func(parent trace.SpanID, indent string)
	draw = func(parent trace.SpanID, indent string) {
		for _, s := range spans {
			p := s.Parent().SpanID()
			if p == parent || indent == "" && !known[p] {
				fmt.Fprintf(&b, "%s%s\n", indent, s.Name())
				draw(s.SpanContext().SpanID(), indent+"  ")
			}
		}
	}
	draw(trace.SpanID{}, "")
	return b.String()
}

// wantTree fails the test unless the spans look like this.
func (w *world) wantTree(want string) {
	w.Helper()
	if got := w.tree(); got != want {
		w.Fatalf("spans\n%swant\n%s", got, want)
	}
}

// wantOneTrace fails the test unless all spans belong to one trace.
func (w *world) wantOneTrace() {
	w.Helper()
	ids := map[trace.TraceID]bool{}
	for _, s := range w.spans() {
		ids[s.SpanContext().TraceID()] = true
	}
	if len(ids) != 1 {
		w.Errorf("%d traces, want one", len(ids))
	}
}

// attributes of a span as text.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, kv := range s.Attributes() {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func eventNames(s sdktrace.ReadOnlySpan) (names []string) {
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	return names
}

func eventAttributes(e sdktrace.Event) map[string]string {
	all := map[string]string{}
	for _, kv := range e.Attributes {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

// wantStatus fails the test unless the span has this status.
func (w *world) wantStatus(s sdktrace.ReadOnlySpan, want codes.Code) {
	w.Helper()
	if got := s.Status(); got.Code != want {
		w.Errorf("span %q has status %v %q, want %v", s.Name(), got.Code, got.Description, want)
	}
}

// wantAttribute fails the test unless the span has this attribute.
func (w *world) wantAttribute(s sdktrace.ReadOnlySpan, key attribute.Key, want string) {
	w.Helper()
	if got, ok := attributes(s)[string(key)]; got != want || ok != (want != "") {
		w.Errorf("span %q: %s is %q, want %q", s.Name(), key, got, want)
	}
}

// everything is all text of all spans.
func (w *world) everything() string {
	var b strings.Builder
	for _, s := range w.spans() {
		fmt.Fprintln(&b, s.Name(), s.Status().Description, attributes(s))
		for _, e := range s.Events() {
			fmt.Fprintln(&b, e.Name, eventAttributes(e))
		}
	}
	return b.String()
}

func containsAny(s string, pieces ...string) bool {
	return slices.ContainsFunc(pieces, func(piece string) bool { return strings.Contains(s, piece) })
}

func validUTF8(s string) bool { return strings.ToValidUTF8(s, "") == s }

// newSink returns a sink that is closed with the test.
func newSink(t testing.TB, name string, pub message.Publisher, config sinks.PublisherConfig) sinks.Sink {
	t.Helper()
	sink := sinks.FromPublisher(name, pub, config)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	return sink
}
