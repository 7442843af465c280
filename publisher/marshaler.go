package publisher

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/envelope"
)

// Marshaler creates the payload that is sent for a message; the headers come from the metadata. It gets a copy whose
// metadata has the context ID and sent timestamp that are sent; it shares the payload, which must not be modified. It
// is called once for each message of a call of Publish and must be safe for concurrent use. The same message must
// always give the same payload: receivers recognize a copy by context ID and payload.
type Marshaler interface {
	Marshal(topic string, msg *message.Message) ([]byte, error)
}

// EnvelopeMarshaler sends UUID and metadata inside the payload, for applications that talk to their own endpoints; the
// subscriber's EnvelopeUnmarshaler unpacks them. Other receivers get a payload that they cannot read.
//
// Keys that begin with x-router- are not in the envelope: reception sets those that matter, and the others are not the
// sender's to choose. All others arrive byte for byte.
type EnvelopeMarshaler struct{}

var _ Marshaler = EnvelopeMarshaler{}

// Marshal packs the message. It copies the payload.
func (EnvelopeMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	return envelope.Pack(msg)
}
