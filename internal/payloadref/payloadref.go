// Package payloadref finds, opens and verifies payloads that are stored outside their
// message.
package payloadref

import (
	"context"
	"errors"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// Find returns how to open the payload that metadata refers to: from store, which may be nil, if it is in a claim check;
// otherwise with the opener in ctx, the message's context. It returns nil if there is none. What was deleted from store is
// opened with that opener, too, if the digest in metadata tells that it is the same payload.
func Find(ctx context.Context, metadata map[string]string, store gateway.PayloadOpener) msgctx.Opener {
	received := msgctx.PayloadOpener(ctx)
	if store == nil || metadata[gateway.KeyPayloadMode] != gateway.PayloadModeClaimCheck {
		return received
	}
	return func(ctx context.Context) (io.ReadCloser, int64, error) {
		payload, size, gone := store.Open(ctx, metadata[gateway.KeyPayloadReference])
		digest, ok := ParseDigest(metadata[gateway.KeyPayloadSHA256])
		if received == nil || !ok || !errors.Is(gone, gateway.ErrNotFound) {
			return payload, size, gone
		}
		payload, size, err := received(ctx)
		if err != nil {
			return nil, 0, err
		}
		return Verify(payload, digest, gone), size, nil // a handler may have stored another one
	}
}

var errLost = errors.New("the payload is still with the service (" + gateway.KeyPayloadMode + ": " + gateway.PayloadModeLazy +
	") and would be lost: have the handler, or a route, read it into the message")

// Lost returns an error for a message whose payload is still with the service, if its subscriber in this process has delivered
// it, or if it is a copy that a handler made without its context: nobody could read it from where the message is stored.
func Lost(msg *message.Message) error {
	if msg.Metadata[gateway.KeyPayloadMode] != gateway.PayloadModeLazy || len(msg.Payload) > 0 {
		return nil
	}
	if ctx := msg.Context(); msgctx.PayloadOpener(ctx) != nil || !msgctx.Known(ctx) {
		return errLost
	}
	return nil
}
