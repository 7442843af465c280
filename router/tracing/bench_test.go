package tracing_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
)

// discard is an exporter that does nothing.
type discard struct{ tracetest.NoopExporter }

// BenchmarkRoute tells what tracing costs a message on its way through a route:
// a consumer span, an attempt and a producer span, exported to nowhere. Without
// tracing nothing is wrapped, so it costs nothing.
func BenchmarkRoute(b *testing.B) {
	recording := func(s sdktrace.Sampler) trace.TracerProvider {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithBatcher(&discard{}))
		b.Cleanup(func() { _ = p.Shutdown(context.Background()) })
		return p
	}
	for _, mode := range []struct {
		name     string
		provider trace.TracerProvider
	}{
		{"without", nil},
		{"noop", noop.NewTracerProvider()},
		{"not-sampled", recording(sdktrace.NeverSample())},
		{"sampled-1-percent", recording(sdktrace.TraceIDRatioBased(0.01))},
		{"recorded", recording(sdktrace.AlwaysSample())},
	} {
		b.Run(mode.name, func(b *testing.B) { benchmarkRoute(b, mode.provider) })
	}
}

func benchmarkRoute(b *testing.B, provider trace.TracerProvider) {
	var t *tracing.Tracing
	if provider != nil {
		t = testkit.Must(tracing.New(tracing.Config{TracerProvider: provider}))(b)
	}
	from := newSource()
	r := testkit.Must(router.New(router.Config{
		Poison: &testkit.Publisher{}, Dedup: router.DedupSettings{KeyFunc: router.NoKeys}, Chain: t.Chain(nil), Observer: t.Observer(nil),
	}, nil))(b)
	testkit.NoError(b, r.Add(router.Route{
		Name: "farm", From: t.Subscriber("test", from), Topic: "fields", ToTopic: "{type}", To: t.Sink("", instant{newSink(b, "broker", &testkit.Publisher{}, sinks.PublisherConfig{})}),
	}))
	ctx, stop := context.WithCancel(b.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()

	messages := make([]*message.Message, b.N)
	payload := make([]byte, 1000)
	for i := range messages {
		msg := message.NewMessage(fmt.Sprint(i), payload)
		msg.Metadata = message.Metadata{
			gateway.KeyEventType: "MESSAGE_RECEIVED", gateway.KeyMessageID: msg.UUID, gateway.KeyMessageType: typeIn,
			gateway.KeyTenantID: "0b4d3f0a-8a0f-4d8c-9d35-5a2f3e4a1c11", gateway.KeyReceivingEndpointID: "6a1c8a0f-5f3d-4f4b-8b57-0c7f0c8f2b22",
			gateway.KeyContextID: "7f0c7a0e-0f0e-4c5c-8a55-6f3f7f6d1a01", gateway.KeySentTimestamp: "2026-05-01T12:00:00Z",
			gateway.KeyPayloadSize: "1000",
		}
		messages[i] = msg
	}
	b.ReportAllocs()
	b.ResetTimer()
	const inFlight = 64
	for i, msg := range messages {
		if i >= inFlight {
			<-messages[i-inFlight].Acked()
		}
		from.messages <- msg
	}
	for _, msg := range messages[max(0, len(messages)-inFlight):] {
		<-msg.Acked()
	}
	b.StopTimer()
	stop()
	if err := <-result; err != nil {
		b.Error(err)
	}
}

// instant is a sink that does nothing.
type instant struct{ sinks.Sink }

func (instant) Publish(string, ...*message.Message) error { return nil }
