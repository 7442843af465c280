package subscriber

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/workers"
)

// subscription is one call of Subscribe. Its queues are guarded by
// Subscriber.mu. Only the delivery goroutines send to out, and the goroutine that
// waits for all of them calls done, which closes it.
type subscription struct {
	topic string
	name  string // of the route, or else the topic
	out   chan *message.Message
	done  func() // called when nothing is sent to out anymore
	fence *fence
	// ended is closed when Subscribe's context ends.
	ended <-chan struct{}

	// stop is closed when delivery has to stop because Subscribe's context ended
	// or the subscriber is closing.
	stop     chan struct{}
	stopOnce sync.Once
	// drained ends when open messages are no longer waited for. The contexts
	// of all messages derive from it rather than from Subscribe's context, so that
	// handlers can finish their work during a graceful shutdown.
	drained    context.Context
	giveUp     context.CancelFunc
	stopped    bool // no more deliveries are accepted
	overflown  bool // messages were left with the service because too many were parked
	queues     map[string]*keyQueue
	emptied    []*keyQueue             // to be used again
	nacked     map[*delivery]time.Time // since when messages that were parked have been nacked
	shares     shares
	acked      time.Time     // when it last acked something
	newest     time.Time     // of all that it acked, when it got the newest
	reached    time.Time     // and when the newest arrived
	took       time.Duration // how long acks took lately, at most
	served     served
	pipelines  bool // whoever reads out tells when the next one of a key may come
	missed     int  // events that it takes and that it can no longer get
	ahead      int  // how many are open behind the first of their keys
	deliveries sync.WaitGroup
	pool       *workers.Pool[job]
}

// job is the work of a goroutine of the pool: to deliver the contents of q until it is
// empty, or d alone.
type job struct {
	key   string
	q     *keyQueue
	d     *delivery
	nacks int          // of the head of q, or of d
	wait  *msgctx.Wait // that its last nack began; nil if it failed
	kept  any          // what whoever nacked it keeps for its next delivery
	again bool         // it has been parked
}

// keyQueue holds the deliveries of one order key. One goroutine works on it until
// it is empty.
type keyQueue struct {
	items []*delivery
	room  [4]*delivery // of items while they are few
	since time.Time    // when it last finished something, or began

	// Of a subscription that pipelines.
	lane   *lane // nil while no goroutine works on the queue
	open   int   // how many of items the lane has: the first ones
	resume map[*delivery]resumed
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string, out chan *message.Message, done func()) *subscription {
	sub := &subscription{
		topic: topic, name: cmp.Or(msgctx.Route(ctx), topic), out: out, done: done, fence: s.fence, ended: ctx.Done(), stop: make(chan struct{}),
		queues: make(map[string]*keyQueue), acked: time.Now(),
		pipelines: s.cfg.Order == OrderByKey && msgctx.Pipelines(ctx),
	}
	sub.drained, sub.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	sub.drained = s.fence.fenced(sub.drained)
	sub.pool = workers.New(workers.Config[job]{
		Do:   func(j job) { s.work(sub, j) },
		Go:   sub.deliveries.Go, // runSubscription waits for them
		Stop: sub.stop,
	})
	return sub
}

// enqueue adds d. s.mu is held, and sub is not stopped.
func (s *Subscriber) enqueue(sub *subscription, d *delivery) {
	if s.cfg.Order == Unordered {
		sub.pool.Push(job{d: d})
		return
	}
	q := sub.queues[d.order]
	if q != nil {
		q.items = append(q.items, d)
		if q.lane != nil {
			q.lane.poke()
		}
		return
	}
	q = sub.newQueue()
	q.items, q.since = append(q.room[:0], d), d.arrived
	sub.queues[d.order] = q
	sub.pool.Push(job{key: d.order, q: q})
}

// maxEmptied is how many queues are kept to be used again: a key comes and goes all the time when
// handlers are as fast as the stream.
const maxEmptied = 64

