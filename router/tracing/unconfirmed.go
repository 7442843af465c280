package tracing

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Hooks returns hooks that create the spans of confirmations: each starts with the ack of
// the message, ends when the service has accepted the confirmation, and is a child of the
// message's consumer span. A confirmation that the service permanently refuses is an error.
//
// The subscriber must be the one that [Tracing.Subscriber] wraps as [SystemGateway]. If
// several routes have a copy of a message, the trace of each has such a span.
func (t *Tracing) Hooks(hooks subscriber.Hooks) subscriber.Hooks {
	if t == nil {
		return hooks
	}
	confirmed, rejected := hooks.Confirmed, hooks.ConfirmationRejected
	hooks.Confirmed = func(tenantID string, confirmations []gateway.MessageConfirmation) {
		for _, c := range confirmations {
			t.confirmed(tenantID, c, len(confirmations), nil)
		}
		if confirmed != nil {
			confirmed(tenantID, confirmations)
		}
	}
	hooks.ConfirmationRejected = func(tenantID string, c gateway.MessageConfirmation, err error) {
		t.confirmed(tenantID, c, 1, err)
		if rejected != nil {
			rejected(tenantID, c, err)
		}
	}
	return hooks
}

func (t *Tracing) confirmed(tenantID string, c gateway.MessageConfirmation, batch int, err error) {
	for _, open := range t.unconfirmed.take(messageKey{c.EndpointID, c.MessageID}) {
		ctx := trace.ContextWithSpanContext(context.Background(), open.span)
		_, span := t.tracer.Start(ctx, "confirm", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(open.since()),
			trace.WithAttributes(
				semconv.MessagingSystemKey.String(SystemGateway),
				semconv.MessagingOperationName("confirm"), semconv.MessagingOperationTypeSettle,
				semconv.MessagingMessageID(c.MessageID), semconv.MessagingBatchMessageCount(batch),
				KeyTenant.String(tenantID), KeyEndpoint.String(c.EndpointID),
			))
		if err != nil {
			span.SetStatus(codes.Error, router.RedactError(err, nil))
			span.SetAttributes(semconv.ErrorTypeKey.String(router.ClassOf(err).String()))
		}
		span.End()
	}
}

// messageKey identifies the message of a confirmation.
type messageKey struct{ endpoint, message string }

// openSpan is a consumer span whose message is not confirmed yet.
type openSpan struct {
	span  trace.SpanContext
	keys  []messageKey    // several for a file
	acked <-chan struct{} // closed when the message was acked

	ackedAt atomic.Pointer[time.Time] // nil as long as it is not known
}

func (o *openSpan) noteAck(at time.Time) {
	if o != nil {
		o.ackedAt.Store(&at)
	}
}

// since is when the wait for the confirmation began: the ack, unless the confirmation was
// faster.
func (o *openSpan) since() time.Time {
	if at := o.ackedAt.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// unconfirmed remembers the recorded messages that are not confirmed yet. Several
// subscriptions may have the same message.
type unconfirmed struct {
	mu    sync.Mutex
	spans *simplelru.LRU[messageKey, []*openSpan]
}

func newUnconfirmed(size int) (*unconfirmed, error) {
	spans, err := simplelru.NewLRU[messageKey, []*openSpan](size, nil)
	return &unconfirmed{spans: spans}, err
}

// add remembers the span of a message; nil means that it will not be confirmed.
func (u *unconfirmed) add(span trace.SpanContext, msg *message.Message) *openSpan {
	metadata := msg.Metadata
	endpoint := metadata[gateway.KeyReceivingEndpointID]
	o := &openSpan{span: span, acked: msg.Acked()}
	if id := metadata[gateway.KeyMessageID]; id != "" {
		o.keys = []messageKey{{endpoint, id}}
	} else {
		for id := range strings.SplitSeq(metadata[gateway.KeyMessageIDs], ",") {
			if id != "" {
				o.keys = append(o.keys, messageKey{endpoint, id})
			}
		}
	}
	if len(o.keys) == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range o.keys {
		others, _ := u.spans.Peek(key)
		u.spans.Add(key, append(others[:len(others):len(others)], o))
	}
	return o
}

// take removes the acked deliveries of the message and returns the spans whose last message
// to be confirmed it was.
func (u *unconfirmed) take(key messageKey) []*openSpan {
	u.mu.Lock()
	defer u.mu.Unlock()
	spans, _ := u.spans.Peek(key)
	var acked, others []*openSpan
	for _, o := range spans {
		if wakeup.Raised(o.acked) { // else it was nacked before, and is not removed yet
			acked = append(acked, o)
		} else {
			others = append(others, o)
		}
	}
	u.put(key, others)
	return slices.DeleteFunc(acked, u.waits)
}

// put sets the spans of a message. u.mu is held.
func (u *unconfirmed) put(key messageKey, spans []*openSpan) {
	if len(spans) == 0 {
		u.spans.Remove(key)
	} else {
		u.spans.Add(key, spans)
	}
}

// waits reports whether another message of the span is not confirmed yet. u.mu
// is held.
func (u *unconfirmed) waits(o *openSpan) bool {
	if len(o.keys) == 1 {
		return false
	}
	for _, key := range o.keys {
		spans, _ := u.spans.Peek(key)
		if slices.Contains(spans, o) {
			return true
		}
	}
	return false
}

// remove forgets the span; its message is redelivered.
func (u *unconfirmed) remove(o *openSpan) {
	if o == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range o.keys {
		spans, _ := u.spans.Peek(key)
		if i := slices.Index(spans, o); i >= 0 {
			u.put(key, slices.Concat(spans[:i], spans[i+1:]))
		}
	}
}
