package subscriber

import (
	"errors"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/envelope"
)

// EnvelopeUnmarshaler unpacks messages that the publisher's EnvelopeMarshaler
// packed. UUID, metadata and payload are those of the published message, except
// for keys that begin with x-router-, which are always those of the received
// message: a sender cannot set them.
// A message that is not in an envelope is delivered as it is. A message whose
// payload is stored elsewhere (claim check, lazy) is not unpacked.
type EnvelopeUnmarshaler struct{}

var _ Unmarshaler = EnvelopeUnmarshaler{}

// Unmarshal unpacks the message. The new payload is a subslice of the old one.
func (EnvelopeUnmarshaler) Unmarshal(msg *message.Message) (*message.Message, error) {
	uuid, metadata, payload, err := envelope.Unpack(msg.Payload)
	if errors.Is(err, envelope.ErrNotEnvelope) {
		return msg, nil
	}
	if err != nil {
		return nil, err
	}
	out := message.NewMessage(uuid, payload)
	out.Metadata = metadata
	maps.Copy(out.Metadata, msg.Metadata)
	return out, nil
}
