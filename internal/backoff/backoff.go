// Package backoff computes jittered, capped, exponential waiting times.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy says how long to wait between tries. The wait before the n-th retry
// (n from 0) is drawn evenly from the upper half of min(Max, Min·2ⁿ), so that
// many waiters spread without any of them coming back at once.
type Policy struct {
	// Min is the first, unjittered wait. It must be above zero.
	Min time.Duration
	// Max caps every wait. It must not be below Min.
	Max time.Duration
}

// Delay returns the wait before retry n, counted from 0. Negative n counts as 0.
func (p Policy) Delay(n int) time.Duration {
	d := p.Min
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
func (p Policy) Wait(ctx context.Context, n int) error {
	return Sleep(ctx, p.Delay(n))
}

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
