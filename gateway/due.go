package gateway

import (
	"context"
	"sync"
	"time"
)

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
