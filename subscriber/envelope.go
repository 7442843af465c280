package subscriber

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/envelope"
)

// EnvelopeUnmarshaler unpacks messages that the publisher's EnvelopeMarshaler
// packed. UUID, metadata and payload are those of the published message, except
// for keys that begin with x-router-, which are always those of the received
// message: a sender cannot set them. The size is that of the unpacked payload.
// A message that is not in an envelope is delivered as it is. With [PayloadClaimCheck]
// the payload of an envelope is in the message, whatever its size. With [PayloadLazy]
// one that is not embedded in its event cannot be unpacked: [OpenPayload] then fails.
// A part of an envelope is not delivered: list the message types of payloads that are
// larger than the service's chunks in Config.Files.
type EnvelopeUnmarshaler struct{}

var _ Unmarshaler = EnvelopeUnmarshaler{}

// Unmarshal unpacks the message. The new payload is a subslice of the old one.
func (EnvelopeUnmarshaler) Unmarshal(msg *message.Message) (*message.Message, error) {
	uuid, metadata, payload, err := envelope.Unpack(msg.Payload)
	switch {
	case errors.Is(err, envelope.ErrNotEnvelope):
		return msg, nil
	case errors.Is(err, envelope.ErrPart):
		return nil, fmt.Errorf("%w: it is a chunk of a larger one, which comes as a whole if the subscriber takes the message type %s as files",
			err, msg.Metadata[gateway.KeyMessageType])
	case err != nil:
		return nil, err
	}
	out := message.NewMessage(uuid, payload)
	out.Metadata = metadata
	maps.Copy(out.Metadata, msg.Metadata)
	out.Metadata[gateway.KeyPayloadSize] = strconv.Itoa(len(payload))
	return out, nil
}

// errEnvelopeElsewhere: the metadata is with the payload, and the message was delivered without both.
var errEnvelopeElsewhere = fmt.Errorf("%w: the payload is in an envelope, and cannot be unpacked where it is: configure payloads as inline or claim_check, not lazy",
	gateway.ErrInvalid)

// peekEnvelope reports whether r yields an envelope. The returned reader yields what r does.
func peekEnvelope(r io.Reader) (io.Reader, bool) {
	buffered := bufio.NewReader(r)
	head, _ := buffered.Peek(envelope.HeadSize) // reading returns its error again
	return buffered, envelope.Begins(head)
}

// unpacks reports whether payloads in envelopes belong into their messages.
func (s *Subscriber) unpacks() bool {
	switch s.cfg.Unmarshaler.(type) {
	case EnvelopeUnmarshaler, *EnvelopeUnmarshaler:
		return true
	}
	return false
}
