package publisher

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/envelope"
)

// Marshaler makes the payload that is sent for a message. The headers always
// come from the metadata, in which context ID and sent timestamp are set by
// then. It is called once for each message of a call of Publish, must be safe
// for concurrent use, and must not change the message. Make the same payload of
// the same message every time: receivers recognise a copy by context ID and
// payload.
type Marshaler interface {
	Marshal(topic string, msg *message.Message) ([]byte, error)
}

// EnvelopeMarshaler sends UUID and metadata inside the payload, for applications
// that talk to their own endpoints; the subscriber's EnvelopeUnmarshaler takes
// them out again. Other receivers get a payload that they cannot read.
//
// Keys that begin with x-router- stay out of the envelope: those that mean
// something to the receiver come with the reception, and the others are not the
// sender's to choose. All other keys and values arrive byte for byte.
type EnvelopeMarshaler struct{}

var _ Marshaler = EnvelopeMarshaler{}

// Marshal packs the message. It copies the payload.
func (EnvelopeMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	return envelope.Pack(msg)
}
