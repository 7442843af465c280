package tracing

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// carrier adapts a message's metadata to carry a trace context.
type carrier message.Metadata

var _ propagation.TextMapCarrier = carrier(nil)

// Get ignores case: header names are lower case here, but others write Traceparent.
func (c carrier) Get(name string) string {
	if value, ok := c[name]; ok {
		return value
	}
	for other, value := range c {
		if len(other) == len(name) && strings.EqualFold(other, name) {
			return value
		}
	}
	return ""
}

// Set writes the name and removes variants in another case.
func (c carrier) Set(name, value string) {
	c.remove(name)
	c[name] = value
}

func (c carrier) remove(name string) {
	maps.DeleteFunc(c, func(other, _ string) bool { return len(other) == len(name) && strings.EqualFold(other, name) })
}

// Keys returns all names.
func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// extract returns ctx with the trace context that the metadata carries, and
// without a span when it carries none: the one in ctx, if any, belongs to the
// program and not to the message.
func (t *Tracing) extract(ctx context.Context, metadata message.Metadata) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	return t.config.Propagator.Extract(ctx, carrier(metadata))
}

// inject returns a copy of the metadata with the trace context of ctx, and
// without the one that it had: a tracestate must not outlive its traceparent.
// Without a trace context in ctx it returns the metadata as they are.
func (t *Tracing) inject(ctx context.Context, metadata message.Metadata) message.Metadata {
	_, standard := t.config.Propagator.(propagation.TraceContext)
	if standard && !trace.SpanContextFromContext(ctx).IsValid() {
		return metadata
	}
	own := make(carrier, len(metadata)+2)
	maps.Copy(own, metadata)
	for _, name := range t.config.Propagator.Fields() {
		own.remove(name)
	}
	t.config.Propagator.Inject(ctx, own)
	return message.Metadata(own)
}
