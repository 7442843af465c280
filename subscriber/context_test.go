package subscriber

import (
	"context"
	"errors"
	"testing"

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
	want := func(t *testing.T, ctx context.Context, want error) {
		t.Helper()
		if err, cause := ctx.Err(), context.Cause(ctx); !errors.Is(err, want) || !errors.Is(cause, want) {
			t.Errorf("Err = %v because of %v, want %v", err, cause, want)
		}
		select {
		case <-ctx.Done():
			if want == nil {
				t.Error("it has ended")
			}
		default:
			if want != nil {
				t.Error("it has not ended")
			}
		}
	}
	for name, waited := range map[string]bool{"waited for before its end": true, "waited for after its end": false} {
		t.Run(name, func(t *testing.T) {
			for _, drain := range []bool{false, true} {
				ctx, giveUp := newContext()
				if waited {
					want(t, ctx, nil)
				}
				if got := ctx.Value(valueKey{}); got != "v" {
					t.Errorf("Value = %v, want v", got)
				}
				if drain {
					giveUp()
				} else {
					ctx.end()
				}
				want(t, ctx, context.Canceled)
				ctx.end() // again
			}
		})
	}
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
		want(t, child, context.Canceled)
	})
}
