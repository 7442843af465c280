// Package payloadref finds, opens and verifies payloads that are stored outside their
// message.
package payloadref

import (
	"context"
	"io"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// Find returns how to open the payload that metadata refers to: from store, which may
// be nil, if it is in a claim check; otherwise with the opener in ctx, the message's
// context. It returns nil if there is none.
func Find(ctx context.Context, metadata map[string]string, store gateway.PayloadOpener) msgctx.Opener {
	if store != nil && metadata[gateway.KeyPayloadMode] == gateway.PayloadModeClaimCheck {
		return func(ctx context.Context) (io.ReadCloser, int64, error) {
			return store.Open(ctx, metadata[gateway.KeyPayloadReference])
		}
	}
	return msgctx.PayloadOpener(ctx)
}
