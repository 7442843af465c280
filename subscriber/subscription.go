package subscriber

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/setaside"
)

// subscription is one call of Subscribe. Its queues are guarded by
// Subscriber.mu; out is sent to by the delivery goroutines only, and closed by
// the goroutine that waited for all of them.
type subscription struct {
	topic string
	out   chan *message.Message
	// ended is the end of Subscribe's context.
	ended <-chan struct{}

	// stop is closed when nothing more is to be delivered: the context of
	// Subscribe ended, or the subscriber closes.
	stop     chan struct{}
	stopOnce sync.Once
	// drained ends when open messages are no longer waited for. The contexts
	// of all messages derive from it, not from Subscribe's context, so that
	// handlers can finish their work during a graceful shutdown.
	drained    context.Context
	giveUp     context.CancelFunc
	stopped    bool // no more deliveries are accepted
	queues     map[string]*keyQueue
	aside      asideSet
	deliveries sync.WaitGroup

	jobs chan job     // to goroutines that have nothing to do
	idle atomic.Int64 // how many there are
}

// job is what a delivery goroutine has to do: to deliver what is in q until it is
// empty, or d alone.
type job struct {
	key string
	q   *keyQueue
	d   *delivery
}

// maxIdle is how many goroutines of a subscription wait for something to deliver at
// most.
const maxIdle = 64

// keyQueue holds the deliveries of one order key. One goroutine works on it as
// long as it is not empty.
type keyQueue struct {
	items []*delivery
	// nacks counts how often the head was nacked; reset when it is gone.
	nacks int
}

func newSubscription(ctx context.Context, topic string) *subscription {
	sub := &subscription{
		topic: topic, out: make(chan *message.Message), ended: ctx.Done(), stop: make(chan struct{}),
		queues: make(map[string]*keyQueue), jobs: make(chan job),
	}
	sub.drained, sub.giveUp = context.WithCancel(setaside.NewContext(context.WithoutCancel(ctx), sub.aside.add))
	return sub
}

// enqueue accepts d. s.mu is held, and sub is not stopped.
func (s *Subscriber) enqueue(sub *subscription, d *delivery) {
	if s.cfg.Order == Unordered {
		s.start(sub, job{d: d})
		return
	}
	q := sub.queues[d.order]
	if q != nil {
		q.items = append(q.items, d)
		return
	}
	q = &keyQueue{items: []*delivery{d}}
	sub.queues[d.order] = q
	s.start(sub, job{key: d.order, q: q})
}

// start has j done by a goroutine that has nothing to do, or by a new one. s.mu is
// held, and sub is not stopped.
func (s *Subscriber) start(sub *subscription, j job) {
	select {
	case sub.jobs <- j:
	default:
		// Ends with its job, or with the subscription; runSubscription waits for it.
		sub.deliveries.Go(func() { s.work(sub, j) })
	}
}

// work does j, and then what else there is.
func (s *Subscriber) work(sub *subscription, j job) {
	for {
		if j.q != nil {
			s.workQueue(sub, j.key, j.q)
		} else {
			s.workOne(sub, j.d)
		}
		if sub.idle.Load() >= maxIdle {
			return
		}
		sub.idle.Add(1)
		select {
		case j = <-sub.jobs:
			sub.idle.Add(-1)
		case <-sub.stop:
			return
		}
	}
}

// workOne delivers d.
func (s *Subscriber) workOne(sub *subscription, d *delivery) {
	acked := s.deliver(sub, d, nil)
	s.mu.Lock()
	last := s.settle(d, acked)
	s.mu.Unlock()
	if last {
		s.release(d)
	}
}

// workQueue delivers what is in q, one after the other, until it is empty.
func (s *Subscriber) workQueue(sub *subscription, key string, q *keyQueue) {
	s.mu.Lock()
	d := q.items[0]
	s.mu.Unlock()
	for {
		acked := s.deliver(sub, d, q)

		var next *delivery
		s.mu.Lock()
		q.items[0] = nil
		q.items = q.items[1:]
		q.nacks = 0
		_, evicted := s.evictedKeys[key]
		if len(q.items) > 0 {
			next = q.items[0]
		} else {
			delete(sub.queues, key)
		}
		closed := s.settle(d, acked)
		s.mu.Unlock()
		if closed {
			s.release(d)
		}
		if d = next; d == nil {
			if evicted {
				s.recall()
			}
			return
		}
	}
}

