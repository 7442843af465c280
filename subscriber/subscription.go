package subscriber

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/workers"
	"github.com/agrimill/agrimill/subscriber/internal/core"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// subscription is one call of Subscribe. Only the delivery goroutines send to out, and the goroutine that
// waits for all of them calls done, which closes it.
type subscription struct {
	topic string
	name  string // of the route, or else the topic
	route *core.Route
	out   chan *message.Message // nil of the one for the quarantine
	// handler handles messages in place of whoever reads out; nil without one.
	handler msgctx.Handler
	done    func() // called when nothing is sent to out anymore
	// ended is closed when Subscribe's context ends.
	ended <-chan struct{}

	// stop is closed when delivery has to stop because Subscribe's context ended
	// or the subscriber is closing.
	// It is closed under Subscriber.mu.
	stop chan struct{}
	// givenUp says that what handlers still have is left with the service. Guarded by Subscriber.mu.
	givenUp bool
	// drained ends when open messages are no longer waited for. The contexts
	// of all messages derive from it rather than from Subscribe's context, so that
	// handlers can finish their work during a graceful shutdown.
	drained    context.Context
	giveUp     context.CancelFunc
	missed     int // events that it takes and that it can no longer get
	deliveries sync.WaitGroup
	pool       *workers.Pool[*core.Item]
	horizon    *core.Horizon // of the route; nil before it has stored anything that has to wait. Guarded by Subscriber.mu
	pipelines  bool          // whoever reads out tells when the next one of a key may come
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string, out chan *message.Message, done func()) *subscription {
	asked := msgctx.SubscriptionOf(ctx)
	sub := &subscription{
		topic: topic, name: cmp.Or(asked.Route, topic), out: out, done: done, ended: ctx.Done(), stop: make(chan struct{}),
		pipelines: s.cfg.Order == OrderByKey && asked.Pipelines, handler: asked.Handler,
	}
	sub.drained, sub.giveUp = lease.In(s.ctx, msgctx.WithSubscription(context.WithoutCancel(ctx), nil))
	sub.pool = workers.New(workers.Config[*core.Item]{
		Do: func(it *core.Item) {
			for it != nil {
				it = s.handle(sub, it)
			}
		},
		Go:   sub.deliveries.Go, // runSubscription waits for them
		Stop: sub.stop,
	})
	return sub
}

// takes reports whether sub wants m.
func (sub *subscription) takes(m *core.Message) bool {
	d := ownerOf(m)
	return d.event != nil && d.record() == nil && Takes(sub.topic, d.event.Type(), messageTypeOf(d.event))
}

// answer is what came of a delivery.
type answer struct {
	outcome msgctx.Outcome
	delay   time.Duration // that the nack asked for; 0 if the handler has failed
	kept    any           // what whoever nacked it keeps for its next delivery
	expired bool          // it needs a fresh payload URI
	stored  *msgctx.Hold  // nil if the ack counts at once
}

// handle delivers it, and returns what is to be delivered next.
func (s *Subscriber) handle(sub *subscription, it *core.Item) (next *core.Item) {
	returned := false
	defer func() {
		if !returned { // runtime.Goexit in a handler
			if next := s.finish(sub, it, answer{outcome: msgctx.Nacked}); next != nil {
				sub.pool.Push(next)
			}
		}
	}()
	a := s.deliver(sub, it)
	returned = true
	return s.finish(sub, it, a)
}

// finish takes in what came of a delivery, and returns what is to be delivered next.
func (s *Subscriber) finish(sub *subscription, it *core.Item, a answer) (next *core.Item) {
	s.mu.Lock()
	if sub.givenUp {
		s.unlock()
		return nil
	}
	var unserved gateway.Event
	if a.expired {
		next, unserved = s.finishExpired(it)
	} else {
		next = s.finishAnswered(sub, it, a)
	}
	s.unlock()
	if unserved != nil {
		s.unserved(unserved)
	}
	return next
}

// finishAnswered is finish for what needs no fresh payload URI. s.mu is held.
func (s *Subscriber) finishAnswered(sub *subscription, it *core.Item, a answer) (next *core.Item) {
	d, now := ownerOf(it.Message), s.now()
	switch a.outcome {
	case msgctx.Acked:
		d.Large = s.isLarge(d)
		s.hold(sub, it, a.stored)
		return s.core.Done(now, it, core.Acked, 0)
	case msgctx.Nacked:
	default:
		d.Aside = d.Aside || a.outcome == msgctx.SetAside
		return s.core.Done(now, it, core.Left, 0)
	}
	it.Kept = nil
	if a.delay <= 0 {
		retry := s.cfg.Nack
		if d.record() != nil {
			retry = s.cfg.Quarantine.Retry
		}
		next = s.core.Done(now, it, core.Nacked, backoff.Policy(retry).Delay(int(it.Nacks)))
	} else {
		it.Kept, it.Nacks = a.kept, -1 // nothing has failed
		next = s.core.Done(now, it, core.Nacked, a.delay)
	}
	return next
}

