package subscriber

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

const (
	// renewals is how often a lease is renewed in its TTL, retries how often in it a renewal that failed is tried again.
	renewals = 3
	retries  = 10
)

// leasedSubscription is one call of Subscribe. It gets the messages of all terms.
type leasedSubscription struct {
	ctx   context.Context
	topic string
	out   chan *message.Message
	end   context.CancelFunc
	users sync.WaitGroup // workers that may still send to out
}

// holder wants the lease of s from start to close while anybody subscribes. While it holds it, a Subscriber that is configured like s
// works: it makes one for each term and throws it away at the end, because what is open in it may be handled by another process from
// then on. What outlives the terms is in the holder, the subscriptions above all.
type holder struct {
	s   *Subscriber
	ttl time.Duration
	// wall is time.Now. Only its wall clock is looked at.
	wall func() time.Time
	// ctx ends with close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards the fields below. It is locked before any lock of a worker.
	mu          sync.Mutex
	running     bool
	drained     bool
	subs        []*leasedSubscription
	worker      *Subscriber  // of this term, or of the last one; nil between two
	fence       *lease.Fence // of this term; nil without the lease
	limit       time.Duration
	state       LeaseState
	unconfirmed int // that the last worker left
}

// newHolder returns the holder of s. It has to be closed.
func (s *Subscriber) newHolder(wall func() time.Time) *holder {
	h := &holder{s: s, ttl: s.cfg.Lease.TTL(), wall: wall, limit: s.cfg.CloseTimeout}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// subscribe adds a subscription, which gets the messages of this term and of all that follow. It must not be called after
// close.
func (h *holder) subscribe(ctx context.Context, topic string) <-chan *message.Message {
	sub := &leasedSubscription{topic: topic, out: make(chan *message.Message)}
	sub.ctx, sub.end = context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs = append(h.subs, sub)
	if h.fence != nil {
		h.join(sub)
	}
	// Ends with sub.ctx, once the deliveries have ended.
	h.wg.Go(func() {
		<-sub.ctx.Done()
		h.mu.Lock()
		h.subs = slices.DeleteFunc(h.subs, func(other *leasedSubscription) bool { return other == sub })
		h.mu.Unlock()
		sub.users.Wait() // no worker joins it any longer
		close(sub.out)
	})
	return sub.out
}

// join has the worker send to subs. The stream is not requested before all have joined: that takes its lock. h.mu is held.
func (h *holder) join(subs ...*leasedSubscription) {
	w := h.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, sub := range subs {
		if !w.closed {
			sub.users.Add(1)
			w.addSubscription(sub.ctx, sub.topic, sub.out, sub.users.Done)
		}
	}
}

// start wants the lease if anybody subscribes.
func (h *holder) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running && h.between() {
		h.running = true
		h.wg.Go(h.run) // ends with Close, or when nobody subscribes
	}
}

