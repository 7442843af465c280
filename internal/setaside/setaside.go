// Package setaside carries, in a message's context, the way to tell its
// subscriber not to deliver the message again for now.
package setaside

import "context"

// Func tells the subscriber that the message with this UUID, which is about to be
// given back, is to be left alone: unconfirmed, and out of the way of the others,
// until the service delivers it anew. It does not block.
type Func func(uuid string)

type key struct{}

// NewContext returns a context that carries f.
func NewContext(ctx context.Context, f Func) context.Context {
	return context.WithValue(ctx, key{}, f)
}

// FromContext returns the function that ctx carries, or nil.
func FromContext(ctx context.Context) Func {
	f, _ := ctx.Value(key{}).(Func)
	return f
}
