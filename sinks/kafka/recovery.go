package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/wakeup"
)

const (
	// watchEvery is how often the sink looks in an outage whether the cluster is back.
	watchEvery = time.Second
	// maxTold is how often it tells that it is, when messages still cannot be stored:
	// a broker that has just started is not ready for everything at once.
	maxTold = 10
)

// recovery tells who waits when the cluster is back after an outage.
type recovery struct {
	recovered wakeup.Signal
	watching  atomic.Bool  // a goroutine looks whether the cluster is back
	unreached atomic.Bool  // a message failed since without an answer
	told      atomic.Int32 // how often it was told since the last success
	watchers  sync.WaitGroup
}

// watch looks until the cluster is back, in the background. If it has been there all
// the time, which an error without an answer disproves, it signals nothing: something else fails.
func (r *recovery) watch(background context.Context, look func() error) {
	if !r.watching.CompareAndSwap(false, true) {
		return
	}
	r.watchers.Go(func() { // ends with background, and a look that is under way
		told := r.told.Load()
		away := told > 0 // a moment ago, and it may not be all there yet
		if away && backoff.Sleep(background, watchEvery) != nil {
			return
		}
		for look() != nil {
			away = true
			if backoff.Sleep(background, watchEvery) != nil {
				return
			}
		}
		r.watching.Store(false) // first: who is woken and fails starts another one
		if (r.unreached.Swap(false) || away) && told < maxTold {
			r.told.Add(1)
			r.recovered.Raise()
		}
	})
}
