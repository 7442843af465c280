package tracing

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/router"
)

// Chain returns a function for router.Config.Chain: the chain that next assembles, or the
// standard one if next is nil, with [Tracing.Attempt] directly inside Retry.
func (t *Tracing) Chain(next func(route string, standard router.Chain) []message.HandlerMiddleware) func(string, router.Chain) []message.HandlerMiddleware {
	if t == nil {
		return next
	}
	if next == nil {
		next = func(_ string, c router.Chain) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{c.Poison, c.Retry, c.Dedup, c.Recoverer}
		}
	}
	return func(route string, standard router.Chain) []message.HandlerMiddleware {
		attempt := t.Attempt(route)
		if retry := standard.Retry; retry != nil {
			standard.Retry = func(h message.HandlerFunc) message.HandlerFunc { return retry(attempt(h)) }
		}
		return next(route, standard)
	}
}

// Attempt returns the middleware that creates a span for each attempt of a route. An error
// becomes the span's status. It belongs inside Retry; [Tracing.Chain] puts it there. For a
// nil *Tracing it is nil, which the Router skips.
func (t *Tracing) Attempt(route string) message.HandlerMiddleware {
	if t == nil {
		return nil
	}
	name := "attempt " + text(route)
	start := []trace.SpanStartOption{trace.WithAttributes(KeyRoute.String(text(route)))}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			parent := ctx
			if !trace.SpanContextFromContext(ctx).IsValid() {
				// Not from a wrapped subscriber, for example a message replayed from the
				// poison queue.
				parent = t.extract(ctx, msg.Metadata)
			}
			spanCtx, span := t.tracer.Start(parent, name, start...)
			msg.SetContext(spanCtx)
			defer func() {
				msg.SetContext(ctx)
				span.End() // also when the handler panics
			}()
			if d := deliveryOf(ctx); d != nil {
				d.attempts++
				span.SetAttributes(KeyAttempt.Int(d.attempts))
			}
			out, err := h(msg)
			if err != nil && span.IsRecording() {
				fail(span, err, msg)
			}
			return out, err
		}
	}
}

// Observer returns an Observer for router.Config.Observer that records what happens to a
// message in its consumer span and passes everything on to next; nil means none. The
// outcome of the message becomes an attribute, see [KeyOutcome], everything else an event.
// A message that was poisoned or returned has an error status.
func (t *Tracing) Observer(next router.Observer) router.Observer {
	if t == nil {
		return next
	}
	return observer{next}
}

type observer struct{ next router.Observer }

// Observe implements router.Observer.
func (o observer) Observe(e router.Event) {
	if e.Context != nil {
		if span := spanOf(e.Context); span.IsRecording() {
			record(span, e)
		}
	}
	if o.next != nil {
		o.next.Observe(e)
	}
}

func record(span trace.Span, e router.Event) {
	switch e.Kind {
	case router.EventDelivered, router.EventFiltered, router.EventDuplicate, router.EventPoisoned, router.EventReturned:
		span.SetAttributes(KeyOutcome.String(e.Kind.String()), KeyRoute.String(text(e.Route)))
	}
	switch e.Kind {
	case router.EventDelivered, router.EventFiltered, router.EventStarted, router.EventStored:
		return
	case router.EventPoisoned, router.EventReturned:
		span.SetStatus(codes.Error, e.Text)
		span.SetAttributes(semconv.ErrorTypeKey.String(e.Class.String()))
	}
	attributes := make([]attribute.KeyValue, 0, 5)
	attributes = append(attributes, KeyRoute.String(text(e.Route)))
	if e.Err != nil {
		attributes = append(attributes, semconv.ErrorTypeKey.String(e.Class.String()), semconv.ExceptionMessage(e.Text))
	}
	if e.Attempt > 0 {
		attributes = append(attributes, KeyAttempt.Int(e.Attempt))
	}
	if e.Kind == router.EventRetry {
		attributes = append(attributes, seconds(e.Delay))
	}
	span.AddEvent(e.Kind.String(), trace.WithAttributes(attributes...))
}
