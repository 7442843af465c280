package publisher

import (
	"context"
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks"
)

// Name is the name of the publisher's [sinks.Description].
const Name = "gateway"

// Describe describes the publisher as a sink. It opens payloads that are elsewhere, unless there is a Marshaler.
// There is no MaxMessageSize: a payload that is too large for the service would also be refused from a claim check.
func (p *Publisher) Describe() sinks.Description {
	return sinks.Description{
		Name:           Name,
		OpensPayloads:  p.cfg.Marshaler == nil,
		TopicIsType:    true,
		DurabilityNote: "the service has accepted the message; its specification does not say how durable that is",
	}
}

// TopicSegment returns value unchanged: the topic is the message type. Publish rejects illegal values.
func (p *Publisher) TopicSegment(value string) string { return value }

// CheckTopic implements [sinks.Topics].
func (p *Publisher) CheckTopic(topic string) error { return p.cfg.CheckTopic(topic) }

// TopicSegment is that of the [Publisher].
func (Config) TopicSegment(value string) string { return value }

// CheckTopic implements [sinks.Topics]: a topic is a message type. It needs the Client.
func (c Config) CheckTopic(topic string) error {
	if err := c.Client.ValidateMessage(gateway.SendMessageRequest{TenantID: anyID, EndpointID: anyID, MessageType: topic}); err != nil {
		return sinkError("", err) // errors must not contain illegal values
	}
	return nil
}

// Health requests the tenants of the application, which needs only an access token. It returns nil if the service responds,
// sinks.ErrUnavailable if not, and sinks.ErrClosed after Close. It is retried as every call of the client.
func (p *Publisher) Health(ctx context.Context) error {
	if !p.life.Enter() {
		return sinkError("", ErrClosed)
	}
	defer p.life.Leave()
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // Close gives up waiting
	_, err := p.cfg.Client.ListAuthorizedTenants(call)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case p.ctx.Err() != nil:
		return sinkError("", ErrClosed)
	case errors.Is(err, gateway.ErrClosed):
		return sinkError("", err)
	}
	return sinks.NewError(Name, "", sinks.ErrUnavailable, err) // no message was refused
}

// sinkError classifies err. What is not known to be the message's fault counts as an outage.
func sinkError(topic string, err error) error {
	kind := sinks.ErrUnavailable
	switch {
	case errors.Is(err, gateway.ErrClosed):
		kind = sinks.ErrClosed
	case gateway.Refused(err), errors.Is(err, sinks.ErrRejected):
		kind = sinks.ErrRejected
	}
	return sinks.NewError(Name, topic, kind, err)
}

// fail builds the error of a call that err, or the end of a context, ended at the i-th message.
func (e *PublishError) fail(topic string, i int, msg *message.Message, err, ended error) error {
	sent := slices.ContainsFunc(e.Outcomes, func(o Outcome) bool { return o != NotSent })
	if ended != nil && !sent && !hasEarlierFailure(err) {
		return ended // there is nothing else to tell
	}
	e.Index = i
	if msg != nil {
		e.UUID = msg.UUID
	}
	if rule, ok := errors.AsType[*MetadataError](err); ok && rule.Key == gateway.KeyMessageType {
		topic = "" // errors must not contain illegal values
	}
	e.topic = topic
	switch {
	case ended == nil:
		e.Err = sinkError(topic, err)
	case errors.Is(err, ended):
		e.Err = err // with what failed before
	default:
		e.Err = ended
	}
	return e
}

// hasEarlierFailure reports whether the error of a call that a context ended says more than that.
func hasEarlierFailure(err error) bool {
	call, ok := errors.AsType[*gateway.Error](err)
	return ok && call.Error() != (&gateway.Error{Op: call.Op, Err: call.Err}).Error()
}

// endOf returns the error of the context of a message that err comes from, or nil.
func endOf(err error, messages ...*message.Message) error {
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	for _, msg := range messages {
		if msg != nil && msg.Context().Err() != nil {
			return msg.Context().Err()
		}
	}
	return nil
}
