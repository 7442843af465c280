package subscriber

import (
	"context"
	"errors"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"go.uber.org/goleak"
)

type valueKey struct{}

// TestMessageContext checks that the context of a message is like one of the
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
		if got := ctx.Value(valueKey{}); got != "v" {
			t.Errorf("Value = %v, want v", got)
		}
		if ended(ctx) {
			t.Error("ended(ctx) = true, want false")
		}
		testkit.NoError(t, ctx.Err())
		testkit.NoError(t, context.Cause(ctx))
		if got := ctx.Value(valueKey{}); got != "v" {
			t.Errorf("Value = %v, want v", got)
		}
		ctx.end()
		if !ended(ctx) {
			t.Error("ended(ctx) = false, want true")
		}
		if err := ctx.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("ctx.Err() = %v, want context.Canceled", err)
		}
		if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("context.Cause(ctx) = %v, want context.Canceled", err)
		}
	})
	t.Run("waited for after its end", func(t *testing.T) {
		ctx, _ := newContext()
		ctx.end()
		if err := ctx.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("ctx.Err() = %v, want context.Canceled", err)
		}
		if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("context.Cause(ctx) = %v, want context.Canceled", err)
		}
		if !ended(ctx) {
			t.Error("ended(ctx) = false, want true")
		}
		ctx.end()
	})
	t.Run("ends with the drain", func(t *testing.T) {
		for _, waited := range []bool{false, true} {
			ctx, giveUp := newContext()
			if waited {
				if ended(ctx) {
					t.Error("ended(ctx) = true, want false")
				}
			}
			giveUp()
			if err := ctx.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("ctx.Err() = %v, want context.Canceled", err)
			}
			if !ended(ctx) {
				t.Error("ended(ctx) = false, want true")
			}
			ctx.end()
		}
	})
	t.Run("derived from", func(t *testing.T) {
		ctx, _ := newContext()
		before := goleak.IgnoreCurrent()
		child, cancel := context.WithCancelCause(context.WithValue(ctx, valueKey{}, "w"))
		defer cancel(nil)
		if err := goleak.Find(before); err != nil {
			t.Errorf("%v: deriving takes a goroutine", err)
		}
		stopped := make(chan struct{})
		context.AfterFunc(ctx, func() { close(stopped) })
		ctx.end()
		<-stopped
		if !ended(child) {
			t.Error("ended(child) = false, want true")
		}
		if err := context.Cause(child); !errors.Is(err, context.Canceled) {
			t.Errorf("context.Cause(child) = %v, want context.Canceled", err)
		}
	})
}
