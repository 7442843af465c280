package publisher

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// prepared is a message that has been checked.
type prepared struct {
	request gateway.SendMessageRequest
	// open opens the payload if it is not in the request, once per attempt.
	open func(context.Context) (io.ReadCloser, error)
	slot slot
}

// prepare builds and checks the request for a message. The message belongs to the caller,
// who may be publishing it elsewhere at the same time: it is only read.
func (p *Publisher) prepare(topic string, msg *message.Message, m *prepared) error {
	if msg == nil {
		return &gateway.ValidationError{Field: "message", Rule: "must not be nil"}
	}
	if err := msg.Context().Err(); err != nil {
		return err
	}
	if err := p.headers(topic, msg, &m.request); err != nil {
		return err
	}
	if err := p.setPayload(topic, msg, m); err != nil {
		return err
	}
	if m.open == nil {
		return m.nameKey(p.cfg.Client.ValidateMessage(m.request))
	}
	checked := m.request
	checked.Body = noBody
	return m.nameKey(p.cfg.Client.ValidateMessage(checked))
}

// noBody is a placeholder for a payload that is opened later.
func noBody() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }

// addressed returns the request with what the metadata, or else the configuration, says of type, sender, recipients and names.
func (p *Publisher) addressed(topic string, msg *message.Message) gateway.SendMessageRequest {
	meta := func(key, fallback string) string { return cmp.Or(msg.Metadata.Get(key), fallback) }
	return gateway.SendMessageRequest{
		TenantID:         meta(gateway.KeyTenantID, p.cfg.TenantID),
		EndpointID:       meta(gateway.KeyEndpointID, p.cfg.EndpointID),
		MessageType:      cmp.Or(topic, meta(gateway.KeyMessageType, "")),
		TeamsetContextID: meta(gateway.KeyTeamsetContextID, p.cfg.TeamsetContextID),
		Filename:         meta(gateway.KeyFilename, ""),
		DirectRecipients: p.recipients(msg),
	}
}

// headers fills in the request without its payload.
func (p *Publisher) headers(topic string, msg *message.Message, req *gateway.SendMessageRequest) error {
	*req = p.addressed(topic, msg)
	if own := msg.Metadata.Get(gateway.KeyMessageType); own != "" && own != req.MessageType && !configured(topic, msg) {
		return invalid(gateway.KeyMessageType, "must be absent, or the topic: a message has one type")
	}
	if _, ok := msg.Metadata[gateway.KeyDirectRecipients]; ok && len(req.DirectRecipients) == 0 {
		// Otherwise "no one" would become "everyone".
		return invalid(gateway.KeyDirectRecipients, "must name at least one endpoint; leave the key out to publish")
	}
	req.ContextID = p.contextID(topic, msg, req)
	req.IsPublish = len(req.DirectRecipients) == 0
	if v := msg.Metadata.Get(gateway.KeyIsPublish); v != "" {
		publish, err := strconv.ParseBool(v)
		if err != nil {
			return invalid(gateway.KeyIsPublish, "must be true or false")
		}
		if !publish && req.IsPublish {
			return invalid(gateway.KeyIsPublish, "must be true without direct recipients: nobody could receive the message")
		}
		req.IsPublish = publish
	}
	sentAt, err := sentAt(msg)
	if err != nil {
		return err
	}
	req.SentAt = sentAt
	return p.unsent(topic, msg)
}

// componentKeys are metadata without which Watermill's components cannot read what they sent: its type for package cqrs,
// and what it answers for package requestreply.
var componentKeys = []string{"name", "_watermill_requestreply_op_id"}

// unsent returns an error for a message of a component that would arrive without its metadata. What a route or a handler
// in Watermill's Router sends on may have such metadata by chance, as headers of a record, and would be refused forever.
func (p *Publisher) unsent(topic string, msg *message.Message) error {
	if p.cfg.Marshaler != nil || !msgctx.SentAt(msg.Context()).IsZero() || configured(topic, msg) {
		return nil
	}
	for _, key := range componentKeys {
		if msg.Metadata.Get(key) != "" {
			return invalid(key, "is for a component of Watermill, and reaches it in an envelope only: give this publisher the envelope marshaler"+
				" and its subscriber the envelope unmarshaler, or remove the key")
		}
	}
	return nil
}

// configured reports whether the topic is that of the handler in Watermill's Router that
// publishes the message: whoever configured the handler named the type of what it returns.
func configured(topic string, msg *message.Message) bool {
	return topic != "" && message.PublishTopicFromCtx(msg.Context()) == topic
}

// recipients returns the direct recipients of a message.
func (p *Publisher) recipients(msg *message.Message) []string {
	if list, ok := msg.Metadata[gateway.KeyDirectRecipients]; ok {
		return splitList(list)
	}
	return p.cfg.DirectRecipients
}

// sentAt returns the time in the metadata, else that of the first attempt of the route that
// sends the message, else now. Legacy senders leave times at zero, which counts as absent.
func sentAt(msg *message.Message) (time.Time, error) {
	first := msgctx.SentAt(msg.Context()).UTC()
	if first.IsZero() {
		first = time.Now().UTC()
	}
	v := msg.Metadata.Get(gateway.KeySentTimestamp)
	if v == "" {
		return first, nil
	}
	at, ok := isotime.Parse([]byte(v))
	if !ok {
		return at, invalid(gateway.KeySentTimestamp, "must be an ISO 8601 date-time such as 2006-01-02T15:04:05Z, in the years 0 to 9999 of UTC")
	}
	if at.IsZero() {
		return first, nil
	}
	return at, nil
}

// splitList splits at commas, ignoring white space around items and empty items, as in
// lists in HTTP headers.
func splitList(list string) []string {
	var items []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
