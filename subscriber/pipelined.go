package subscriber

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// laneWork is the work of one goroutine on the queue of a key whose messages are pipelined.
type laneWork struct {
	*Subscriber
	sub  *subscription
	job  job
	q    *keyQueue
	lane *lane

	next   *delivery   // the first that is not in the lane, if that takes one; nil: none
	letter *flight     // next, ready to be delivered; nil if it is not
	lost   bool        // next cannot be delivered
	left   bool        // something was left for want of room
	ended  bool        // the queue is empty and forgotten
	done   []*delivery // to be released
}

// workLane delivers the contents of j.q, each one as soon as the one before it has its place, until
// all are done or the first one is parked.
func (s *Subscriber) workLane(sub *subscription, j job) {
	w := &laneWork{Subscriber: s, sub: sub, job: j, q: j.q, lane: newLane()}
	s.mu.Lock()
	w.q.lane = w.lane
	if j.again {
		w.lane.careful = true
		before := w.q.resume[j.d]
		w.q.keep(j.d, resumed{kept: j.kept, nacks: j.nacks, overtaken: before.overtaken})
	}
	w.look()
	s.mu.Unlock()
	for !w.ended {
		w.wait()
		if w.settled() {
			return
		}
	}
}

// keep notes what is known of d for its next delivery. Subscriber.mu is held.
func (q *keyQueue) keep(d *delivery, r resumed) {
	if q.resume == nil {
		q.resume = make(map[*delivery]resumed)
	}
	q.resume[d] = r
}

// look brings next up to date. s.mu is held.
func (w *laneWork) look() {
	next := (*delivery)(nil)
	if n := len(w.lane.flights); n < len(w.q.items) && w.lane.takes() && w.mayOpen(n) {
		next = w.q.items[n]
		w.setOpen(n + 1) // nobody takes it away now
	} else {
		w.setOpen(n)
	}
	if next != w.next {
		w.next, w.lost = next, false
		w.drop()
	}
}

// mayOpen reports whether there may be one more when n are open: the first one always, those behind
// it while all that are behind a first one leave an eighth of the window to the first ones of keys.
// Over a network the rate is the window by the delay, so what is left to others costs as much of it; a
// key whose sink hangs keeps what it has until the sink gives up. One that may not now may at the latest
// when nothing of its key is on its way. s.mu is held.
func (w *laneWork) mayOpen(n int) bool {
	window := w.cfg.MaxInFlight
	return n == 0 || w.sub.ahead-w.ahead()+n < window-max(1, window/8)
}

// ahead returns how many are open behind the first one. s.mu is held.
func (w *laneWork) ahead() int { return max(0, w.q.open-1) }

// setOpen sets how many are open. s.mu is held.
func (w *laneWork) setOpen(n int) {
	w.sub.ahead -= w.ahead()
	w.q.open = n
	w.sub.ahead += w.ahead()
}

// drop forgets the letter.
func (w *laneWork) drop() {
	if w.letter != nil {
		w.letter.ctx.end()
		w.letter = nil
	}
}

// write makes the letter, unless next cannot be delivered.
func (w *laneWork) write() {
	if w.next.payload != nil && w.next.payload.err != nil {
		w.lost = true
		return
	}
	msg, err := w.newMessage(w.next)
	if err != nil {
		w.undeliverable(w.next.event, err)
		w.stats.setAside.Add(1)
		w.mu.Lock()
		w.next.aside = true
		w.mu.Unlock()
		w.lost = true
		return
	}
	w.mu.Lock()
	before := w.q.resume[w.next]
	w.mu.Unlock()
	f := &flight{lane: w.lane, d: w.next, msg: msg, ctx: w.next.newContext(w.sub.drained, w.opener(w.next)), resumed: before, before: before.overtaken}
	f.ctx.nack.Leased = w.sub.fence != nil
	f.ctx.nack.Pipeline, f.ctx.nack.Behind, f.ctx.nack.Overtaken = f, len(w.lane.flights) > 0, before.overtaken
	f.ctx.follow(w.Subscriber, w.sub, w.next)
	if before.kept != nil {
		f.ctx.nack.Keep(before.kept)
	}
	msg.SetContext(f.ctx)
	w.letter = f
}

