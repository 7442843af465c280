package publisher

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// ContextID returns the context ID that Publish sends with the message to the topic: the first of these that is present.
//
//   - gateway.KeyContextID in the metadata. One that is no UUID is an error of Publish. On a message with
//     gateway.KeyEventType, which was received or made from one that was, a UUID derived from it, the payload, and
//     type, filename, teamset, sender and recipients of what is sent takes its place: two payloads never share one.
//   - the message's UUID, when it is one.
//   - a UUID derived from the topic and gateway.KeyDedupID, which a router sets.
//   - a UUID derived from the message's UUID when that is another string, such as a ULID.
//   - a new UUID for each call.
//
// So two payloads need two UUIDs; a route sees to that for the messages that it makes of one. ContextID does not
// change the message and is safe for concurrent use. With gateway.KeyEventType it reads the whole payload if that is
// in the message.
func (p *Publisher) ContextID(topic string, msg *message.Message) string {
	req := p.addressed(topic, msg)
	return p.contextID(topic, msg, &req)
}

// contextID is ContextID for a request that is addressed.
func (p *Publisher) contextID(topic string, msg *message.Message, req *gateway.SendMessageRequest) string {
	if id := msg.Metadata.Get(gateway.KeyContextID); id != "" {
		if msg.Metadata.Get(gateway.KeyEventType) == "" {
			return id
		}
		// It is that of the message that was received, whose sender may have used any string, and a
		// handler may have copied it onto something else.
		parts := append([]string{"received", id, p.payloadName(msg), req.EndpointID}, slices.Sorted(slices.Values(req.DirectRecipients))...)
		parts = append(parts, req.MessageType, req.Filename, req.TeamsetContextID)
		return derivedID(parts...)
	}
	if id, err := uuid.Parse(msg.UUID); err == nil && id != uuid.Nil {
		if canonical := len("00000000-0000-0000-0000-000000000000"); len(msg.UUID) == canonical && strings.ToLower(msg.UUID) == msg.UUID {
			return msg.UUID
		}
		return id.String()
	}
	if id := msg.Metadata.Get(gateway.KeyDedupID); id != "" {
		return derivedID("dedup", topic, id)
	}
	if msg.UUID != "" && msg.UUID != uuid.Nil.String() {
		return derivedID("uuid", msg.UUID)
	}
	return uuid.NewString()
}

// payloadName tells the payload of a message from others, without opening it.
func (p *Publisher) payloadName(msg *message.Message) string {
	meta := msg.Metadata
	switch sum := meta.Get(gateway.KeyPayloadSHA256); {
	case len(msg.Payload) > 0 || meta.Get(gateway.KeyPayloadMode) == "":
		digest := sha256.Sum256(msg.Payload)
		name := hex.EncodeToString(digest[:])
		if p.cfg.Marshaler != nil { // may put the UUID into the payload
			name += " " + msg.UUID
		}
		return name
	case sum != "":
		return strings.ToLower(sum)
	}
	// It is still with the service, where messages do not change.
	return strings.Join([]string{
		meta.Get(gateway.KeyReceivingEndpointID), meta.Get(gateway.KeyMessageID), meta.Get(gateway.KeyMessageIDs), meta.Get(gateway.KeyPayloadReference),
	}, " ")
}

// namespace is the namespace of derived IDs.
const namespace = "d1bd41e6-3ba9-4d0e-93b0-a2b6d4d8c4f1"

// derivedID returns a version 8 UUID from the SHA-256 of its parts.
func derivedID(parts ...string) string {
	var name []byte
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part)) // of fixed length: parts stay separate
		name = append(name, sum[:]...)
	}
	return uuid.NewHash(sha256.New(), uuid.MustParse(namespace), name, 8).String()
}
