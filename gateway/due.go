package gateway

import (
	"context"
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

// isDue reports whether the call is to be made now. If it is to be made later, it lowers wait to the time until then.
func (j *job) isDue(now time.Time, wait *time.Duration) bool {
	if !j.pending || j.busy {
		return false
	}
	left := j.due.Sub(now)
	if left > 0 {
		*wait = min(*wait, left)
	}
	return left <= 0
}

// begin marks the call as in progress.
func (j *job) begin() { j.busy, j.pending = true, false }

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
