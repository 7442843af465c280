package publisher

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
)

// OpensPayloads reports whether Publish itself opens payloads that are not in the
// message (gateway.KeyPayloadMode): always, but with a Marshaler, which needs the
// payload in the message. Package sinks asks for it.
func (p *Publisher) OpensPayloads() bool { return p.cfg.Marshaler == nil }

// setPayload takes the payload from the message, from what its metadata refers
// to, or from the Marshaler.
func (p *Publisher) setPayload(topic string, msg *message.Message, m *prepared) error {
	mode := msg.Metadata.Get(gateway.KeyPayloadMode)
	if mode != "" {
		return p.setReferred(mode, msg, m)
	}
	payload := []byte(msg.Payload)
	if p.cfg.Marshaler != nil {
		var err error
		if payload, err = p.cfg.Marshaler.Marshal(topic, msg); err != nil {
			return fmt.Errorf("marshal: %w", err)
		}
	}
	m.request.Payload = payload
	return nil
}

// setReferred prepares the sending of a payload that is not in the message.
func (p *Publisher) setReferred(mode string, msg *message.Message, m *prepared) error {
	switch {
	case mode != gateway.PayloadModeClaimCheck && mode != gateway.PayloadModeLazy:
		return invalid(gateway.KeyPayloadMode, "must be "+gateway.PayloadModeClaimCheck+" or "+gateway.PayloadModeLazy+", or absent")
	case p.cfg.Marshaler != nil:
		return invalid(gateway.KeyPayloadMode, "must be absent: a payload outside the message cannot be sent with a Marshaler")
	case len(msg.Payload) > 0:
		// One that was made out of a received message, with its metadata.
		return invalid(gateway.KeyPayloadMode, "must be absent from a message that carries its payload")
	}
	open, err := p.opener(mode, msg)
	if err != nil {
		return err
	}
	size := int64(-1)
	if v := msg.Metadata.Get(gateway.KeyPayloadSize); v != "" {
		if size, err = strconv.ParseInt(v, 10, 64); err != nil {
			return invalid(gateway.KeyPayloadSize, "must be the size of the payload in bytes")
		}
	}
	if size < 0 {
		if size, err = askSize(msg.Context(), open); err != nil {
			return err
		}
	}
	told := msg.Metadata.Get(gateway.KeyPayloadSHA256)
	digest, ok := payloadref.ParseDigest(told)
	if told != "" && !ok {
		return invalid(gateway.KeyPayloadSHA256, "must be a SHA-256 in hexadecimal")
	}
	m.request.Size = size
	m.open = func(ctx context.Context) (io.ReadCloser, error) {
		payload, _, err := open(ctx)
		if err != nil || told == "" {
			return payload, err
		}
		// The client does not send the last bytes before it has seen the end,
		// so a payload that has changed is never sent whole.
		return payloadref.Verify(payload, digest, errChanged), nil
	}
	return nil
}

// opener returns how the payload that msg refers to is opened.
func (p *Publisher) opener(mode string, msg *message.Message) (payloadref.Opener, error) {
	if mode == gateway.PayloadModeClaimCheck && p.cfg.ClaimCheck != nil {
		reference := msg.Metadata.Get(gateway.KeyPayloadReference)
		if reference == "" {
			return nil, invalid(gateway.KeyPayloadReference, "is required by "+gateway.KeyPayloadMode)
		}
		return func(ctx context.Context) (io.ReadCloser, int64, error) {
			return p.cfg.ClaimCheck.Open(ctx, reference)
		}, nil
	}
	if open := payloadref.FromContext(msg.Context()); open != nil {
		return open, nil
	}
	if mode == gateway.PayloadModeLazy {
		return nil, invalid(gateway.KeyPayloadMode, "must not be "+gateway.PayloadModeLazy+" on a message that no subscriber of this process delivered: the payload is still with the service")
	}
	return nil, invalid(gateway.KeyPayloadMode, "must not be "+gateway.PayloadModeClaimCheck+" without publisher.Config.ClaimCheck, which finds the payload")
}

// askSize opens the payload to learn its size, which has to be known before it
// is sent.
func askSize(ctx context.Context, open payloadref.Opener) (int64, error) {
	payload, size, err := open(ctx)
	if err != nil {
		return 0, err
	}
	_ = payload.Close() // nothing was read
	if size < 0 {
		return 0, invalid(gateway.KeyPayloadSize, "is required: the size of the payload cannot be found out")
	}
	return size, nil
}

// errChanged is a stored payload that is not the one that was stored.
var errChanged = &MetadataError{
	Key: gateway.KeyPayloadSHA256,
	Err: &gateway.ValidationError{Field: "value", Rule: "must be the SHA-256 of the payload: the stored payload has changed"},
}