// leaseState returns the state; zero without a lease.
func (h *holder) leaseState() LeaseState {
	if h == nil {
		return LeaseState{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.state
	if h.fence != nil {
		state.Until = h.fence.Until()
	}
	return state
}

// close ends everything within limit, and returns how many acks the last worker did not confirm.
func (h *holder) close(limit time.Duration) (unconfirmed int) {
	late := time.After(limit)
	h.mu.Lock()
	h.limit = limit
	h.mu.Unlock()
	h.cancel()
	h.endSubscriptions()
	select {
	case <-lifecycle.Ended(&h.wg):
	case <-late:
		h.s.logger.Error("close gave up waiting", errStillRunning, nil)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unconfirmed
}

// errTermOver is why a term ends whose work is done.
var errTermOver = errors.New("the work is done")

// errStillRunning is logged when a hook or other application code did not return
// while Close was waiting.
var errStillRunning = errors.New("subscriber: a hook or other application code is still running")

func (h *holder) endSubscriptions() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sub := range h.subs {
		sub.end()
	}
}

// wanted reports whether anybody wants the lease. h.mu is held.
func (h *holder) wanted() bool {
	return h.ctx.Err() == nil && !h.drained && slices.ContainsFunc(h.subs, func(sub *leasedSubscription) bool { return sub.ctx.Err() == nil })
}

// between sets the role before the next term, and reports whether there is to be one. h.mu is held.
func (h *holder) between() bool {
	if !h.wanted() {
		h.change(LeaseNone)
		return false
	}
	h.worker, h.unconfirmed = nil, 0 // what was not confirmed comes again
	h.change(LeaseStandby)
	return true
}

// again is between for run.
func (h *holder) again() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = h.between()
	return h.running
}

// run competes for the lease and works while it has it, term after term.
func (h *holder) run() {
	h.s.logger.Info("waiting for the lease", nil)
	var outage reminders.Log
	retry := backoff.Policy(h.s.cfg.Reconnect)
	for failures := 0; h.again(); {
		term, err := h.s.cfg.Lease.Acquire(h.ctx)
		if h.ctx.Err() != nil && err != nil {
			continue
		}
		h.note(err)
		if err == nil {
			failures = 0
			outage.Over()
			h.work(term)
			continue
		}
		if lasted, due := outage.Failed(); failures == 0 || due {
			h.s.logger.Error("the lease cannot be acquired; retrying", err, reminders.Fields(lasted, err))
		}
		_ = retry.Wait(h.ctx, failures) // again says that h.ctx has ended
		failures++
	}
}

// work works until the end of a term.
func (h *holder) work(term LeaseTerm) {
	working, stop := context.WithCancel(h.ctx)
	f := lease.New(h.ttl, term.Renewed(), h.wall, func() {
		h.endSubscriptions()
		stop()
	})
	var helpers sync.WaitGroup // they end with f
	helpers.Go(f.Watch)
	helpers.Go(func() { h.renew(f, term) })
	worker, held := h.begin(f, term.Epoch()), make(chan struct{})
	holding, stopHolding := context.WithCancel(f)
	go func() { // the end of the term waits for it
		defer close(held)
		if h.s.cfg.Hooks.Holding != nil && f.Err() == nil {
			h.s.cfg.Hooks.Holding(lease.Guard(holding), term.Epoch())
		}
	}()
	select {
	case <-f.Done():
	case <-working.Done():
	}
	stop()
	stopHolding()
	release := min(time.Second, h.s.cfg.CloseTimeout/10) // so long may that take
	h.mu.Lock()
	limit := h.limit - release
	h.mu.Unlock()
	late := time.After(limit)
	unconfirmed := worker.close(limit) // while the term lasts, it drains and confirms
	select {
	case <-held:
	case <-late:
		h.s.logger.Error("the lease is given up although a hook still runs", errStillRunning, nil)
	}
	f.End(errTermOver)
	helpers.Wait()
	switch cause := h.end(f, unconfirmed); {
	case errors.Is(cause, lease.ErrGivenUp): // nobody waits for this one, so the store may take its time
		h.handOver(h.ctx, h.ttl, term)
		_ = backoff.Sleep(h.ctx, h.ttl) // another process gets it before
	case errors.Is(cause, errTermOver):
		h.handOver(context.Background(), release, term)
	default:
		h.s.logger.Error("lease lost; nothing is handled or confirmed until it is acquired again", cause,
			watermill.LogFields{"epoch": term.Epoch(), "unconfirmed": unconfirmed})
	}
}

// begin has a worker work.
func (h *holder) begin(f *lease.Fence, epoch uint64) *Subscriber {
	h.s.logger.Info("lease acquired", watermill.LogFields{"epoch": epoch})
	cfg := h.s.cfg
	cfg.Ready, cfg.StartAfter = nil, -1 // join has all subscriptions
	worker := newSubscriber(f, cfg, h.s.logger, h.s.stats)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change(LeaseHolder)
	h.state.Epoch, h.worker, h.fence = epoch, worker, f
	if h.wanted() {
		h.join(h.subs...)
	}
	return worker
}

// end records the end of a term, and returns why it ended.
func (h *holder) end(f *lease.Fence, unconfirmed int) (cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fence, h.unconfirmed = nil, unconfirmed
	h.between()
	switch cause = context.Cause(f); {
	case errors.Is(cause, lease.ErrGivenUp):
		h.state.GivenUp++
	case errors.Is(cause, ErrLeaseLost):
		h.state.Lost++
		cause = cmp.Or(h.state.LastError, cause)
	}
	return cause
}

// handOver releases the lease, so that another process gets it at once. It ends with ctx, or after timeout.
func (h *holder) handOver(ctx context.Context, timeout time.Duration, term LeaseTerm) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := term.Release(ctx); err != nil {
		h.s.logger.Error("the lease could not be released; it ends with its time", err, watermill.LogFields{"epoch": term.Epoch()})
		return
	}
	h.s.logger.Info("lease released", watermill.LogFields{"epoch": term.Epoch()})
}

// renew renews the lease until f ends.
func (h *holder) renew(f *lease.Fence, term LeaseTerm) {
	for failing := false; ; {
		wait := time.Until(f.Renewed().Add(h.ttl / renewals))
		if failing {
			wait = h.ttl / retries
		}
		select {
		case <-time.After(wait):
		case <-term.Lost():
			h.note(ErrLeaseLost)
			f.End(ErrLeaseLost)
		case <-f.Done():
		}
		if f.Err() != nil {
			return
		}
		attempt, cancel := context.WithTimeout(f, h.ttl/renewals)
		err := term.Renew(attempt)
		cancel()
		if f.Err() != nil {
			return
		}
		h.note(err)
		switch {
		case err == nil:
			f.Renew(term.Renewed())
		case errors.Is(err, ErrLeaseLost):
			f.End(ErrLeaseLost)
		case !failing:
			h.s.logger.Info("lease not renewed; retrying until it ends", watermill.LogFields{"error": err, "left": time.Until(f.Until()).String()})
		}
		failing = err != nil
	}
}

// change records another role. h.mu is held.
func (h *holder) change(role LeaseRole) {
	if h.state.Role != role {
		h.state.Role, h.state.Since = role, time.Now()
		h.state.Changes++
	}
}

// note records what came of a request for the lease.
func (h *holder) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.LastError = err
}
