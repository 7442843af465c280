// Package lease has a worker work while this process holds a lease, term after term.
//
// A [Holder] makes a worker for each term and throws it away at the end: what is open in it may be handled by another
// process from then on. What outlives the terms is in the Holder, the subscriptions above all. A [Fence] is the context
// of a term.
package lease

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
	"github.com/agrimill/agrimill/internal/reminders"
)

const (
	// renewals is how often a lease is renewed in its TTL, retries how often in it a renewal that failed is tried again.
	renewals = 3
	retries  = 10
)

// Term is subscriber.LeaseTerm.
type Term interface {
	Epoch() uint64
	Renewed() time.Time
	Renew(ctx context.Context) error
	Lost() <-chan struct{}
	Release(ctx context.Context) error
}

// Worker is a subscriber that works for one term. All that it does derives from the fence of the term.
type Worker interface {
	// Join adds subscriptions, all of them before anything is taken in. They end with their contexts, with the term, or
	// by Close.
	Join(subs ...*Subscription)
	// Close ends the work within limit, and returns how many acks it did not confirm.
	Close(limit time.Duration) (unconfirmed int)
}

// Subscription is one call of Subscribe. It gets the messages of all terms.
type Subscription struct {
	Ctx   context.Context
	Topic string
	Out   chan *message.Message
	// Left is to be called by each worker that it has joined, when that sends nothing to Out any longer.
	Left func()

	end   context.CancelFunc
	users sync.WaitGroup
}

// Config configures a [Holder].
type Config struct {
	TTL     time.Duration
	Acquire func(ctx context.Context) (Term, error)
	// Worker returns the worker of a term.
	Worker func(*Fence) Worker
	// Holding is called in each term, and waited for; it may be nil.
	Holding func(ctx context.Context, epoch uint64)
	// Retry is how long to wait when Acquire has failed.
	Retry backoff.Policy
	// CloseTimeout bounds the end of a term.
	CloseTimeout time.Duration
	Logger       watermill.LoggerAdapter
	// Wall is time.Now. Only its wall clock is looked at.
	Wall func() time.Time
}

// Role is what a Holder does: nothing, wait for the lease, or work.
type Role int

// The roles, in the order of those of package subscriber.
const (
	None Role = iota
	Standby
	Holding
)

// State is subscriber.LeaseState.
type State struct {
	Role                   Role
	Epoch                  uint64
	Since, Until           time.Time
	Changes, Lost, GivenUp int64
	LastError              error
}

// Holder wants the lease from Start to Close while anybody subscribes, and has a worker work while it holds it.
type Holder struct {
	cfg Config
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards the fields below. It is locked before any lock of a worker.
	mu          sync.Mutex
	running     bool
	drained     bool
	subs        []*Subscription
	worker      Worker // of this term, or of the last one; nil between two
	fence       *Fence // of this term; nil without the lease
	limit       time.Duration
	state       State
	unconfirmed int // that the last worker left
}

// New returns a Holder. It has to be closed.
func New(cfg Config) *Holder {
	h := &Holder{cfg: cfg, limit: cfg.CloseTimeout}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Subscribe adds a subscription, which gets the messages of this term and of all that follow. It must not be called after
// Close.
func (h *Holder) Subscribe(ctx context.Context, topic string) <-chan *message.Message {
	sub := &Subscription{Topic: topic, Out: make(chan *message.Message)}
	sub.Left = sub.users.Done
	sub.Ctx, sub.end = context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs = append(h.subs, sub)
	if h.fence != nil {
		h.join(sub)
	}
	// Ends with sub.Ctx, once the deliveries have ended.
	h.wg.Go(func() {
		<-sub.Ctx.Done()
		h.mu.Lock()
		h.subs = slices.DeleteFunc(h.subs, func(other *Subscription) bool { return other == sub })
		h.mu.Unlock()
		sub.users.Wait() // no worker joins it any longer
		close(sub.Out)
	})
	return sub.Out
}

// join has the worker send to subs. h.mu is held.
func (h *Holder) join(subs ...*Subscription) {
	for _, sub := range subs {
		sub.users.Add(1)
	}
	h.worker.Join(subs...)
}

// Start wants the lease if anybody subscribes.
func (h *Holder) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running && h.between() {
		h.running = true
		h.wg.Go(h.run) // ends with Close, or when nobody subscribes
	}
}

// Drain has no other term begin.
func (h *Holder) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drained = true
}

// Worker returns the worker of this term, or after the last one that of it; nil otherwise.
func (h *Holder) Worker() Worker {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.worker
}

// State returns the state.
func (h *Holder) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.state
	if h.fence != nil {
		state.Until = h.fence.until()
	}
	return state
}

// Close ends everything within limit, and returns how many acks the last worker did not confirm.
func (h *Holder) Close(limit time.Duration) (unconfirmed int) {
	late, done := time.After(limit), make(chan struct{})
	h.mu.Lock()
	h.limit = limit
	h.mu.Unlock()
	h.cancel()
	h.endSubscriptions()
	go func() { // ends with the last goroutine of h
		h.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-late:
		h.cfg.Logger.Error("Close gave up waiting", ErrStillRunning, nil)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unconfirmed
}

// ErrStillRunning is logged when a hook or other application code did not return
// while Close was waiting.
var ErrStillRunning = errors.New("subscriber: a hook or other application code is still running")

func (h *Holder) endSubscriptions() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sub := range h.subs {
		sub.end()
	}
}

// wanted reports whether anybody wants the lease. h.mu is held.
func (h *Holder) wanted() bool {
	return h.ctx.Err() == nil && !h.drained && slices.ContainsFunc(h.subs, func(sub *Subscription) bool { return sub.Ctx.Err() == nil })
}

