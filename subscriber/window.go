package subscriber

import (
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/duequeue"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// stallAfter is how long a key may go without finishing anything before it counts as
// stalled: what it has beyond its share of the window then makes room for others.
const stallAfter = time.Second

// shares decides what a subscription with stalled keys keeps in the window. It is a state
// machine without goroutine, clock or lock, guarded by Subscriber.mu.
//
// Of a stalled key, the messages above its share are left with the service, and so is all that
// comes later for it, in this subscription only, until the next connection brings everything
// again in order.
type shares struct {
	// shut has the keys that take nothing until the next connection because they stalled, left
	// those that do because something of them was left for another reason.
	shut, left keySet
}

// stalled reports whether q has finished nothing for too long.
func (q *keyQueue) stalled(now time.Time) bool { return now.Sub(q.since) >= stallAfter }

// trim removes from stalled queues what is above their share: together they keep half of a
// window of size messages. It returns what it removed, which is left with the service.
func (h *shares) trim(now time.Time, queues map[string]*keyQueue, size int) (left []*delivery) {
	n := 0
	for _, q := range queues {
		if q.stalled(now) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	share := max(1, size/2/n)
	for key, q := range queues {
		if len(q.items) <= share || !q.stalled(now) {
			continue
		}
		h.shut.add(key)
		left = append(left, q.cut(share)...)
	}
	return left
}

// cut removes from q what is behind the first n, except what has been delivered and what is never
// redelivered.
func (q *keyQueue) cut(n int) (left []*delivery) {
	n = min(max(n, q.open), len(q.items))
	behind := slices.Clone(q.items[n:])
	clear(q.items[n:])
	q.items = q.items[:n]
	for _, d := range behind {
		if len(d.keys) > 0 {
			delete(q.resume, d)
			left = append(left, d)
		} else {
			q.items = append(q.items, d)
		}
	}
	return left
}

// takes reports whether messages of key are taken.
func (h *shares) takes(key string) bool { return !h.shut.has(key) && !h.left.has(key) }

// ended reports whether key, of which nothing is open any longer, was shut because it stalled.
func (h *shares) ended(key string) bool { return h.shut.has(key) }

// connected is called when everything that was left comes again, in order.
func (h *shares) connected() {
	h.shut.clear()
	h.left.clear()
}

// parked is a message that waits to be redelivered after a nack. It holds neither a goroutine nor
// a place in the window.
type parked struct {
	sub *subscription
	job job
}

// park puts j aside until its message is due again and reports whether it did: it does not if
// the subscription has ended, or if as many are parked as fit into the window. s.mu is held.
func (s *Subscriber) park(now time.Time, sub *subscription, j job) bool {
	d := j.d
	if sub.stopped || s.parked.Len() >= s.cfg.MaxInFlight ||
		d.parked == 0 && s.parkedBytes > 0 && s.parkedBytes+d.bytes > s.cfg.MaxInFlightBytes {
		delete(sub.nacked, d)
		return false
	}
	if sub.nacked == nil {
		sub.nacked = make(map[*delivery]time.Time)
	}
	if sub.nacked[d].IsZero() {
		sub.nacked[d] = now
	}
	policy := backoff.Policy{Initial: s.cfg.Nack.Initial, Max: s.cfg.Nack.Max}
	wait := policy.Delay(j.nacks)
	j.nacks++
	j.again = true
	e := &duequeue.Entry[parked]{}
	if until := j.wait; until != nil {
		wait, j.nacks = until.Delay(), 0 // nothing has failed
		if !until.OnEnd(func() { s.wakeParked(e) }) {
			wait = 0
		}
	} else {
		j.kept = nil
	}
	e.Item = parked{sub, j}
	s.parked.Put(e, now.Add(wait))
	if d.parked == 0 {
		s.parkedBytes += d.bytes
	}
	d.parked++
	if d.parked == len(d.waits) {
		s.rejoin(d)
	}
	s.relink(d)
	s.scheduleParked(now)
	return true
}

// overflow records that a nacked message is left because as many are parked as fit, unless sub
// has ended. s.mu is held.
func (s *Subscriber) overflow(sub *subscription) bool {
	if sub.stopped {
		return false
	}
	s.left++
	sub.overflown = true
	s.checkLeft()
	return true
}

// unpark takes e from what is parked. s.mu is held.
func (s *Subscriber) unpark(e *duequeue.Entry[parked]) {
	e.Remove()
	d := e.Item.job.d
	if d.parked--; d.parked == 0 {
		s.parkedBytes -= d.bytes
	}
	d.since = time.Now()
	s.relink(d)
}

// unparked is called when a message is finished. If it had been parked, what it waited for may
// be over, so what was left for lack of room is asked for. That can wait if there is next to no
// room for it yet: most of it would be left again, and could then not be asked for at once when
// all is well. s.mu is held.
func (s *Subscriber) unparked(now time.Time, sub *subscription, j job) {
	delete(sub.nacked, j.d)
	if !j.again || !sub.overflown || sub.stopped {
		return
	}
	room := 4*s.parked.Len() <= 3*s.cfg.MaxInFlight && s.parkedBytes <= s.cfg.MaxInFlightBytes/4*3
	sub.overflown = !room
	s.requestLeft(now, !room)
}

// scheduleParked sets the timer of what is parked. s.mu is held.
func (s *Subscriber) scheduleParked(now time.Time) {
	first := s.parked.First()
	switch {
	case first == nil:
	case s.parkedTimer == nil:
		s.parkedTimer = time.AfterFunc(first.At().Sub(now), s.redeliver)
	default:
		s.parkedTimer.Reset(first.At().Sub(now))
	}
}

// wakeParked makes e due, if it is parked still.
func (s *Subscriber) wakeParked(e *duequeue.Entry[parked]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); e.Queued() {
		s.parked.Put(e, now)
		s.scheduleParked(now)
	}
}

// redeliver starts the delivery of what is due.
func (s *Subscriber) redeliver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for e := s.parked.Due(now); e != nil; e = s.parked.Due(now) {
		s.unpark(e)
		e.Item.sub.pool.Push(e.Item.job)
	}
	s.scheduleParked(now)
}

