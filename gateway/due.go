package gateway

import (
	"context"
	"iter"
	"sync"
	"time"
)

// job is a call that is made when it is due, and again after a failure.
type job struct {
	pending  bool // the call is to be made at due
	due      time.Time
	failures int
	busy     bool // the call is in progress
}

// begin marks the call as in progress.
func (j *job) begin() { j.busy, j.pending = true, false }

func (j *job) state() *job { return j }

// beginNext returns a call that is due, marked as in progress, or none and how long to wait. Those with the fewest
// failures go first, so that no number of failing ones delays one that works.
func beginNext[J interface{ state() *job }](jobs iter.Seq[J], now time.Time) (next J, found bool, wait time.Duration) {
	wait = maxIdle
	for candidate := range jobs {
		j := candidate.state()
		switch left := j.due.Sub(now); {
		case !j.pending || j.busy:
		case left > 0:
			wait = min(wait, left)
		case !found || j.failures < next.state().failures:
			next, found = candidate, true
		}
	}
	if found {
		next.state().begin()
	}
	return next, found, wait
}

// maxIdle is how long runDue waits when nothing is pending: work that comes wakes it.
const maxIdle = time.Hour

// runDue does the work that next returns, up to limit pieces at a time, until ctx ends, and then waits for what
// it has begun. When nothing is due, next returns nil and how long to wait; wake ends that wait.
func runDue(ctx context.Context, limit int, wake <-chan struct{}, next func(now time.Time) (work func(), wait time.Duration)) {
	slots := make(chan struct{}, limit)
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		work, wait := next(time.Now())
		if work != nil {
			wg.Go(func() { // ends with its call, which ends with ctx
				defer func() { <-slots }()
				work()
			})
			continue
		}
		<-slots
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
	}
}
