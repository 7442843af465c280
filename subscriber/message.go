package subscriber

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// Unmarshaler transforms a received message into the one that is delivered. It is
// called once for each delivery, including redeliveries, must be safe for concurrent
// use, and may modify and return its argument. The payload is shared by all
// subscriptions that received the event and must not be written to. If it fails, the
// message is not delivered and stays unconfirmed; a message that may come from a
// sender that does not use the counterpart should be returned as it is.
type Unmarshaler interface {
	Unmarshal(msg *message.Message) (*message.Message, error)
}

// newMessage creates the message for one delivery attempt.
func (s *Subscriber) newMessage(d *delivery) (*message.Message, error) {
	msg, err := eventMessage(d)
	if err != nil || s.cfg.Unmarshaler == nil {
		return msg, err
	}
	return s.cfg.Unmarshaler.Unmarshal(msg)
}

func eventMessage(d *delivery) (*message.Message, error) {
	switch e := d.event.(type) {
	case *gateway.MessageReceived:
		return dataMessage(d, e), nil
	case *gateway.FileReceived:
		return fileMessage(d, e), nil
	}
	return controlMessage(d.event)
}

func dataMessage(d *delivery, e *gateway.MessageReceived) *message.Message {
	payload := e.Payload
	if d.payload != nil {
		payload = d.payload.data
	}
	msg := message.NewMessage(messageUUID(d.keys[0]), payload)
	m := make(message.Metadata, 12)
	m[gateway.KeyEventType] = string(gateway.EventMessageReceived)
	m[gateway.KeyMessageID] = e.ID
	m[gateway.KeyContextID] = e.AppMessageID
	sent, received := timestamps(e)
	m[gateway.KeySentTimestamp] = sent
	if received != "" {
		m[gateway.KeyReceivedTimestamp] = received
	}
	setCommon(m, e.ReceivingEndpointID, e.MessageType, e.TenantID, e.Filename, e.TeamsetContextID)
	setPayload(m, d, int64(len(payload)))
	msg.Metadata = m
	return msg
}

func fileMessage(d *delivery, e *gateway.FileReceived) *message.Message {
	payload := e.Payload
	if d.payload != nil {
		payload = d.payload.data
	}
	msg := message.NewMessage(fileUUID(e), payload)
	m := make(message.Metadata, 12)
	m[gateway.KeyEventType] = string(gateway.EventFileReceived)
	m[gateway.KeyMessageIDs] = strings.Join(e.MessageIDs, ",")
	if d.context != "" {
		m[gateway.KeyContextID] = d.context
	}
	setCommon(m, e.ReceivingEndpointID, e.MessageType, e.TenantID, e.Filename, e.TeamsetContextID)
	setPayload(m, d, e.Size)
	msg.Metadata = m
	return msg
}

func setCommon(m message.Metadata, endpoint, messageType, tenant, filename, teamset string) {
	m[gateway.KeyReceivingEndpointID] = endpoint
	m[gateway.KeyMessageType] = messageType
	if tenant != "" {
		m[gateway.KeyTenantID] = tenant
	}
	if filename != "" {
		m[gateway.KeyFilename] = filename
	}
	if teamset != "" {
		m[gateway.KeyTeamsetContextID] = teamset
	}
}

// setPayload sets the size, and where the payload is if the message does not
// carry it.
func setPayload(m message.Metadata, d *delivery, size int64) {
	if d.payload != nil {
		size = d.payload.size
		for k, v := range d.payload.metadata {
			m[k] = v
		}
	}
	if size >= 0 { // negative for a lazy payload whose size the event does not give
		m[gateway.KeyPayloadSize] = strconv.FormatInt(size, 10)
	}
}

// messageUUID derives the message UUID from the endpoint and the message ID: the service
// gives one message to several endpoints under one ID.
func messageUUID(key messageKey) string {
	const prefix = "message\n"
	var name [len(prefix) + len(key)]byte
	copy(name[copy(name[:], prefix):], key[:])
	sum := sha256.Sum256(name[:])
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8, RFC 9562
	return id.String()
}

// fileUUID derives the message UUID of a file from its endpoint and messages,
// so that it is the same on every delivery.
func fileUUID(e *gateway.FileReceived) string {
	ids := slices.Sorted(slices.Values(e.MessageIDs))
	name := e.ReceivingEndpointID + "\n" + strings.Join(ids, "\n")
	return uuid.NewHash(sha256.New(), uuid.NameSpaceOID, []byte(name), 8).String()
}

// controlMessage carries an event that is not data: the payload is its JSON.
func controlMessage(event gateway.Event) (*message.Message, error) {
	var payload []byte
	metadata := message.Metadata{gateway.KeyEventType: string(event.Type())}
	switch e := event.(type) {
	case *gateway.UnknownEvent:
		payload = e.Data
	case *gateway.EndpointDeleted:
		metadata[gateway.KeyEndpointID] = e.ID
	case *gateway.EndpointsListChanged:
		metadata[gateway.KeyTenantID] = e.TenantID
	case *gateway.AuthorizationAdded:
		metadata[gateway.KeyTenantID] = e.Tenant.TenantID
	case *gateway.AuthorizationRevoked:
		metadata[gateway.KeyTenantID] = e.TenantID
	}
	if payload == nil {
		var err error
		if payload, err = json.Marshal(event); err != nil {
			return nil, fmt.Errorf("subscriber: encode %s: %w", event.Type(), err)
		}
	}
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata = metadata
	return msg, nil
}

// timestamps formats both times of an event as parts of one string, to save an
// allocation. received is empty if the service did not provide it.
func timestamps(e *gateway.MessageReceived) (sent, received string) {
	var room [2 * len(time.RFC3339Nano)]byte
	b := e.SentAt.AppendFormat(room[:0], time.RFC3339Nano)
	n := len(b)
	if !e.ReceivedAt.IsZero() {
		b = e.ReceivedAt.AppendFormat(b, time.RFC3339Nano)
	}
	text := string(b)
	return text[:n], text[n:]
}
