// Package lease has the context of a term, in which this process holds a lease.
package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

// ErrLost is subscriber.ErrLeaseLost.
var ErrLost = errors.New("subscriber: the lease is lost")

// ErrGivenUp is why a fence ends so that another process gets the lease.
var ErrGivenUp = errors.New("the lease is given up")

// Fence is the context of a term. Everything that works in the term derives from it. Its Err looks at the clock,
// because a process that was stopped and goes on may get there before a timer does: who asks it before something is
// started starts nothing after the term. A nil Fence is never over.
type Fence struct {
	context.Context
	end context.CancelCauseFunc
	ttl time.Duration
	// wall returns the time of the wall clock. It may jump, and the monotonic clock may stop
	// while the machine is suspended: whichever says so first ends the term.
	wall    func() time.Time
	renewed atomic.Pointer[time.Time]
	leave   func()
}

// New returns the fence of a term that was renewed then. It has to be ended; Watch has to run. leave is called by Leave.
func New(ttl time.Duration, renewed time.Time, wall func() time.Time, leave func()) *Fence {
	ctx, end := context.WithCancelCause(context.Background())
	f := &Fence{end: end, ttl: ttl, wall: wall, leave: leave}
	f.Context = context.WithValue(ctx, fenceKey{}, f)
	f.renewed.Store(&renewed)
	return f
}

// Watch ends the term in time, whether or not anybody looks.
func (f *Fence) Watch() {
	for f.Err() == nil {
		_ = backoff.Sleep(f.Context, time.Until(f.Until())) // Err says the rest
	}
}

// Renew extends the term unless it is over.
func (f *Fence) Renew(renewed time.Time) {
	if f.Err() == nil {
		f.renewed.Store(&renewed)
	}
}

// Renewed is when the term was renewed.
func (f *Fence) Renewed() time.Time { return *f.renewed.Load() }

// Until is when the term ends unless it is renewed.
func (f *Fence) Until() time.Time { return f.Renewed().Add(f.ttl) }

// Err implements context.Context. What derives from f has ended when it is not nil.
func (f *Fence) Err() error {
	if f == nil {
		return nil
	}
	if renewed := f.Renewed(); time.Since(renewed) >= f.ttl || f.wall().Sub(renewed.Round(0)) >= f.ttl {
		f.end(ErrLost)
	}
	return f.Context.Err()
}

// Leave says that the worker has nothing left to do: the subscriptions end. The term lasts until it is closed.
func (f *Fence) Leave() {
	if f != nil {
		f.leave()
	}
}

// End ends the term for this cause.
func (f *Fence) End(cause error) { f.end(cause) }

// fenceKey is the key of a fence in the values of what derives from it.
type fenceKey struct{}

// Of returns the fence that ctx derives from; nil without one.
func Of(ctx context.Context) *Fence {
	f, _ := ctx.Value(fenceKey{}).(*Fence)
	return f
}

// guarded looks at the clock whenever it is asked for its error.
type guarded struct {
	context.Context
	fence *Fence
}

// Err implements context.Context.
func (g guarded) Err() error {
	if err := g.fence.Err(); err != nil {
		return err
	}
	return g.Context.Err()
}

// Guard returns ctx with an Err that asks the fence that it derives from, for others who look at it; without one, ctx.
func Guard(ctx context.Context) context.Context {
	if f := Of(ctx); f != nil {
		return guarded{ctx, f}
	}
	return ctx
}

// In returns a context with the values of ctx that ends with it, with the fence that term derives from, or by cancel, which
// has to be called.
func In(term, ctx context.Context) (context.Context, context.CancelFunc) {
	f := Of(term)
	if f == nil {
		return context.WithCancel(ctx)
	}
	ctx, end := context.WithCancel(context.WithValue(ctx, fenceKey{}, f))
	stop := context.AfterFunc(f, end)
	return Guard(ctx), func() { stop(); end() }
}
