package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/sinks"
)

// setPayload takes the payload from the message, from where that refers to, or from the Marshaler.
func (p *Publisher) setPayload(topic string, msg *message.Message, m *prepared) error {
	mode := msg.Metadata.Get(gateway.KeyPayloadMode)
	if mode != "" {
		return p.setReferred(mode, msg, m)
	}
	payload := []byte(msg.Payload)
	if p.cfg.Marshaler != nil {
		own := msg.CopyWithContext()
		own.Metadata.Set(gateway.KeyContextID, m.request.ContextID)
		own.Metadata.Set(gateway.KeySentTimestamp, m.request.SentAt.Format(time.RFC3339Nano))
		var err error
		if payload, err = p.cfg.Marshaler.Marshal(topic, own); err != nil {
			return fmt.Errorf("marshal: %w: %w", sinks.ErrRejected, err)
		}
	}
	m.request.Payload = payload
	return nil
}

// setReferred prepares a payload that is not in the message.
func (p *Publisher) setReferred(mode string, msg *message.Message, m *prepared) error {
	switch {
	case mode != gateway.PayloadModeClaimCheck && mode != gateway.PayloadModeLazy:
		return invalid(gateway.KeyPayloadMode, "must be "+gateway.PayloadModeClaimCheck+" or "+gateway.PayloadModeLazy+", or absent")
	case p.cfg.Marshaler != nil:
		return invalid(gateway.KeyPayloadMode, "must be absent: a payload outside the message cannot be sent with a Marshaler")
	case len(msg.Payload) > 0:
		// A message made from a received one, with its metadata.
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
		if size, err = p.askSize(msg.Context(), open); err != nil {
			return err
		}
	}
	expected := msg.Metadata.Get(gateway.KeyPayloadSHA256)
	digest, ok := payloadref.ParseDigest(expected)
	if expected != "" && !ok {
		return invalid(gateway.KeyPayloadSHA256, "must be a SHA-256 in hexadecimal")
	}
	m.request.Size = size
	m.open = func(ctx context.Context) (io.ReadCloser, error) {
		payload, _, err := open(ctx)
		if err != nil || expected == "" {
			return payload, err
		}
		// The client sends the last bytes only after it has seen the end, so a payload that
		// has changed is never sent completely.
		return payloadref.Verify(payload, digest, errChanged), nil
	}
	return nil
}

// opener returns how the payload that msg refers to is opened.
func (p *Publisher) opener(mode string, msg *message.Message) (msgctx.Opener, error) {
	if mode == gateway.PayloadModeClaimCheck && p.cfg.ClaimCheck != nil && msg.Metadata.Get(gateway.KeyPayloadReference) == "" {
		return nil, invalid(gateway.KeyPayloadReference, "is required by "+gateway.KeyPayloadMode)
	}
	if open := payloadref.Find(msg.Context(), msg.Metadata, p.cfg.ClaimCheck); open != nil {
		return open, nil
	}
	if mode == gateway.PayloadModeLazy {
		return nil, invalid(gateway.KeyPayloadMode, "must not be "+gateway.PayloadModeLazy+" on a message that no subscriber of this process delivered: the payload is still at the service")
	}
	return nil, invalid(gateway.KeyPayloadMode, "must not be "+gateway.PayloadModeClaimCheck+" without a claim check, which opens the payload")
}

// askSize opens the payload to determine its size, which must be known before it is sent.
func (p *Publisher) askSize(ctx context.Context, open msgctx.Opener) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // Close gives up waiting
	payload, size, err := open(ctx)
	if p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0, ErrClosed
	}
	if err != nil {
		return 0, err
	}
	_ = payload.Close() // nothing was read
	if size < 0 {
		return 0, invalid(gateway.KeyPayloadSize, "is required: the size of the payload cannot be determined")
	}
	return size, nil
}

// errChanged: the stored payload has changed since it was stored.
var errChanged = &MetadataError{
	Key: gateway.KeyPayloadSHA256,
	Err: &gateway.ValidationError{Field: "value", Rule: "must be the SHA-256 of the payload: the stored payload has changed"},
}
