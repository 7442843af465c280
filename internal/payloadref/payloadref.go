// Package payloadref carries, in a message's context, the way to open a payload
// that is not in the message.
package payloadref

import (
	"context"
	"io"
)

// Opener opens a payload. size is -1 when it is not known.
type Opener func(ctx context.Context) (payload io.ReadCloser, size int64, err error)

type key struct{}

// NewContext returns a context that carries open.
func NewContext(ctx context.Context, open Opener) context.Context {
	return context.WithValue(ctx, key{}, open)
}

// FromContext returns the opener that ctx carries, or nil.
func FromContext(ctx context.Context) Opener {
	open, _ := ctx.Value(key{}).(Opener)
	return open
}