// wait waits until something has happened, and delivers next if that can be done.
func (w *laneWork) wait() {
	var ready, acked, nacked <-chan struct{}
	stop, drained := (<-chan struct{})(w.sub.stop), w.sub.drained.Done()
	switch {
	case w.sub.over():
		w.drop()
		stop = nil
	case w.next == nil || w.letter != nil || w.lost:
	case w.next.payload == nil:
		w.write()
	default:
		select {
		case <-w.next.payload.ready:
			w.write()
		default:
			ready = w.next.payload.ready
		}
	}
	var out chan<- *message.Message
	var msg *message.Message
	var size int64
	if w.letter != nil {
		out, msg = w.sub.out, w.letter.msg
		size = int64(len(msg.Payload)) // read before sending: the handler may change the payload
	}
	switch first := w.lane.first(); {
	case first != nil:
		acked, nacked = first.msg.Acked(), first.msg.Nacked()
	case stop == nil, w.lane.failed, w.lost:
		return // there is nothing to wait for
	default:
		drained = nil // it comes after stop
	}
	select {
	case <-stop:
	case <-drained:
	case <-w.lane.wake:
	case <-acked:
	case <-nacked:
	case <-ready:
	case out <- msg:
		w.stats.delivered.Add(1)
		w.stats.deliveredBytes.Add(size)
		w.lane.deliver(w.letter)
		w.letter, w.next = nil, nil
	}
}

// outcome returns what became of f, and false while that is not known.
func (w *laneWork) outcome(f *flight) (msgctx.Outcome, bool) {
	drained := w.sub.drained.Err() != nil
	select {
	case <-f.msg.Acked(): // also one that came at the same time counts
		return w.answered(w.sub, f.d, f.ctx.nack.Refused(), f.nacks), true
	case <-f.msg.Nacked():
		if f.ctx.nack.Delay() == 0 { // else nothing has failed
			w.stats.nacked.Add(1)
		}
		if f.d.payload != nil && f.d.payload.expired.Load() {
			return msgctx.Nacked, true
		}
		outcome := f.ctx.nack.Outcome()
		if outcome == msgctx.SetAside {
			// It stays unconfirmed, see deliver.
			w.stats.setAside.Add(1)
		}
		return outcome, true
	default:
		return msgctx.Left, drained
	}
}

// settled takes in what has happened. It reports whether somebody else goes on with the queue.
func (w *laneWork) settled() (parked bool) {
	var done []*flight
	settle := func(f *flight) bool {
		outcome, known := w.outcome(f)
		if known {
			f.ctx.end()
			w.lane.settle(f, outcome)
			if outcome != msgctx.Nacked {
				done = append(done, f)
			}
		}
		return known
	}
	for _, f := range w.lane.settled() {
		if !f.settled {
			settle(f)
		}
	}
	for f := w.lane.first(); f != nil && settle(f); f = w.lane.first() {
	}
	failed := w.lane.retry()
	over := w.sub.over() && w.lane.flying == 0
	lost := w.lost && len(w.lane.flights) == 0
	if len(done) == 0 && failed == nil && !over && !lost && (w.next != nil) == w.lane.takes() {
		return false
	}

	w.mu.Lock()
	now := time.Now()
	var expired *flight
	for _, f := range done {
		if f.outcome == msgctx.Acked {
			w.apart.acked(now, w.sub, f.d, later(f.d.since, w.q.since))
		}
		w.finished(now, f.d, f.outcome)
	}
	switch {
	case failed != nil:
		expired, parked = w.putBack(now, failed)
	case over:
		for !w.ended && len(w.q.items) > 0 {
			w.finished(now, w.q.items[0], msgctx.Left)
		}
	case lost:
		w.leave(now, w.next, w.next.payload != nil && w.next.payload.left && !w.sub.stopped)
	}
	if !parked && !w.ended && expired == nil {
		w.look()
	}
	w.mu.Unlock()
	w.releaseAll()
	if expired != nil {
		w.refreshed(expired)
	}
	return parked
}

