package subscriber

import (
	"slices"
	"time"
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
	d.left, d.aside = false, false
	delete(s.partly, id)
}

// requestLeft asks for what was left with the service: the fault that it was left for has
// ended, or, if it can wait, part of it may have. One reconnect brings everything. s.mu is held.
func (s *Subscriber) requestLeft(now time.Time, canWait bool) {
	s.connection.wantLeft(now, s.left, canWait)
	s.pumpConnection(now)
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