// newQueue returns an empty queue. Subscriber.mu is held.
func (sub *subscription) newQueue() *keyQueue {
	last := len(sub.emptied) - 1
	if last < 0 {
		return &keyQueue{}
	}
	q := sub.emptied[last]
	sub.emptied = sub.emptied[:last]
	return q
}

// drop removes q, which is empty and which nobody works on any longer. Subscriber.mu is held.
func (sub *subscription) drop(key string, q *keyQueue) {
	delete(sub.queues, key)
	if len(sub.emptied) < maxEmptied {
		*q = keyQueue{}
		sub.emptied = append(sub.emptied, q)
	}
}

// work does j.
func (s *Subscriber) work(sub *subscription, j job) {
	switch {
	case j.q == nil:
		s.workOne(sub, j)
	case sub.pipelines:
		s.workLane(sub, j)
	default:
		s.workQueue(sub, j)
	}
}

// workOne delivers j.d.
func (s *Subscriber) workOne(sub *subscription, j job) {
	outcome := s.deliver(sub, j.d, &j)
	s.mu.Lock()
	now := time.Now()
	switch {
	case outcome == msgctx.Acked:
		s.apart.acked(now, sub, j.d, j.d.since)
		s.unparked(now, sub, j)
	case outcome != msgctx.Nacked:
		s.unparked(now, sub, j)
	case s.park(now, sub, j):
		s.mu.Unlock()
		return
	default:
		outcome = msgctx.Left
		s.notRedelivered(sub, j)
		if len(j.d.keys) > 0 {
			s.overflow(sub)
		}
	}
	last := s.finish(now, sub, j.d, outcome)
	s.mu.Unlock()
	if last {
		s.release(now, j.d)
	}
}

// workQueue delivers the contents of j.q, one after the other, until it is empty or its head is
// parked.
func (s *Subscriber) workQueue(sub *subscription, j job) {
	q := j.q
	s.mu.Lock()
	d := q.items[0]
	s.mu.Unlock()
	for {
		outcome := s.deliver(sub, d, &j)

		var next *delivery
		var closed []*delivery
		s.mu.Lock()
		now := time.Now()
		overflow := false // it is left for want of room
		switch j.d = d; {
		case outcome == msgctx.Acked:
			s.apart.acked(now, sub, d, later(d.since, q.since))
			s.unparked(now, sub, j)
		case outcome != msgctx.Nacked:
			overflow = d.payload != nil && d.payload.left && !sub.stopped
			s.unparked(now, sub, j)
		case s.park(now, sub, j):
			s.mu.Unlock()
			return
		default:
			outcome = msgctx.Left
			s.notRedelivered(sub, j)
			overflow = s.overflow(sub)
		}
		if overflow { // what is behind it would overtake it
			closed = s.shut(now, sub, j.key, q)
		}
		q.items[0] = nil
		q.items = q.items[1:]
		q.since = now
		j.nacks, j.kept, j.again = 0, nil, false
		if len(q.items) > 0 {
			next = q.items[0]
		} else {
			sub.drop(j.key, q)
			if !overflow && sub.shares.ended(j.key) {
				s.requestLeft(now, false)
			}
		}
		last := s.finish(now, sub, d, outcome)
		s.mu.Unlock()
		if last {
			s.release(now, d)
		}
		for _, d := range closed {
			s.release(now, d)
		}
		if d = next; d == nil {
			return
		}
	}
}