// between sets the role before the next term, and reports whether there is to be one. h.mu is held.
func (h *Holder) between() bool {
	if !h.wanted() {
		h.change(None)
		return false
	}
	h.worker, h.unconfirmed = nil, 0 // what was not confirmed comes again
	h.change(Standby)
	return true
}

// again is between for run.
func (h *Holder) again() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = h.between()
	return h.running
}

// run competes for the lease and works while it has it, term after term.
func (h *Holder) run() {
	h.cfg.Logger.Info("Waiting for the lease", nil)
	var outage reminders.Log
	for failures := 0; h.again(); {
		term, err := h.cfg.Acquire(h.ctx)
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
			h.cfg.Logger.Error("The lease cannot be acquired; retrying", err, reminders.Fields(lasted, err))
		}
		_ = h.cfg.Retry.Wait(h.ctx, failures) // again says that h.ctx has ended
		failures++
	}
}

// work works until the end of a term.
func (h *Holder) work(term Term) {
	f := newFence(h.cfg.TTL, term.Renewed(), h.cfg.Wall)
	working, stop := context.WithCancel(h.ctx)
	f.leave = func() {
		h.endSubscriptions()
		stop()
	}
	var helpers sync.WaitGroup // they end with f
	helpers.Go(f.watch)
	helpers.Go(func() { h.renew(f, term) })
	worker, held := h.begin(f, term.Epoch()), make(chan struct{})
	holding, stopHolding := context.WithCancel(f)
	go func() { // the end of the term waits for it
		defer close(held)
		if h.cfg.Holding != nil && f.Err() == nil {
			h.cfg.Holding(Guard(holding), term.Epoch())
		}
	}()
	select {
	case <-f.Done():
	case <-working.Done():
	}
	stop()
	stopHolding()
	release := min(time.Second, h.cfg.CloseTimeout/10) // so long may that take
	h.mu.Lock()
	limit := h.limit - release
	h.mu.Unlock()
	late := time.After(limit)
	unconfirmed := worker.Close(limit) // while the term lasts, it drains and confirms
	select {
	case <-held:
	case <-late:
		h.cfg.Logger.Error("The lease is given up although a hook still runs", ErrStillRunning, nil)
	}
	f.end(errOver)
	helpers.Wait()
	switch cause := h.end(f, unconfirmed); {
	case errors.Is(cause, errGivenUp): // nobody waits for this one, so the store may take its time
		h.handOver(h.ctx, h.cfg.TTL, term)
		_ = backoff.Sleep(h.ctx, h.cfg.TTL) // another process gets it before
	case errors.Is(cause, errOver):
		h.handOver(context.Background(), release, term)
	default:
		h.cfg.Logger.Error("Lease lost; nothing is handled or confirmed until it is acquired again", cause,
			watermill.LogFields{"epoch": term.Epoch(), "unconfirmed": unconfirmed})
	}
}

// begin has a worker work.
func (h *Holder) begin(f *Fence, epoch uint64) Worker {
	h.cfg.Logger.Info("Lease acquired", watermill.LogFields{"epoch": epoch})
	worker := h.cfg.Worker(f)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change(Holding)
	h.state.Epoch, h.worker, h.fence = epoch, worker, f
	if h.wanted() {
		h.join(h.subs...)
	}
	return worker
}

// end records the end of a term, and returns why it ended.
func (h *Holder) end(f *Fence, unconfirmed int) (cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fence, h.unconfirmed = nil, unconfirmed
	h.between()
	switch cause = context.Cause(f); {
	case errors.Is(cause, errGivenUp):
		h.state.GivenUp++
	case errors.Is(cause, ErrLost):
		h.state.Lost++
		cause = cmp.Or(h.state.LastError, cause)
	}
	return cause
}

// handOver releases the lease, so that another process gets it at once. It ends with ctx, or after timeout.
func (h *Holder) handOver(ctx context.Context, timeout time.Duration, term Term) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := term.Release(ctx); err != nil {
		h.cfg.Logger.Error("The lease could not be released; it ends with its time", err, watermill.LogFields{"epoch": term.Epoch()})
		return
	}
	h.cfg.Logger.Info("Lease released", watermill.LogFields{"epoch": term.Epoch()})
}

// renew renews the lease until f ends.
func (h *Holder) renew(f *Fence, term Term) {
	for failing := false; ; {
		wait := time.Until(f.renewed.Load().Add(h.cfg.TTL / renewals))
		if failing {
			wait = h.cfg.TTL / retries
		}
		select {
		case <-time.After(wait):
		case <-term.Lost():
			h.note(ErrLost)
			f.end(ErrLost)
		case <-f.Done():
		}
		if f.Err() != nil {
			return
		}
		attempt, cancel := context.WithTimeout(f, h.cfg.TTL/renewals)
		err := term.Renew(attempt)
		cancel()
		if f.Err() != nil {
			return
		}
		h.note(err)
		switch {
		case err == nil:
			f.renew(term.Renewed())
		case errors.Is(err, ErrLost):
			f.end(ErrLost)
		case !failing:
			h.cfg.Logger.Info("Lease not renewed; retrying until it ends", watermill.LogFields{"err": err, "left": time.Until(f.until()).String()})
		}
		failing = err != nil
	}
}

// change records another role. h.mu is held.
func (h *Holder) change(role Role) {
	if h.state.Role != role {
		h.state.Role, h.state.Since = role, time.Now()
		h.state.Changes++
	}
}

// note records what came of a request for the lease.
func (h *Holder) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.LastError = err
}
