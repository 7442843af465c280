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
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wakeup"
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
			fail(span, err, nil)
		}
		span.End()
	}
}

// messageKey identifies the message of a confirmation.
type messageKey struct{ endpoint, message string }

// openSpan is a consumer span whose message is not confirmed yet.
type openSpan struct {
	span  trace.SpanContext
	acked <-chan struct{} // closed when the message was acked
	left  int             // of its messages, several for a file, that are not confirmed; guarded by unconfirmed.mu

	ackedAt atomic.Pointer[time.Time] // nil as long as it is not known
	over    atomic.Bool               // it was not acked: its message is redelivered
}

func (o *openSpan) noteAck(at time.Time) {
	if o != nil {
		o.ackedAt.Store(&at)
	}
}

// end says that the message was not acked.
func (o *openSpan) end() {
	if o != nil {
		o.over.Store(true)
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
	ids := []string{msg.Metadata[gateway.KeyMessageID]}
	if ids[0] == "" {
		ids = strings.FieldsFunc(msg.Metadata[gateway.KeyMessageIDs], func(r rune) bool { return r == ',' })
	}
	if len(ids) == 0 {
		return nil
	}
	o := &openSpan{span: span, acked: msg.Acked(), left: len(ids)}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		key := messageKey{msg.Metadata[gateway.KeyReceivingEndpointID], id}
		known, _ := u.spans.Peek(key)
		u.spans.Add(key, append(slices.DeleteFunc(known, func(other *openSpan) bool { return other.over.Load() }), o))
	}
	return o
}

// take removes the deliveries of a message that is confirmed, and returns the spans of those that were acked whose last
// message it was.
func (u *unconfirmed) take(key messageKey) (confirmed []*openSpan) {
	u.mu.Lock()
	defer u.mu.Unlock()
	spans, _ := u.spans.Peek(key)
	u.spans.Remove(key)
	for _, o := range spans {
		if o.left--; o.left == 0 && wakeup.Raised(o.acked) {
			confirmed = append(confirmed, o)
		}
	}
	return confirmed
}
