package tracing

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// ErrClosed is returned by Subscribe of a wrapped subscriber after Close.
var ErrClosed = final.New("tracing: the subscriber is closed")

// SubscriberOption changes what [Tracing.Subscriber] returns.
type SubscriberOption func(*tracedSubscriber)

// NewTraces starts a new trace for each message, linked to the one in its metadata, which by default is continued. It is for
// sources whose senders should not decide which trace a message belongs to and whether it is recorded.
func NewTraces() SubscriberOption { return func(s *tracedSubscriber) { s.newTraces = true } }

// Subscriber returns sub with a consumer span around each message, from the moment it is
// offered until it is acked or nacked; a nack gives it an error status. The message's
// context carries the span. system is the messaging.system: [SystemGateway], "kafka",
// "nats".
//
// The result owns sub and closes it. A message that has not been taken when its
// subscription ends is nacked.
func (t *Tracing) Subscriber(system string, sub message.Subscriber, options ...SubscriberOption) message.Subscriber {
	if t == nil {
		return sub
	}
	s := &tracedSubscriber{
		t: t, sub: sub, system: system,
		stop: make(chan struct{}), done: make(chan struct{}), life: lifecycle.New(),
	}
	for _, option := range options {
		option(s)
	}
	return s
}

type tracedSubscriber struct {
	t         *Tracing
	sub       message.Subscriber
	system    string
	newTraces bool

	stop chan struct{} // closed when Close begins: no more messages are offered
	done chan struct{} // closed when sub is closed: stop waiting

	// life counts the goroutines that forward messages and those that wait
	// for the end of one.
	life     *lifecycle.Life
	closeErr error
}

// Drain drains what it traces, if that can be drained.
func (s *tracedSubscriber) Drain(ctx context.Context) {
	if source, ok := s.sub.(interface{ Drain(context.Context) }); ok {
		source.Drain(ctx)
	}
}

// Subscribe implements message.Subscriber.
func (s *tracedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	in, err := s.sub.Subscribe(ctx, topic)
	if err != nil {
		s.life.Leave()
		return nil, err
	}
	out := make(chan *message.Message)
	// Ends when sub closes its channel, which it does when ctx ends or on Close,
	// and at the latest when Close of sub has returned.
	go func() {
		defer s.life.Leave()
		defer close(out)
		s.forward(ctx, topic, in, out)
	}()
	return out, nil
}

func (s *tracedSubscriber) forward(ctx context.Context, topic string, in <-chan *message.Message, out chan<- *message.Message) {
	start := startOptions(trace.SpanKindConsumer, s.system, "process", semconv.MessagingOperationTypeProcess, topic)
	name := "process " + text(topic)
	for {
		var msg *message.Message
		var ok bool
		select {
		case msg, ok = <-in:
		case <-s.done:
		}
		if !ok {
			return
		}
		if wakeup.Raised(s.stop) || ctx.Err() != nil {
			msg.Nack()
			continue
		}
		s.begin(name, start, msg)
		select {
		case out <- msg:
		case <-ctx.Done():
			msg.Nack()
		case <-s.stop:
			msg.Nack()
		}
	}
}

// begin starts the span of a message and puts it into the message's context.
func (s *tracedSubscriber) begin(name string, start []trace.SpanStartOption, msg *message.Message) {
	ctx := msg.Context()
	parent := s.t.extract(ctx, msg.Metadata)
	if s.newTraces {
		if remote := trace.SpanContextFromContext(parent); remote.IsValid() {
			start = append(start[:len(start):len(start)], trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: remote}))
		}
	}
	spanCtx, span := s.t.tracer.Start(parent, name, start...)
	if !span.IsRecording() {
		msg.SetContext(spanCtx)
		return
	}
	span.SetAttributes(s.t.messageAttributes(msg)...)
	msg.SetContext(newContext(spanCtx, &delivery{span: span}))
	var open *openSpan
	if s.system == SystemGateway {
		open = s.t.unconfirmed.add(span.SpanContext(), msg)
	}
	// Ends with the message: Watermill's subscribers end its context when it was
	// acked or nacked. Close of the subscriber waits for it.
	s.life.Fork()
	go s.await(ctx, msg, span, open)
}

// await ends the span when the message is acked or nacked. ctx is the context that the
// subscriber gave to the message.
func (s *tracedSubscriber) await(ctx context.Context, msg *message.Message, span trace.Span, open *openSpan) {
	defer s.life.Leave()
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-ctx.Done():
	case <-s.done:
	}
	// The context ends right after the ack, so both may be true.
	select {
	case <-msg.Acked():
		open.noteAck(time.Now())
		span.SetAttributes(KeySettled.String("ack"))
	case <-msg.Nacked():
		open.end()
		span.SetAttributes(KeySettled.String("nack"))
		span.SetStatus(codes.Error, "nacked")
	default:
		open.end()
		span.SetAttributes(KeySettled.String("open"))
		span.SetStatus(codes.Error, "neither acked nor nacked in time")
	}
	span.End()
}

// Close closes the subscriber, and ends the spans of messages that are still
// open.
func (s *tracedSubscriber) Close() error {
	s.life.Close(func() {
		close(s.stop)
		s.closeErr = s.sub.Close()
		close(s.done)
		<-s.life.Idle()
	})
	return s.closeErr
}

// Unwrap returns the subscriber that is traced.
func (s *tracedSubscriber) Unwrap() message.Subscriber { return s.sub }
