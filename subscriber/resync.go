package subscriber

import (
	"slices"
	"time"
)

const (
	// resyncEvery, and resyncCost for each message that was left, is how often the stream is
	// reconnected at most to get again what was left: so reconnects cost the others little.
	resyncEvery = 5 * time.Second
	resyncCost  = 500 * time.Microsecond
)

// partly is what some have left with the service and others still have.
type partly struct {
	d  *delivery
	by []*subscription
}

// leftBy records that sub has left d, which is open. s.mu is held.
func (s *Subscriber) leftBy(d *delivery, sub *subscription) {
	if len(d.keys) > 0 { // else it never comes again
		id := d.identity()
		s.partly[id] = partly{d, append(s.partly[id].by, sub)}
	}
}

// offerAgain gives what is redelivered, and still open, to those that have left it: for the
// service, this was the redelivery that they wait for. s.mu is held.
func (s *Subscriber) offerAgain(id messageKey) {
	p, some := s.partly[id]
	if !some {
		return
	}
	d, still := p.d, p.by[:0]
	for _, sub := range p.by {
		if sub.stopped || !s.takes(sub, d) {
			still = append(still, sub)
			continue
		}
		d.since = time.Now()
		d.waits = append(d.waits, sub)
		s.enqueue(sub, d)
	}
	s.relink(d)
	if len(still) > 0 {
		s.partly[id] = partly{d, still}
		return
	}
	d.left = false
	delete(s.partly, id)
}

// resyncs decides when the stream is reconnected for what was left. It is a state machine
// without goroutine, clock or lock, guarded by Subscriber.mu.
type resyncs struct {
	limit time.Duration // in which there is one in any case
	last  time.Time     // the latest one; zero before the first
}

// due returns when there may be one for so many messages. One that can wait leaves the next turn
// to others.
func (r *resyncs) due(left int, canWait bool) time.Time {
	every := min(resyncEvery+time.Duration(left)*resyncCost, max(r.limit, resyncEvery))
	switch {
	case r.last.IsZero():
		return time.Time{}
	case canWait:
		return r.last.Add(2 * every)
	}
	return r.last.Add(every)
}

// requestLeft asks for what was left with the service: the fault that it was left for has
// ended, or, if it can wait, part of it may have. One reconnect brings everything. s.mu is held.
func (s *Subscriber) requestLeft(now time.Time, canWait bool) {
	s.resyncFor = s.streamState.Connects
	at := s.resyncs.due(s.left, canWait)
	switch wait := at.Sub(now); {
	case wait <= 0:
		s.resync(now)
	case s.resyncTimer == nil:
		s.resyncAt = at
		s.resyncTimer = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if now := time.Now(); s.resyncTimer != nil && !now.Before(s.resyncAt) {
				s.resync(now)
			}
		})
	case at.Before(s.resyncAt):
		s.resyncAt = at
		s.resyncTimer.Reset(wait)
	}
}

// resync reconnects for what was left, unless the stream has been reconnected since that was
// asked for. s.mu is held.
func (s *Subscriber) resync(now time.Time) {
	if s.resyncTimer != nil {
		s.resyncTimer.Stop()
		s.resyncTimer = nil
	}
	if s.resyncFor == s.streamState.Connects && s.ctx.Err() == nil {
		s.resyncs.last = now
		s.recallLocked()
	}
}

// checkLeft asks for what was left even though the fault goes on: there may be room for some of
// it. s.mu is held.
func (s *Subscriber) checkLeft() {
	if s.leftTimer == nil {
		s.leftTimer = time.AfterFunc(s.cfg.Payload.RefreshEvery, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.leftTimer = nil
			if s.ctx.Err() == nil && slices.ContainsFunc(s.subscriptions, func(sub *subscription) bool { return sub.overflown }) {
				s.requestLeft(time.Now(), false)
			}
		})
	}
}
