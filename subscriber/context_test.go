package subscriber

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

type valueKey struct{}

// TestMessageContext holds that the context of a message is like one of the
// standard library, whenever its end is first waited for.
func TestMessageContext(t *testing.T) {
	newContext := func() (*messageContext, context.CancelFunc) {
		drained, giveUp := context.WithCancel(context.WithValue(context.Background(), valueKey{}, "v"))
		t.Cleanup(giveUp)
		return &messageContext{drained: drained}, giveUp
	}
	ended := func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	t.Run("waited for before its end", func(t *testing.T) {
		ctx, _ := newContext()
		assert.Equal(t, "v", ctx.Value(valueKey{}))
		assert.False(t, ended(ctx))
		assert.NoError(t, ctx.Err())
		assert.NoError(t, context.Cause(ctx))
		assert.Equal(t, "v", ctx.Value(valueKey{}))
		ctx.end()
		assert.True(t, ended(ctx))
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		assert.ErrorIs(t, context.Cause(ctx), context.Canceled)
	})
	t.Run("waited for after its end", func(t *testing.T) {
		ctx, _ := newContext()
		ctx.end()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		assert.ErrorIs(t, context.Cause(ctx), context.Canceled)
		assert.True(t, ended(ctx))
		ctx.end()
	})
	t.Run("ends with the drain", func(t *testing.T) {
		for _, waited := range []bool{false, true} {
			ctx, giveUp := newContext()
			if waited {
				assert.False(t, ended(ctx))
			}
			giveUp()
			assert.ErrorIs(t, ctx.Err(), context.Canceled)
			assert.True(t, ended(ctx))
			ctx.end()
		}
	})
	t.Run("derived from", func(t *testing.T) {
		ctx, _ := newContext()
		before := goleak.IgnoreCurrent()
		child, cancel := context.WithCancelCause(context.WithValue(ctx, valueKey{}, "w"))
		defer cancel(nil)
		assert.NoError(t, goleak.Find(before), "deriving takes a goroutine")
		stopped := make(chan struct{})
		context.AfterFunc(ctx, func() { close(stopped) })
		ctx.end()
		<-stopped
		assert.True(t, ended(child))
		assert.ErrorIs(t, context.Cause(child), context.Canceled)
	})
}
