package claimcheck_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

func TestOpenMessage(t *testing.T) {
	s := newStore(t, "mem", "")
	put(t, s, "key", "content")
	sum := sha256.Sum256([]byte("content"))
	digest := hex.EncodeToString(sum[:])
	for name, test := range map[string]struct {
		payload  string
		metadata message.Metadata
		want     string
		err      error
	}{
		"in the message": {payload: "here", want: "here"},
		"stored":         {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "key", gateway.KeyPayloadSHA256: digest}, want: "content"},
		"without digest": {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "key"}, want: "content"},
		"changed": {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "key",
			gateway.KeyPayloadSHA256: strings.Repeat("00", 32)}, want: "content", err: gateway.ErrInvalid},
		"bad digest": {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "key", gateway.KeyPayloadSHA256: "00"}, err: gateway.ErrInvalid},
		"gone":       {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "other"}, err: gateway.ErrNotFound},
		"hostile":    {metadata: message.Metadata{gateway.KeyPayloadMode: "claim-check", gateway.KeyPayloadReference: "../key"}, err: gateway.ErrInvalid},
		"lazy":       {metadata: message.Metadata{gateway.KeyPayloadMode: "lazy"}, err: gateway.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("", []byte(test.payload))
			if test.metadata != nil {
				msg.Metadata = test.metadata
			}
			r, size, err := s.OpenMessage(msg)
			var got []byte
			if err == nil {
				got, err = io.ReadAll(r)
				if size != int64(len(got)) {
					t.Errorf("size %d, but %d bytes", size, len(got))
				}
				_ = r.Close()
			}
			if !errors.Is(err, test.err) || string(got) != test.want {
				t.Errorf("got %q, %v; want %q, %v", got, err, test.want, test.err)
			}
		})
	}
}