// endParked gives back what sub, which has ended, has parked, and what is behind it. The caller
// must release the result. s.mu is held.
func (s *Subscriber) endParked(sub *subscription) (ended []*delivery) {
	now := time.Now()
	for _, e := range slices.Collect(s.parked.All()) { // which must not change while it is read
		if e.Item.sub != sub {
			continue
		}
		s.unpark(e)
		s.notRedelivered(sub, e.Item.job)
		items := []*delivery{e.Item.job.d}
		if q := e.Item.job.q; q != nil {
			items = q.items
			delete(sub.queues, e.Item.job.key)
		}
		for _, d := range items {
			if s.finish(now, sub, d, msgctx.Left) {
				ended = append(ended, d)
			}
		}
	}
	return ended
}

// notRedelivered counts j if it was to wait and sub ended first. s.mu is held.
func (s *Subscriber) notRedelivered(sub *subscription, j job) {
	if sub.stopped && j.wait != nil {
		s.stats.notRedelivered.Add(1)
	}
}

// relink brings the place of d in the window up to date: it has one unless everyone who has it
// has parked it, or it is set apart. s.mu is held.
func (s *Subscriber) relink(d *delivery) {
	switch holds := !d.apart && d.parked < len(d.waits); {
	case d.linked && !holds:
		s.unlink(d)
	case !d.linked && holds:
		s.linkAfter(s.lastBefore(d.arrived), d)
	}
}

// lastBefore returns the last open delivery that arrived before the time; nil without one. What
// was parked is old, so it looks from the front. s.mu is held.
func (s *Subscriber) lastBefore(arrived time.Time) (last *delivery) {
	for d := s.first; d != nil && d.arrived.Before(arrived); d = d.next {
		last = d
	}
	return last
}

// shut leaves with the service what is behind the head of q, and what comes later for its key.
// The caller must release the result. s.mu is held.
func (s *Subscriber) shut(now time.Time, sub *subscription, key string, q *keyQueue) (closed []*delivery) {
	sub.shares.left.add(key)
	for _, d := range q.cut(1) {
		s.left++
		if s.finish(now, sub, d, msgctx.Left) {
			closed = append(closed, d)
		}
	}
	return closed
}

// makeRoom leaves with the service what stalled keys have above their share. The caller must
// release the result. s.mu is held.
func (s *Subscriber) makeRoom(now time.Time) (left []*delivery) {
	for _, sub := range s.subscriptions {
		for _, d := range sub.shares.trim(now, sub.queues, s.cfg.MaxInFlight) {
			s.left++
			if s.finish(now, sub, d, msgctx.Left) {
				left = append(left, d)
			}
		}
	}
	return left
}

// checkStalled wakes what waits for room when a key may have stalled meanwhile. s.mu is held.
func (s *Subscriber) checkStalled() {
	if s.stallCheck {
		return
	}
	s.stallCheck = true
	time.AfterFunc(stallAfter/4, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stallCheck = false
		s.wakeRoom()
		s.reopen(time.Now())
	})
}
