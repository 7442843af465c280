package tracing

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// delivery is what the parts of the tracing tell each other about one delivered
// message that is recorded. It hangs in the message's context.
type delivery struct {
	span trace.Span
	// attempts counts those of the route. The attempts of a message come one
	// after the other.
	attempts int
}

type deliveryKey struct{}

func newContext(ctx context.Context, d *delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// deliveryOf returns nil when the message is not recorded, or does not come from
// a subscriber that was wrapped.
func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// spanOf returns the span of the message's delivery, else the one that is under
// way.
func spanOf(ctx context.Context) trace.Span {
	if d := deliveryOf(ctx); d != nil {
		return d.span
	}
	return trace.SpanFromContext(ctx)
}
