package publisher

import (
	"crypto/sha256"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// contextID is the first of these that there is: the one in the metadata, the
// message's UUID when it is a UUID, one derived from the deduplication ID, a
// new one.
func contextID(topic string, msg *message.Message) string {
	if id := msg.Metadata.Get(gateway.KeyContextID); id != "" {
		if uuid.Validate(id) != nil && received(msg) {
			// Legacy senders use any string.
			return derivedID("legacy", id)
		}
		return id
	}
	if id, err := uuid.Parse(msg.UUID); err == nil && id != uuid.Nil {
		return id.String()
	}
	if id := msg.Metadata.Get(gateway.KeyDedupID); id != "" {
		return derivedID("dedup", topic, id)
	}
	return uuid.NewString()
}

// received reports whether a subscriber delivered the message.
func received(msg *message.Message) bool { return msg.Metadata.Get(gateway.KeyEventType) != "" }

// namespace keeps the derived IDs apart from those of others.
const namespace = "d1bd41e6-3ba9-4d0e-93b0-a2b6d4d8c4f1"

// derivedID is a UUID of version 8 from the SHA-256 of its parts: the same
// whenever and wherever they are.
func derivedID(parts ...string) string {
	var name []byte
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part)) // of fixed length: parts cannot run into each other
		name = append(name, sum[:]...)
	}
	return uuid.NewHash(sha256.New(), uuid.MustParse(namespace), name, 8).String()
}
