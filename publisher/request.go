package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
)

// request makes the request for a message, and writes context ID and sent
// timestamp back into its metadata, so that sending the message again sends
// the same ones.
func (p *Publisher) request(ctx context.Context, topic string, msg *message.Message) (gateway.SendMessageRequest, error) {
	meta := func(key, fallback string) string {
		if v := msg.Metadata.Get(key); v != "" {
			return v
		}
		return fallback
	}
	req := gateway.SendMessageRequest{
		TenantID:         meta(gateway.KeyTenantID, p.cfg.TenantID),
		EndpointID:       meta(gateway.KeyEndpointID, p.cfg.EndpointID),
		MessageType:      meta(gateway.KeyMessageType, topic),
		TeamsetContextID: meta(gateway.KeyTeamsetContextID, p.cfg.TeamsetContextID),
		Filename:         meta(gateway.KeyFilename, ""),
		ContextID:        meta(gateway.KeyContextID, ""),
		DirectRecipients: slices.Clone(p.cfg.DirectRecipients),
	}
	if list := meta(gateway.KeyDirectRecipients, ""); list != "" {
		req.DirectRecipients = splitList(list)
	}
	req.IsPublish = len(req.DirectRecipients) == 0
	if v := meta(gateway.KeyIsPublish, ""); v != "" {
		publish, err := strconv.ParseBool(v)
		if err != nil {
			return req, invalid(gateway.KeyIsPublish, "must be true or false")
		}
		req.IsPublish = publish
	}
	sent := meta(gateway.KeySentTimestamp, "")
	if sent == "" {
		sent = time.Now().UTC().Format(time.RFC3339Nano)
	}
	at, err := time.Parse(time.RFC3339Nano, sent)
	if err != nil {
		return req, invalid(gateway.KeySentTimestamp, "must be an ISO 8601 date-time such as 2006-01-02T15:04:05Z")
	}
	req.SentAt = at
	if req.ContextID == "" {
		req.ContextID = msg.UUID
		if uuid.Validate(req.ContextID) != nil {
			req.ContextID = uuid.NewString()
		}
	}
	if err := p.setPayload(ctx, topic, msg, &req); err != nil {
		return req, err
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 2)
	}
	msg.Metadata.Set(gateway.KeyContextID, req.ContextID)
	msg.Metadata.Set(gateway.KeySentTimestamp, sent)
	return req, nil
}

func splitList(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(s string) bool { return s == "" })
}

func invalid(key, rule string) error {
	return &MetadataError{Key: key, Err: &gateway.ValidationError{Field: "value", Rule: rule}}
}

// setPayload takes the payload from the message, from what its metadata refers
// to, or from the Marshaler.
func (p *Publisher) setPayload(ctx context.Context, topic string, msg *message.Message, req *gateway.SendMessageRequest) error {
	mode := msg.Metadata.Get(gateway.KeyPayloadMode)
	if p.cfg.Marshaler != nil {
		if mode != "" {
			return fmt.Errorf("metadata %s: a payload outside the message cannot be sent with a Marshaler", gateway.KeyPayloadMode)
		}
		payload, err := p.cfg.Marshaler.Marshal(topic, msg)
		if err != nil {
			return fmt.Errorf("marshal: %w", err)
		}
		req.Payload = nonNil(payload)
		return nil
	}
	if mode == "" {
		req.Payload = nonNil(msg.Payload)
		return nil
	}
	size, err := strconv.ParseInt(msg.Metadata.Get(gateway.KeyPayloadSize), 10, 64)
	if err != nil || size < 0 {
		return invalid(gateway.KeyPayloadSize, "must be the size in bytes of the payload that "+gateway.KeyPayloadMode+" refers to")
	}
	open := p.opener(ctx, mode, msg)
	if open == nil {
		return errors.New("metadata " + gateway.KeyPayloadMode + ": the payload is outside the message; configure publisher.Config.ClaimCheck to send it")
	}
	req.Size = size
	req.Body = func() (io.ReadCloser, error) {
		body, _, err := open(ctx)
		return body, err
	}
	return nil
}

// opener returns how the payload that msg refers to is opened; nil when there
// is no way.
func (p *Publisher) opener(ctx context.Context, mode string, msg *message.Message) payloadref.Opener {
	if reference := msg.Metadata.Get(gateway.KeyPayloadReference); mode == gateway.PayloadModeClaimCheck && p.cfg.ClaimCheck != nil {
		return func(ctx context.Context) (io.ReadCloser, int64, error) {
			return p.cfg.ClaimCheck.Open(ctx, reference)
		}
	}
	return payloadref.FromContext(ctx)
}

// nonNil keeps an empty payload apart from no payload.
func nonNil(payload []byte) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}