// putBack takes back what has failed. It reports whether the first one, and the queue with it, is
// parked now; expired is the first one if it waits for an address of its payload instead. s.mu is
// held.
func (w *laneWork) putBack(now time.Time, failed []*flight) (expired *flight, parked bool) {
	w.setOpen(0)
	for _, f := range failed {
		r := resumed{overtaken: f.overtaken}
		if f.ctx.nack.Wait() != nil {
			r.kept = f.ctx.nack.Kept()
		} else {
			r.nacks = f.nacks + 1
		}
		w.q.keep(f.d, r)
		if f.overtaken > f.before {
			w.stats.overtaken.Add(1)
		}
	}
	head := failed[0]
	if head.d.payload != nil && head.d.payload.expired.Load() {
		w.setOpen(1)
		return head, false
	}
	j := w.job
	j.d, j.nacks, j.wait, j.kept = head.d, head.nacks, head.ctx.nack.Wait(), head.ctx.nack.Kept()
	if w.park(now, w.sub, j) {
		w.q.lane = nil
		return nil, true
	}
	j.d = head.d
	w.notRedelivered(w.sub, j)
	w.leave(now, head.d, w.overflow(w.sub))
	return nil, false
}

// refreshed waits for an address of the payload of f, the first of the queue.
func (w *laneWork) refreshed(f *flight) {
	came := w.refresh(f.d, w.sub.stop)
	w.mu.Lock()
	if came {
		w.q.keep(f.d, resumed{kept: f.kept, nacks: f.nacks, overtaken: f.overtaken})
	} else {
		w.leave(time.Now(), f.d, false)
	}
	if !w.ended {
		w.look()
	}
	w.mu.Unlock()
	w.releaseAll()
}

// leave leaves d, the first of the queue, with the service, and for want of room what is behind it
// as well: it would overtake it. s.mu is held.
func (w *laneWork) leave(now time.Time, d *delivery, overflow bool) {
	w.lost = false
	if overflow {
		w.setOpen(0)
		w.done = append(w.done, w.shut(now, w.sub, w.job.key, w.q)...)
		w.left = true
	}
	w.finished(now, d, msgctx.Left)
}

// finished takes d, of which nothing is on its way any longer, from the queue. s.mu is held.
func (w *laneWork) finished(now time.Time, d *delivery, outcome msgctx.Outcome) {
	j := w.job
	j.d = d
	w.unparked(now, w.sub, j)
	w.job.again = false
	i := slices.Index(w.q.items, d)
	if i == 0 {
		w.q.items[0] = nil
		w.q.items = w.q.items[1:]
	} else {
		w.q.items = slices.Delete(w.q.items, i, i+1)
	}
	delete(w.q.resume, d)
	w.q.since = now
	if d == w.next {
		w.next = nil
		w.drop()
	}
	if len(w.q.items) == 0 {
		w.ended = true
		w.setOpen(0)
		w.sub.drop(w.job.key, w.q)
		if !w.left && w.sub.shares.ended(w.job.key) {
			w.requestLeft(now, false)
		}
	}
	if w.finish(now, w.sub, d, outcome) {
		w.done = append(w.done, d)
	}
}

// releaseAll does what is due outside of the lock.
func (w *laneWork) releaseAll() {
	if len(w.done) == 0 {
		return
	}
	now := time.Now()
	for _, d := range w.done {
		w.release(now, d)
	}
	clear(w.done)
	w.done = w.done[:0]
}