// deliver offers d to the subscription and returns what came of it. It leaves the message to others if the subscription stops before the message was received,
// if a received message is not acked within the drain timeout, or if the payload is
// unavailable. It notes in j how the message was nacked.
func (s *Subscriber) deliver(sub *subscription, d *delivery, j *job) msgctx.Outcome {
	j.wait = nil
	if d.payload != nil {
		select {
		case <-d.payload.ready:
		case <-sub.stop:
			return msgctx.Left
		}
		if d.payload.err != nil {
			return msgctx.Left
		}
	}
	for !sub.over() {
		msg, err := s.newMessage(d)
		if err != nil {
			s.undeliverable(d.event, err)
			s.stats.setAside.Add(1)
			return msgctx.SetAside
		}
		ctx := d.newContext(sub.drained, s.opener(d))
		ctx.nack.Leased = sub.fence != nil
		ctx.follow(s, sub, d)
		if j.kept != nil {
			ctx.nack.Keep(j.kept)
		}
		msg.SetContext(ctx)
		size := int64(len(msg.Payload)) // read before sending: the handler may change the payload

		stoppoint.At(stoppoint.Deliver)
		select {
		case <-sub.stop:
			ctx.end()
			return msgctx.Left
		case sub.out <- msg:
		}
		s.stats.delivered.Add(1)
		s.stats.deliveredBytes.Add(size)
		select {
		case <-msg.Acked():
			stoppoint.At(stoppoint.Acked)
			ctx.end()
			if outcome := s.answered(sub, d, ctx.nack.Refused(), j.nacks); outcome != msgctx.Nacked {
				return outcome
			}
		case <-msg.Nacked():
			ctx.end()
			if ctx.nack.Delay() == 0 { // else nothing has failed
				s.stats.nacked.Add(1)
			}
		case <-sub.drained.Done():
			ctx.end()
			// An ack that arrived at the same time counts.
			select {
			case <-msg.Acked():
				return s.answered(sub, d, ctx.nack.Refused(), j.nacks)
			default:
			}
			return msgctx.Left
		}
		if d.payload != nil && d.payload.expired.Load() {
			if !s.refresh(d, sub.stop) {
				return msgctx.Left
			}
			continue
		}
		outcome := ctx.nack.Outcome()
		if outcome == msgctx.SetAside {
			// Treat it like an undeliverable event: it stays unconfirmed, and the
			// service redelivers it after the next reconnect.
			s.stats.setAside.Add(1)
		}
		j.wait, j.kept = ctx.nack.Wait(), ctx.nack.Kept()
		return outcome
	}
	return msgctx.Left
}

// over reports whether delivery has to stop. The select in deliver alone would
// sometimes still deliver if a reader is ready.
func (sub *subscription) over() bool {
	select {
	case <-sub.stop:
		return true
	case <-sub.ended:
		return true
	default:
		return sub.fence.passed()
	}
}

// ending reports whether sub has ended, or its context has and nobody has had the time to notice.
// Subscriber.mu is held.
func (sub *subscription) ending() bool {
	if sub.stopped {
		return true
	}
	select {
	case <-sub.ended:
		return true
	default:
		return false
	}
}

// runSubscription shuts the subscription down when ctx ends or stop is closed: it
// waits for the open messages, at most for the drain timeout, and lets go of the
// channel after the last goroutine that could send on it has ended.
func (s *Subscriber) runSubscription(ctx context.Context, sub *subscription) {
	if sub.missed > 0 {
		s.logger.Error("A subscription was made too late for some events", errMissed, watermill.LogFields{"subscription": sub.name, "topic": sub.topic, "count": sub.missed})
	}
	select {
	case <-ctx.Done():
	case <-sub.stop:
	}
	s.stopSubscription(sub)
	timer := time.AfterFunc(s.cfg.DrainTimeout, sub.giveUp)
	defer timer.Stop()
	// stopped is set, so no delivery is accepted and nothing is added anymore.
	sub.deliveries.Wait()
	sub.giveUp()
	sub.done()
	s.removeSubscription(sub)
}

// stopSubscription stops intake for sub. It is idempotent.
func (s *Subscriber) stopSubscription(sub *subscription) {
	sub.stopOnce.Do(func() {
		s.mu.Lock()
		sub.stopped = true
		s.ackedBefore[sub.topic] = s.ackedKinds.of(sub.topic)
		if !s.hasTakers() && s.stopRun != nil {
			s.stopRun()
		}
		ended := s.endParked(sub)
		s.mu.Unlock()
		now := time.Now()
		for _, d := range ended {
			s.release(now, d)
		}
		close(sub.stop)
	})
}
