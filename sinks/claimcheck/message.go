package claimcheck

import (
	"bytes"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
)

// OpenMessage opens the payload of a message wherever it came from, e.g. out of
// Kafka in another process: in the store when the metadata refers to it, else in
// the message. A stored payload that has another SHA-256 than the metadata tells
// ends in an [*Error] with gateway.ErrInvalid in place of io.EOF. Reading ends
// with the message's context; the caller closes the reader.
func (s *Store) OpenMessage(msg *message.Message) (payload io.ReadCloser, size int64, err error) {
	invalid := func(key, rule string) error {
		return &Error{Op: "open", Kind: gateway.ErrInvalid, Cause: &gateway.ValidationError{Field: "metadata " + key, Rule: rule}}
	}
	switch msg.Metadata.Get(gateway.KeyPayloadMode) {
	case "":
		return io.NopCloser(bytes.NewReader(msg.Payload)), int64(len(msg.Payload)), nil
	case gateway.PayloadModeClaimCheck:
	default:
		return nil, 0, invalid(gateway.KeyPayloadMode, "must be "+gateway.PayloadModeClaimCheck)
	}
	told := msg.Metadata.Get(gateway.KeyPayloadSHA256)
	digest, ok := payloadref.ParseDigest(told)
	if told != "" && !ok {
		return nil, 0, invalid(gateway.KeyPayloadSHA256, "must be a SHA-256 in hexadecimal")
	}
	payload, size, err = s.Open(msg.Context(), msg.Metadata.Get(gateway.KeyPayloadReference))
	if err != nil || told == "" {
		return payload, size, err
	}
	return payloadref.Verify(payload, digest, invalid(gateway.KeyPayloadSHA256, "must be the SHA-256 of the payload: the stored payload has changed")), size, nil
}
