package tracing_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
)

// FuzzMetadata checks that whatever comes in the metadata, what goes out has one
// valid trace context, and everything else as it was.
func FuzzMetadata(f *testing.F) {
	f.Add("traceparent", remote, "tracestate", "vendor=1")
	f.Add("TRACEPARENT", "00-"+strings.Repeat("0", 32)+"-b7ad6b7169203331-01", "Tracestate", ",,=")
	f.Add("traceparent", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "tracestate", "\xff=\r\n")
	f.Add("trace\u017fparent", "", "\u212Aey", "\x00")
	t := testkit.Must(tracing.New(tracing.Config{TracerProvider: sdktrace.NewTracerProvider()}))(f)
	f.Fuzz(func(tt *testing.T, name1, value1, name2, value2 string) {
		broker := &testkit.Publisher{}
		sink := t.Sink("", newSink(tt, "broker", broker, sinks.PublisherConfig{}))
		msg := message.NewMessage("1", nil)
		msg.Metadata = message.Metadata{name1: value1, name2: value2}
		testkit.NoError(tt, sink.Publish("topic", msg))
		found := 0
		stored := broker.Messages("topic")[0].Metadata
		for name, value := range stored {
			switch {
			case strings.EqualFold(name, "traceparent"):
				found++
			case strings.EqualFold(name, "tracestate"):
			case msg.Metadata[name] != value:
				tt.Errorf("%q became %q", name, value)
			}
		}
		carrier := propagation.MapCarrier(stored)
		sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
		if found != 1 || !sc.IsValid() {
			tt.Errorf("%d trace contexts in %q", found, stored)
		}
	})
}