// deliver offers it to the subscription and returns what came of it. It leaves the message to others if the subscription
// stops before the message was received, or if a received message is not acked within the drain timeout.
func (s *Subscriber) deliver(sub *subscription, it *core.Item) answer {
	d := ownerOf(it.Message)
	if sub.over() {
		// What it leaves before it has ended is what a route leaves that goes on, for which others wait longer.
		select {
		case <-sub.stop:
		case <-sub.drained.Done():
		}
		return answer{}
	}
	if r := d.record(); r != nil {
		return answer{outcome: s.quarantine.handle(sub.drained, r, int(it.Nacks))}
	}
	msg, err := s.newMessage(d)
	if err != nil {
		s.undeliverable(d.event, err)
		s.stats.setAside.Add(1)
		return answer{outcome: msgctx.SetAside}
	}
	ctx := s.newContext(sub, it)
	msg.SetContext(ctx)
	defer ctx.end()
	stoppoint.At(stoppoint.Deliver)
	switch s.handOver(sub, msg) {
	case msgctx.Acked:
		stoppoint.At(stoppoint.Acked)
		return answer{outcome: s.answered(sub, it, ctx.nack.Refused()), stored: ctx.nack.Held()}
	case msgctx.Nacked:
		return s.nacked(d, ctx)
	default:
		return answer{}
	}
}

// handOver gives msg to the handler, or to whoever reads out, and returns what came of it.
func (s *Subscriber) handOver(sub *subscription, msg *message.Message) msgctx.Outcome {
	size := int64(len(msg.Payload)) // read before sending: the handler may change the payload
	if sub.handler == nil {
		select {
		case <-sub.stop:
			return msgctx.Left
		case sub.out <- msg:
		}
	}
	s.stats.delivered.Add(1)
	s.stats.deliveredBytes.Add(size)
	if sub.handler != nil {
		if sub.handler(msg) {
			return msgctx.Acked
		}
		return msgctx.Nacked
	}
	select {
	case <-msg.Acked():
		return msgctx.Acked
	case <-msg.Nacked():
		return msgctx.Nacked
	case <-sub.drained.Done():
	}
	if wakeup.Raised(msg.Acked()) { // at the same time
		return msgctx.Acked
	}
	return msgctx.Left
}

// nacked returns what a nack means.
func (s *Subscriber) nacked(d *delivery, ctx *messageContext) answer {
	a := answer{outcome: ctx.nack.Outcome(), delay: ctx.nack.Delay(), kept: ctx.nack.Kept()}
	if a.delay <= 0 { // else nothing has failed
		s.stats.nacked.Add(1)
	}
	switch {
	case d.payload != nil && d.payload.expired.Load():
		s.expired(d.event)
		a.expired = true
	case a.outcome == msgctx.SetAside:
		// Treat it like an undeliverable event: it stays unconfirmed, and the
		// service redelivers it after the next reconnect.
		s.stats.setAside.Add(1)
	}
	return a
}

// over reports whether delivery has to stop. The select in deliver alone would
// sometimes still deliver if a reader is ready.
func (sub *subscription) over() bool {
	return sub.ending() || sub.drained.Err() != nil
}

// ending reports whether sub has ended, or its context has and nobody has had the time to notice.
func (sub *subscription) ending() bool {
	return wakeup.Raised(sub.stop) || wakeup.Raised(sub.ended) // one at a time is free of locks
}

// runSubscription shuts the subscription down when ctx ends or stop is closed: it
// waits for the open messages, at most for the drain timeout, and lets go of the
// channel after the last goroutine that could send on it has ended.
func (s *Subscriber) runSubscription(ctx context.Context, sub *subscription) {
	if sub.missed > 0 {
		s.logger.Error("a subscription was made too late for some events", errMissed, watermill.LogFields{"subscription": sub.name, "topic": sub.topic, "count": sub.missed})
	}
	select {
	case <-ctx.Done():
	case <-sub.stop:
	}
	s.stopSubscription(sub)
	timer := time.AfterFunc(s.cfg.DrainTimeout, sub.giveUp)
	defer timer.Stop()
	// Nothing is handed out anymore.
	if sub.out != nil && sub.handler == nil {
		sub.deliveries.Wait()
	} else {
		s.awaitHandlers(sub)
	}
	sub.giveUp()
	sub.done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscriptions = slices.DeleteFunc(s.subscriptions, func(other *subscription) bool { return other == sub })
}

// awaitHandlers waits until handlers are done with all that they have, at most for the drain timeout. What they have then
// is left with the service; its context has ended.
func (s *Subscriber) awaitHandlers(sub *subscription) {
	select {
	case <-lifecycle.Ended(&sub.deliveries): // when the last handler returns, which nobody else can bring about
		return
	case <-sub.drained.Done():
	}
	s.mu.Lock()
	defer s.unlock()
	sub.givenUp = true
	now := s.now()
	for _, it := range s.core.Handed(sub.route) {
		ownerOf(it.Message).givenUp = true
		s.core.Done(now, it, core.Left, 0)
	}
}

// stopSubscription stops intake for sub. It is idempotent.
func (s *Subscriber) stopSubscription(sub *subscription) {
	s.mu.Lock()
	defer s.unlock()
	if wakeup.Raised(sub.stop) {
		return
	}
	close(sub.stop)
	s.seen.before[sub.topic] = s.seen.acked.of(sub.topic)
	if !s.hasTakers() && s.loop.stop != nil {
		s.loop.stop()
	}
	s.core.End(s.now(), sub.route)
}
