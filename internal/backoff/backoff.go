// Package backoff computes capped exponential backoff with jitter.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy determines how long to wait between attempts: before retry n (from 0) a time chosen uniformly from the upper half
// of min(Max, Initial·2ⁿ).
type Policy struct {
	// Initial is the first wait before jitter. It must be positive.
	Initial time.Duration
	// Max caps every wait. It must not be less than Initial.
	Max time.Duration
}

// Delay returns the wait before retry n, counted from 0. Negative n counts as 0.
func (p Policy) Delay(n int) time.Duration {
	d := p.Initial
	for range n {
		if d >= p.Max/2 {
			d = p.Max
			break
		}
		d *= 2
	}
	d = min(d, p.Max)
	half := d / 2
	return half + rand.N(d-half+1)
}

// Wait blocks for Delay(n), or until ctx ends, and then returns ctx.Err().
func (p Policy) Wait(ctx context.Context, n int) error { return Sleep(ctx, p.Delay(n)) }

// Slot is what a caller holds during each attempt of a call, but not while the call waits for the next one.
type Slot interface {
	// Take waits for the slot, or until ctx ends, and then returns ctx.Err().
	Take(ctx context.Context) error
	// Free gives it to others. It may be called without the slot.
	Free()
}

type slotKey struct{}

// WithSlot returns the context of a call that is made with slot, which its caller has taken.
func WithSlot(ctx context.Context, slot Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, slot)
}

// SlotOf returns the slot of a call. A call without one has one that costs nothing.
func SlotOf(ctx context.Context) Slot {
	if slot, ok := ctx.Value(slotKey{}).(Slot); ok {
		return slot
	}
	return noSlot{}
}

type noSlot struct{}

func (noSlot) Take(ctx context.Context) error { return ctx.Err() }
func (noSlot) Free()                          {}

// Sleep blocks for d, or until ctx ends, and then returns ctx.Err().
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
