package tracing

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// delivery is shared between the parts of the tracing for one recorded delivery of a
// message. It is in the message's context.
type delivery struct {
	span trace.Span
	// attempts counts the attempts of the route, which happen one after another.
	attempts int
}

type deliveryKey struct{}

func newContext(ctx context.Context, d *delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// deliveryOf returns nil if the message is not recorded, or does not come from a wrapped
// subscriber.
func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// spanOf returns the span of the message's delivery, else the current one.
func spanOf(ctx context.Context) trace.Span {
	if d := deliveryOf(ctx); d != nil {
		return d.span
	}
	return trace.SpanFromContext(ctx)
}
