// Package envelope packs a whole Watermill message, UUID and metadata included,
// into one payload, for senders and receivers that both use it: the gateway
// itself carries no free metadata.
//
// The form is the magic "AGM1", the length of the head as four bytes, most
// significant first, the head as JSON, and the payload as it is.
package envelope

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

const magic = "AGM1"

// maxHead bounds the head that Unpack accepts, in bytes.
const maxHead = 16 << 20

// ErrNotEnvelope says that a payload does not begin like an envelope.
var ErrNotEnvelope = errors.New("not an envelope")

type head struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Pack returns UUID, metadata and payload of msg as one payload.
func Pack(msg *message.Message) ([]byte, error) {
	h, err := json.Marshal(head{UUID: msg.UUID, Metadata: msg.Metadata})
	if err != nil {
		return nil, fmt.Errorf("envelope: %w", err)
	}
	if len(h) > maxHead {
		return nil, fmt.Errorf("envelope: UUID and metadata take %d bytes, at most %d are allowed", len(h), maxHead)
	}
	out := make([]byte, 0, len(magic)+4+len(h)+len(msg.Payload))
	out = append(out, magic...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(h))) //nolint:gosec // bounded above
	out = append(out, h...)
	return append(out, msg.Payload...), nil
}

// Unpack is the reverse of Pack. The returned payload is a part of data. It
// returns [ErrNotEnvelope] when data does not begin with the magic.
func Unpack(data []byte) (uuid string, metadata message.Metadata, payload []byte, err error) {
	if len(data) < len(magic)+4 || string(data[:len(magic)]) != magic {
		return "", nil, nil, ErrNotEnvelope
	}
	n := binary.BigEndian.Uint32(data[len(magic):])
	rest := data[len(magic)+4:]
	if n > maxHead || int(n) > len(rest) {
		return "", nil, nil, errors.New("envelope: the head is longer than the payload")
	}
	var h head
	if err := json.Unmarshal(rest[:n], &h); err != nil {
		return "", nil, nil, errors.New("envelope: the head is not valid JSON")
	}
	if h.Metadata == nil {
		h.Metadata = message.Metadata{}
	}
	return h.UUID, h.Metadata, rest[n:], nil
}
