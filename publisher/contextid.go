package publisher

import (
	"crypto/sha256"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// ContextID returns the context ID that Publish sends with the message to the topic, see
// the package documentation. It is a new one each time for a message that has nothing to
// derive it from: neither a UUID nor gateway.KeyContextID or gateway.KeyDedupID. It does
// not change the message and is safe for concurrent use.
func ContextID(topic string, msg *message.Message) string {
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
	if msg.UUID != "" && msg.UUID != uuid.Nil.String() {
		return derivedID("uuid", msg.UUID)
	}
	return uuid.NewString()
}

// received reports whether a subscriber delivered the message.
func received(msg *message.Message) bool { return msg.Metadata.Get(gateway.KeyEventType) != "" }

// namespace is the namespace of derived IDs.
const namespace = "d1bd41e6-3ba9-4d0e-93b0-a2b6d4d8c4f1"

// derivedID returns a version 8 UUID from the SHA-256 of its parts: the same parts always
// give the same ID.
func derivedID(parts ...string) string {
	var name []byte
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part)) // of fixed length: parts stay separate
		name = append(name, sum[:]...)
	}
	return uuid.NewHash(sha256.New(), uuid.MustParse(namespace), name, 8).String()
}
