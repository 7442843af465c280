package subscriber

import (
	"context"
	"slices"
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
	s.mu.Lock()
	s.draining = true
	s.holds++ // never released
	stopRun := s.stopRun
	s.mu.Unlock()
	if s.leased != nil {
		s.leased.drain(ctx)
		return
	}
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

// drain is [Subscriber.Drain].
func (l *leased) drain(ctx context.Context) {
	l.mu.Lock()
	worker := l.worker
	l.mu.Unlock()
	if worker != nil {
		worker.Drain(ctx)
	}
}

// moves reports whether anything that was taken in gets on: it is not only waiting for an attempt that
// is due later than due, or behind a message that is.
func (s *Subscriber) moves(due time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running || s.untilDue(due) {
		return true
	}
	parked := make(map[*delivery][]*subscription)
	for e := range s.parked.All() {
		parked[e.Item.job.d] = append(parked[e.Item.job.d], e.Item.sub)
	}
	moves := func(sub *subscription, d *delivery) bool {
		return !sub.stopped && !slices.Contains(parked[d], sub) && !d.waitsForPayload()
	}
	if s.cfg.Order == Unordered {
		some := false
		s.apart.each(s.first, func(d *delivery) {
			some = some || slices.ContainsFunc(d.waits, func(sub *subscription) bool { return moves(sub, d) })
		})
		return some
	}
	for _, sub := range s.subscriptions {
		for _, q := range sub.queues {
			if moves(sub, q.items[0]) {
				return true
			}
		}
	}
	return false
}

// untilDue reports whether an attempt is due at the latest then, as long as that is not over. s.mu is held.
func (s *Subscriber) untilDue(due time.Time) bool {
	if !time.Now().Before(due) {
		return false
	}
	if first := s.parked.First(); first != nil && first.DueBy(due) {
		return true
	}
	first := s.downloads.failing.First()
	return first != nil && first.DueBy(due)
}

// waitsForPayload reports whether the download of d waits for another attempt, or for a fresh URI.
// Subscriber.mu is held.
func (d *delivery) waitsForPayload() bool {
	p := d.payload
	if p == nil {
		return false
	}
	return p.expired.Load() || p.download != nil && p.download.failures > 0 && p.download.place.Queued()
}
