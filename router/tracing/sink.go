package tracing

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/sinks"
)

// Sink returns sink with a producer span around each message that is published.
// The message that the sink gets is a copy whose metadata carry the context of
// that span, as traceparent and tracestate; the caller's is not changed. The span
// is a child of the one in the message's context, or continues the trace that the
// metadata name. system is the messaging.system, such as "kafka"; empty means the
// Name of the sink's Description.
//
// The result does all that sink does, and closes it. It has a method
// Unwrap() sinks.Sink that returns sink, for methods beyond the contract.
func (t *Tracing) Sink(system string, sink sinks.Sink) sinks.Sink {
	if t == nil {
		return sink
	}
	name := sink.Describe().Name
	if system == "" {
		system = name
	}
	return &tracedSink{Sink: sink, producer: producer{t: t, system: system, name: "publish " + name}}
}

type tracedSink struct {
	sinks.Sink
	producer
}

// Describe implements sinks.Sink. The inner sink gets copies.
func (s *tracedSink) Describe() sinks.Description {
	d := s.Sink.Describe()
	d.ReadOnly = s
	return d
}

// Publish implements sinks.Sink.
func (s *tracedSink) Publish(topic string, messages ...*message.Message) error {
	return s.publish(s.Sink, topic, messages)
}

// PublishAsync implements sinks.Sink. The span ends with the publication.
func (s *tracedSink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	calls := s.begin(topic, []*message.Message{msg}, nil)
	p, err := s.Sink.PublishAsync(topic, calls[0].copied)
	if err != nil {
		end(calls, err)
		return nil, err
	}
	p.Then(func(_ sinks.Receipt, err error) { end(calls, err) })
	return p, nil
}

// Unwrap returns the sink that is traced.
func (s *tracedSink) Unwrap() sinks.Sink { return s.Sink }

// Publisher is [Tracing.Sink] for publishers that are not sinks. The result owns pub and
// closes it.
func (t *Tracing) Publisher(system string, pub message.Publisher) message.Publisher {
	if t == nil {
		return pub
	}
	return &tracedPublisher{Publisher: pub, producer: producer{t: t, system: system, name: "publish " + system}}
}

type tracedPublisher struct {
	message.Publisher
	producer
}

// Publish implements message.Publisher.
func (p *tracedPublisher) Publish(topic string, messages ...*message.Message) error {
	return p.publish(p.Publisher, topic, messages)
}

// Unwrap returns the publisher that is traced.
func (p *tracedPublisher) Unwrap() message.Publisher { return p.Publisher }

// producer creates the spans of messages that are sent.
type producer struct {
	t      *Tracing
	system string
	name   string // of the spans
}

// publish publishes copies of messages to whom they are for.
func (p *producer) publish(to message.Publisher, topic string, messages []*message.Message) error {
	var room [1]sent
	calls := p.begin(topic, messages, room[:0])
	own := make([]*message.Message, len(calls))
	for i := range calls {
		own[i] = calls[i].copied
	}
	err := to.Publish(topic, own...)
	end(calls, err)
	return err
}

// sent is one message of a call of Publish.
type sent struct {
	original, copied *message.Message
	span             trace.Span // nil when nothing is recorded
}

// begin starts the spans and creates the copies.
func (p *producer) begin(topic string, messages []*message.Message, calls []sent) []sent {
	start := startOptions(trace.SpanKindProducer, p.system, "publish", semconv.MessagingOperationTypeSend, topic)
	for _, msg := range messages {
		calls = append(calls, p.beginOne(start, msg))
	}
	return calls
}

func (p *producer) beginOne(start []trace.SpanStartOption, msg *message.Message) sent {
	if msg == nil {
		return sent{} // left to the publisher to reject
	}
	parent := msg.Context()
	if !trace.SpanContextFromContext(parent).IsValid() {
		parent = p.t.extract(parent, msg.Metadata)
	}
	ctx, span := p.t.tracer.Start(parent, p.name, start...)
	c := sent{original: msg}
	if span.IsRecording() {
		span.SetAttributes(p.t.messageAttributes(msg)...)
		c.span = span
	}
	c.copied = &message.Message{UUID: msg.UUID, Metadata: p.t.inject(ctx, msg.Metadata), Payload: msg.Payload}
	c.copied.SetContext(ctx)
	return c
}

// end ends the spans. One error applies to all: it is not known which messages of a call
// were stored.
func end(calls []sent, err error) {
	for i := range calls {
		c := &calls[i]
		if c.span == nil {
			continue
		}
		if err != nil {
			fail(c.span, err, c.original)
		}
		c.span.End()
	}
}

// startOptions has the attributes that a sampler may want to see.
func startOptions(kind trace.SpanKind, system, operation string, operationType attribute.KeyValue, topic string) []trace.SpanStartOption {
	return []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(
		semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(operation), operationType,
		semconv.MessagingDestinationName(text(topic)),
	)}
}
