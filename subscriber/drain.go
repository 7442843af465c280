package subscriber

import (
	"context"
	"time"
)

const (
	// drainDue: Drain waits for another attempt that is due so soon after it began, and for no later one.
	drainDue = time.Second
	// drainLook is how often Drain looks whether it is done.
	drainLook = 5 * time.Millisecond
)

// Drain closes the event stream and goes on delivering what has been taken in, payloads that are being
// downloaded included. It returns when all of it is acked, when the rest only waits for another attempt
// or for its file, or when ctx ends. Close or the end of the subscriptions has to follow: no stream is
// opened again. The caller goes on receiving and acking meanwhile.
func (s *Subscriber) Drain(ctx context.Context) {
	if h := s.holder; h != nil {
		h.mu.Lock()
		h.drained = true // no other term begins
		h.mu.Unlock()
		s = s.working()
	}
	s.mu.Lock()
	s.loop.start.holds++ // never released
	s.loop.draining = true
	stopRun := s.loop.stop
	s.mu.Unlock()
	if stopRun != nil {
		stopRun()
	}
	due := time.Now().Add(drainDue)
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for s.moves(due) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// moves reports whether anything that was taken in gets on: it is not only waiting for an attempt that
// is due later than due, or behind a message that is.
func (s *Subscriber) moves(due time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	soon := due.Sub(s.clock.began)
	if now := s.now(); now >= soon {
		soon = -1
	}
	first := s.payloads.downloads.failing.First()
	return s.loop.running || s.core.Moves(soon) || soon >= 0 && first != nil && first.DueBy(due)
}
