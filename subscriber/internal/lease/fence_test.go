package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

const testTTL = 5 * time.Second

// A term ends when either clock says so, and stays over.
func TestFence(t *testing.T) {
	tests := map[string]struct {
		do   func(f *Fence, jump func(time.Duration))
		want time.Duration // when it is over; 0: at once
	}{
		"not renewed": {func(*Fence, func(time.Duration)) {}, testTTL},
		"renewed": {func(f *Fence, _ func(time.Duration)) {
			f.Renew(time.Now().Add(-time.Second)) // when the request was sent
		}, testTTL + 2*time.Second},
		"lost":                           {func(f *Fence, _ func(time.Duration)) { f.End(ErrLost) }, 0},
		"the wall clock jumps ahead":     {func(_ *Fence, jump func(time.Duration)) { jump(time.Hour) }, 0},
		"the wall clock jumps by little": {func(_ *Fence, jump func(time.Duration)) { jump(time.Second) }, testTTL - time.Second},
		"the wall clock jumps back":      {func(_ *Fence, jump func(time.Duration)) { jump(-time.Hour) }, testTTL},
	}
	const after = 3 * time.Second // when it is done
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var jumped time.Duration
				began := time.Now()
				f := New(testTTL, began, func() time.Time { return time.Now().Add(jumped) }, nil)
				defer f.End(context.Canceled)
				time.Sleep(after)
				if f.Err() != nil {
					t.Fatalf("over after %v", after)
				}
				tt.do(f, func(d time.Duration) { jumped = d })
				over := max(tt.want, after)
				if tt.want > after {
					time.Sleep(tt.want - after - time.Nanosecond)
					if f.Err() != nil {
						t.Errorf("over before %v", over)
					}
					time.Sleep(time.Nanosecond)
				}
				if f.Err() == nil {
					t.Fatalf("not over after %v", over)
				}
				select {
				case <-f.Done():
				default:
					t.Error("Done is not closed")
				}
				jumped = 0
				if f.Renew(time.Now()); f.Err() == nil {
					t.Error("it was renewed although it was over")
				}
			})
		})
	}
}

// The timer alone ends a term: nothing has to look at the clock.
func TestFenceTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f := New(testTTL, began, time.Now, nil)
		go f.Watch()
		defer f.End(context.Canceled)
		time.Sleep(time.Second)
		f.Renew(time.Now())
		<-f.Done()
		if got, want := time.Since(began), testTTL+time.Second; got != want {
			t.Errorf("over after %v, want %v", got, want)
		}
	})
}

// What derives from a fence ends as soon as anybody asks it after its time; what is guarded asks it.
func TestContextsOfATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var jumped time.Duration
		f := New(testTTL, time.Now(), func() time.Time { return time.Now().Add(jumped) }, nil)
		defer f.End(context.Canceled)
		request, stop := context.WithTimeout(f, time.Hour)
		defer stop()
		message, giveUp := In(request, context.WithValue(t.Context(), key{}, 1))
		defer giveUp()
		handling, end := context.WithCancel(context.WithValue(message, key{}, 2))
		defer end()
		for name, ctx := range map[string]context.Context{"request": Guard(request), "message": message, "handling": Guard(handling)} {
			if err := ctx.Err(); err != nil || Of(ctx) != f {
				t.Errorf("%s: Err = %v, of the fence: %v", name, err, Of(ctx) == f)
			}
		}
		if message.Value(key{}) != 1 {
			t.Error("a message does not have the values of its subscription")
		}
		jumped = time.Hour
		testkit.ErrorIs(t, Guard(handling).Err(), context.Canceled)
		<-request.Done()
		<-message.Done()
		<-handling.Done()
	})
}

// A guarded context ends by itself as well. Without a lease contexts are as they are.
func TestContextsThatEndThemselves(t *testing.T) {
	f := New(time.Hour, time.Now(), time.Now, nil)
	defer f.End(context.Canceled)
	for _, term := range []context.Context{f, t.Context()} {
		message, giveUp := In(term, t.Context())
		request, stop := context.WithCancel(term)
		giveUp()
		stop()
		if message.Err() == nil || Guard(request).Err() == nil || term.Err() != nil {
			t.Errorf("%v, %v, %v; want that those end, and not the term", message.Err(), Guard(request).Err(), term.Err())
		}
	}
	if Of(t.Context()) != nil || Guard(t.Context()) != t.Context() || Of(t.Context()).Err() != nil {
		t.Error("there is a fence without a lease")
	}
}
