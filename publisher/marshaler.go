package publisher

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/envelope"
)

// Marshaler makes the payload that is sent for a message. The headers always
// come from the metadata. It is called once for each call of Publish, must be
// safe for concurrent use, and must not change the message.
type Marshaler interface {
	Marshal(topic string, msg *message.Message) ([]byte, error)
}

// EnvelopeMarshaler sends UUID and all metadata inside the payload, for
// applications that talk to their own endpoints; the subscriber's
// EnvelopeUnmarshaler takes them out again. Other receivers get a payload that
// they cannot read.
type EnvelopeMarshaler struct{}

var _ Marshaler = EnvelopeMarshaler{}

// Marshal packs the message. It copies the payload.
func (EnvelopeMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	return envelope.Pack(msg)
}
