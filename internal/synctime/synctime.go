// Package synctime knows what a broker has synced that syncs at intervals.
package synctime

import (
	"sync"
	"time"

	"github.com/agrimill/agrimill/sinks"
)

// maxGaps is how many restarts are told apart.
const maxGaps = 16

// Horizon is up to when what a broker has acknowledged is synced. The zero value knows of no answer. It is a state machine without
// a clock, safe for concurrent use.
type Horizon struct {
	mu    sync.Mutex
	alive time.Time // the broker, asked then, ran on; zero before the first answer
	gaps  []gap     // the oldest first
}

// gap is a time of which what was acknowledged may be lost.
type gap struct{ after, until time.Time }

// Alive takes in that the broker, asked at asked, has answered, and has run on since the last answer.
func (h *Horizon) Alive(asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alive = asked
}

// Restarted takes in that the broker, as it is known at now, has not run on since the last answer. It had synced what it had acknowledged
// until the time delay before that.
func (h *Horizon) Restarted(now time.Time, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := gap{until: now}
	if !h.alive.IsZero() {
		g.after = h.alive.Add(-delay)
	}
	h.gaps = append(h.gaps, g)
	if len(h.gaps) > maxGaps {
		h.gaps[1].after = h.gaps[0].after
		h.gaps = h.gaps[1:]
	}
}

// Survives is that of [sinks.Syncing], with what Synced.After returns.
func (h *Horizon) Survives(began, acked time.Time, delay time.Duration) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.gaps {
		if acked.After(g.after) && !began.After(g.until) {
			return false, sinks.ErrPossiblyLost
		}
	}
	return h.alive.Sub(acked) >= delay, nil
}