// deliver offers d to the subscription until it is acked, and reports whether
// it was. It gives up when the subscription stops before the message was
// taken, when a taken message is not acked within the drain time, or when there
// is no payload to be had.
func (s *Subscriber) deliver(sub *subscription, d *delivery, q *keyQueue) bool {
	if d.payload != nil {
		select {
		case <-d.payload.ready:
		case <-sub.stop:
			return false
		}
		if d.payload.err != nil {
			return false
		}
	}
	policy := backoff.Policy{Min: s.cfg.Nack.Min, Max: s.cfg.Nack.Max}
	for attempt := 0; !sub.over(); attempt++ {
		msg, err := s.newMessage(d)
		if err != nil {
			s.undeliverable(d.event, err)
			return false
		}
		ctx := &messageContext{drained: sub.drained}
		msg.SetContext(ctx)
		if open := s.opener(d); open != nil {
			msg.SetContext(payloadref.NewContext(ctx, open))
		}
		size := int64(len(msg.Payload)) // the handler may change it

		select {
		case <-sub.stop:
			ctx.end()
			return false
		case sub.out <- msg:
		}
		s.stats.delivered.Add(1)
		s.stats.deliveredBytes.Add(size)
		select {
		case <-msg.Acked():
			ctx.end()
			return true
		case <-msg.Nacked():
			ctx.end()
			s.stats.nacked.Add(1)
		case <-sub.drained.Done():
			ctx.end()
			// An ack that came at the same time counts.
			select {
			case <-msg.Acked():
				return true
			default:
			}
			return false
		}
		if d.payload != nil && d.payload.expired.Load() {
			if !s.refresh(d, sub.stop) {
				return false
			}
			attempt = -1
			continue
		}
		if sub.aside.take(msg.UUID) {
			// Like an event that cannot be delivered: it stays unconfirmed, and
			// the service delivers it again after the next reconnect.
			s.stats.setAside.Add(1)
			return false
		}
		s.countNack(q)
		if !sub.wait(policy.Delay(attempt)) {
			return false
		}
	}
	return false
}

// over reports whether nothing more is to be delivered. A select alone would
// now and then still deliver to a reader that is there.
func (sub *subscription) over() bool {
	select {
	case <-sub.stop:
		return true
	case <-sub.ended:
		return true
	default:
		return false
	}
}

// wait waits before a nacked message is delivered again. It returns false when
// the subscription stops.
func (sub *subscription) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sub.stop:
		return false
	}
}

func (s *Subscriber) countNack(q *keyQueue) {
	if q == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q.nacks++
	s.wakeRoom() // a queue that has become stalled can make room
}

// stalledNacks is how often a message has to be nacked before the ones behind
// it give way to other keys.
const stalledNacks = 5

// evictStalled gives up what waits behind messages that are nacked again and
// again, so that a stalled key does not take all the room from the others. What
// it gives up is not confirmed: the key takes nothing more until its queue is
// empty, and then everything is asked for again, in order. s.mu is held; the
// result is to be released.
func (s *Subscriber) evictStalled() []*delivery {
	var evicted []*delivery
	for _, sub := range s.subscriptions {
		for key, q := range sub.queues {
			if q.nacks < stalledNacks || len(q.items) < 2 {
				continue
			}
			s.evictedKeys[key] = struct{}{}
			for _, d := range q.items[1:] {
				if s.settle(d, false) {
					evicted = append(evicted, d)
				}
			}
			clear(q.items[1:])
			q.items = q.items[:1]
		}
	}
	return evicted
}

// runSubscription ends the subscription when ctx ends or stop is closed: it
// waits for the open messages, at most for the drain time, and closes the
// channel after the last goroutine that could send to it has ended.
func (s *Subscriber) runSubscription(ctx context.Context, sub *subscription) {
	select {
	case <-ctx.Done():
	case <-sub.stop:
	}
	s.stopSubscription(sub)
	timer := time.AfterFunc(s.cfg.DrainTimeout, sub.giveUp)
	defer timer.Stop()
	// No delivery is accepted any more (stopped is set), so nobody adds.
	sub.deliveries.Wait()
	sub.giveUp()
	close(sub.out)
	s.removeSubscription(sub)
}

// stopSubscription ends intake for sub. It is idempotent.
func (s *Subscriber) stopSubscription(sub *subscription) {
	sub.stopOnce.Do(func() {
		s.mu.Lock()
		sub.stopped = true
		if !s.hasTakers() && s.stopRun != nil {
			s.stopRun()
		}
		s.mu.Unlock()
		close(sub.stop)
	})
}
