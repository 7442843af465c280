package subscriber

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber/internal/core"
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
func (s *Subscriber) newMessage(d *delivery) (msg *message.Message, err error) {
	switch e := d.event.(type) {
	case *gateway.MessageReceived:
		msg = dataMessage(d, e)
	case *gateway.FileReceived:
		msg = fileMessage(d, e)
	default:
		msg = controlMessage(e)
	}
	if s.cfg.Unmarshaler != nil {
		return msgctx.Unmarshaled(s.cfg.Unmarshaler.Unmarshal(msg))
	}
	return msg, nil
}

func dataMessage(d *delivery, e *gateway.MessageReceived) *message.Message {
	payload := e.Payload
	if d.payload != nil {
		payload = d.payload.data
	}
	text := newMessageText(d, e, len(payload))
	msg := message.NewMessage(text.uuid, payload)
	m := make(message.Metadata, 12)
	m[gateway.KeyEventType] = string(gateway.EventMessageReceived)
	m[gateway.KeyMessageID] = e.ID
	m[gateway.KeyContextID] = e.AppMessageID
	m[gateway.KeySentTimestamp] = text.sent
	if text.received != "" {
		m[gateway.KeyReceivedTimestamp] = text.received
	}
	setCommon(m, e.ReceivingEndpointID, e.MessageType, e.TenantID, e.Filename, e.TeamsetContextID)
	if d.payload != nil {
		setPayload(m, d)
	} else {
		m[gateway.KeyPayloadSize] = text.size
	}
	msg.Metadata = m
	return msg
}

// messageText is what a message has that is not in its event as text.
type messageText struct{ uuid, sent, received, size string }

// newMessageText returns the text of a message with the embedded payload of size bytes. All of it is
// part of one string, to save allocations. received is empty if the service did not provide it.
func newMessageText(d *delivery, e *gateway.MessageReceived, size int) (text messageText) {
	const uuidLen = 36
	var room [uuidLen + 2*len(time.RFC3339Nano) + len("9223372036854775807")]byte
	b := appendUUID(room[:0], messageUUID(d.IDs[0]))
	b = e.SentAt.AppendFormat(b, time.RFC3339Nano)
	sent := len(b)
	if !e.ReceivedAt.IsZero() {
		b = e.ReceivedAt.AppendFormat(b, time.RFC3339Nano)
	}
	received := len(b)
	all := string(strconv.AppendInt(b, int64(size), 10))
	return messageText{all[:uuidLen], all[uuidLen:sent], all[sent:received], all[received:]}
}

func fileMessage(d *delivery, e *gateway.FileReceived) *message.Message {
	payload := e.Payload
	if d.payload != nil {
		payload = d.payload.data
	}
	msg := message.NewMessage(fileUUID(d, e), payload)
	m := make(message.Metadata, 12)
	m[gateway.KeyEventType] = string(gateway.EventFileReceived)
	m[gateway.KeyMessageIDs] = strings.Join(e.MessageIDs, ",")
	if part := d.File.Part; part != nil {
		m[gateway.KeyContextID] = ownerOf(part).family()
	}
	setCommon(m, e.ReceivingEndpointID, e.MessageType, e.TenantID, e.Filename, e.TeamsetContextID)
	if d.payload != nil {
		setPayload(m, d)
	} else if e.Size >= 0 {
		m[gateway.KeyPayloadSize] = strconv.FormatInt(e.Size, 10)
	}
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

// setPayload sets the size of a payload that is not embedded in the event, and where it is if the
// message does not carry it.
func setPayload(m message.Metadata, d *delivery) {
	maps.Copy(m, d.payload.metadata)
	if size := d.payload.size; size >= 0 { // negative for a lazy one whose size the event does not give
		m[gateway.KeyPayloadSize] = strconv.FormatInt(size, 10)
	}
}

// messageUUID derives the message UUID from the endpoint and the message ID: the service
// gives one message to several endpoints under one ID.
func messageUUID(key core.ID) uuid.UUID {
	const prefix = "message\n"
	var name [len(prefix) + len(key)]byte
	copy(name[copy(name[:], prefix):], key[:])
	sum := sha256.Sum256(name[:])
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8, RFC 9562
	return id
}

// appendUUID appends the text of id.
func appendUUID(b []byte, id uuid.UUID) []byte {
	text, _ := id.MarshalText() // it never fails
	return append(b, text...)
}

// fileUUID derives the message UUID of a file from its endpoint and messages,
// so that it is the same on every delivery.
func fileUUID(d *delivery, e *gateway.FileReceived) string {
	if len(e.MessageIDs) == 0 {
		return uuid.UUID(d.File.ID[:16]).String()
	}
	ids := slices.Sorted(slices.Values(e.MessageIDs))
	name := e.ReceivingEndpointID + "\n" + strings.Join(ids, "\n")
	return uuid.NewHash(sha256.New(), uuid.NameSpaceOID, []byte(name), 8).String()
}

// controlMessage carries an event that is not data: the payload is its data as received, so that
// what is stored does not depend on which types this version knows.
func controlMessage(event gateway.Event) *message.Message {
	var payload []byte
	metadata := message.Metadata{gateway.KeyEventType: string(event.Type())}
	switch e := event.(type) {
	case *gateway.UnknownEvent:
		payload = e.Data
	case *gateway.EndpointDeleted:
		payload = e.Data
		metadata[gateway.KeyEndpointID] = e.ID
	case *gateway.EndpointsListChanged:
		payload = e.Data
		metadata[gateway.KeyTenantID] = e.TenantID
	case *gateway.AuthorizationAdded:
		payload = e.Data
		metadata[gateway.KeyTenantID] = e.Tenant.ID
	case *gateway.AuthorizationRevoked:
		payload = e.Data
		metadata[gateway.KeyTenantID] = e.TenantID
	}
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata = metadata
	return msg
}
