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
	"github.com/agrimill/agrimill/internal/reminders"
)

const (
	// leaseRenewals is how often a lease is renewed in its TTL, leaseRetries how often in it a
	// renewal that failed is tried again.
	leaseRenewals = 3
	leaseRetries  = 10
	// streamLooks is how often in Config.StreamDownFor the stream is looked at, and
	// maxStreamDown how many times as long it is after it was in vain.
	streamLooks   = 20
	maxStreamDown = 10
	// After half of Config.StreamDownFor without an answer the gateway is asked for one, and again
	// after a quarter of it: a connection that is dead may hold the first one back.
	askAfter, askEvery = 2, 4
)

// leased is the part of a Subscriber that has a lease. Another Subscriber, the worker, does the
// work of one term and ends with it: what is open in it may be handled by another process from
// then on, so the next term begins with nothing.
type leased struct {
	outer  *Subscriber // the one that the application has
	cfg    Config      // of the workers
	lease  Lease
	logger watermill.LoggerAdapter
	wall   func() time.Time // see fence

	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	inVain int // terms in a row that were given up without a stream; of watchStream

	// mu guards the fields below. It is locked after outer.mu and before worker.mu.
	mu      sync.Mutex
	running bool
	subs    []*leasedSubscription
	worker  *Subscriber // nil without the lease
	fence   *fence      // that of worker
	release func()      // of the worker's stream; nil if nobody holds it
	last    *Subscriber // the worker of the last term, with what it left open on Close
	state   LeaseState
	err     error // of the latest worker's Close
	// endsWithin is how long the end of a term may take, besides its lease.
	endsWithin time.Duration
}

// leasedSubscription is one call of Subscribe.
type leasedSubscription struct {
	ctx   context.Context
	topic string
	out   chan *message.Message
	// users are the subscriptions of workers, which send to out.
	users sync.WaitGroup
	stop  chan struct{} // closed when it ends although ctx has not
}

func newLeased(outer *Subscriber, cfg Config, logger watermill.LoggerAdapter) *leased {
	l := &leased{outer: outer, cfg: cfg, lease: cfg.Lease, logger: logger, wall: wallClock}
	l.cfg.Lease, l.cfg.Ready, l.cfg.StartAfter = nil, nil, -1 // begin has all subscriptions
	l.cfg.CloseTimeout -= l.releaseTimeout()                  // the rest of it is for the lease
	l.cfg.DrainTimeout, l.endsWithin = min(l.cfg.DrainTimeout, l.cfg.CloseTimeout), l.cfg.CloseTimeout
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// releaseTimeout bounds the release of the lease in Close.
func (l *leased) releaseTimeout() time.Duration {
	return min(time.Second, l.outer.cfg.CloseTimeout/10)
}

// subscribe adds a subscription, which gets the messages of this term and of all that follow.
// outer.mu is held.
func (l *leased) subscribe(ctx context.Context, topic string) <-chan *message.Message {
	sub := &leasedSubscription{ctx: ctx, topic: topic, out: make(chan *message.Message), stop: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs = append(l.subs, sub)
	if l.worker != nil {
		l.join(l.worker, sub)
	}
	// Ends after ctx ends or stop is closed, once the deliveries have ended.
	l.wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-sub.stop:
		}
		l.mu.Lock()
		l.subs = slices.DeleteFunc(l.subs, func(other *leasedSubscription) bool { return other == sub })
		l.mu.Unlock()
		sub.users.Wait() // no worker joins it any longer
		close(sub.out)
	})
	return sub.out
}

// join subscribes sub to a worker. l.mu is held.
func (l *leased) join(worker *Subscriber, sub *leasedSubscription) {
	sub.users.Add(1)
	if worker.subscribe(sub.ctx, sub.topic, sub.out, sub.users.Done) != nil {
		sub.users.Done() // the term is over
	}
}

// start wants the lease if anybody subscribes. outer.mu is held, and nobody holds the stream.
func (l *leased) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release != nil {
		l.release()
		l.release = nil
	}
	if l.running || l.ctx.Err() != nil || !slices.ContainsFunc(l.subs, func(sub *leasedSubscription) bool { return sub.ctx.Err() == nil }) {
		return
	}
	l.running, l.last, l.outer.failure = true, nil, nil
	// Ends with Close, or when the service has refused the stream for too long.
	l.wg.Go(l.run)
}

// run competes for the lease and works while it has it, term after term.
func (l *leased) run() {
	l.change(LeaseStandby, 0)
	l.logger.Info("Waiting for the lease", nil)
	policy := backoff.Policy{Initial: l.cfg.Reconnect.Initial, Max: l.cfg.Reconnect.Max}
	var outage reminders.Log
	failures, ended := 0, false
	for !ended || l.wanted() {
		term, err := l.lease.Acquire(l.ctx)
		if err == nil {
			l.note(nil)
			failures = 0
			outage.Over()
			ended = !l.work(term)
			continue
		}
		if ended = l.ctx.Err() != nil; ended {
			continue
		}
		l.note(err)
		if lasted, due := outage.Failed(); failures == 0 || due {
			l.logger.Error("The lease cannot be acquired; retrying", err, reminders.Fields(lasted, err))
		}
		_ = policy.Wait(l.ctx, failures) // Acquire says that l.ctx has ended
		failures++
	}
	l.change(LeaseNone, 0)
}

// wanted reports whether somebody has subscribed since the service refused the stream for too
// long. If not, the next one starts run again.
func (l *leased) wanted() bool {
	l.outer.mu.Lock()
	defer l.outer.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.subs) == 0 || l.ctx.Err() != nil {
		l.running = false
		return false
	}
	l.last, l.outer.failure = nil, nil
	return true
}

// work works until the end of a term and reports whether there may be another one.
func (l *leased) work(term LeaseTerm) (again bool) {
	f := newFence(l.lease.TTL(), term.Renewed(), l.wall)
	failed := make(chan struct{})
	worker := newWorker(l.cfg, l.logger, l.outer.stats, f, func(cause error) {
		l.fail(cause)
		close(failed)
	})
	renewing, stopRenewing := context.WithCancel(context.Background())
	holding, stopHolding := context.WithCancel(context.Background())
	var helpers, hook sync.WaitGroup
	helpers.Go(func() { l.renew(renewing, f, term) })
	helpers.Go(func() {
		<-f.over
		stopHolding()
		worker.cut()
	})
	away := make(chan struct{})
	helpers.Go(func() { l.watchStream(renewing, worker, func() { close(away) }) })
	l.begin(worker, f, term.Epoch())
	if holds := l.cfg.Hooks.Holding; holds != nil && !f.passed() {
		hook.Go(func() { holds(f.fenced(holding), term.Epoch()) })
	}

	again = true
	gaveUp := false
	select {
	case <-f.over:
	case <-away:
		gaveUp = true
		f.end() // nothing may start once the lease is released
	case <-failed:
		again = false
	case <-l.ctx.Done():
		again = false
	}
	stopHolding()
	l.mu.Lock()
	limit := l.endsWithin
	l.mu.Unlock()
	patience, cancel := context.WithTimeout(context.Background(), limit)
	err := worker.CloseWithin(limit) // while the term lasts, it drains and confirms
	if !waitUntil(patience, ended(&hook)) {
		l.logger.Error("The lease is given up although a hook still runs", errStillRunning, nil)
	}
	cancel()
	lost := f.passed() && !gaveUp
	stopRenewing()
	f.stop()
	helpers.Wait()
	l.end(worker, lost, gaveUp, again, err)
	switch {
	case lost:
	case gaveUp: // nobody waits for this one, so the store may take its time
		l.handOver(l.ctx, l.lease.TTL(), term)
	default:
		l.handOver(context.Background(), l.releaseTimeout(), term)
	}
	if gaveUp { // another process gets it before
		pause := time.NewTimer(l.lease.TTL())
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-l.ctx.Done():
		}
	}
	return again
}

// watchStream calls giveUp once the stream has been down, or the gateway has not answered, for too
// long, unless the service refuses the stream, which it would others, too. It returns then, or when
// ctx ends.
//
// A stream that is open proves nothing: the service may have nothing to say, or be gone without a
// word. So what counts is an answer to whatever was asked, and a byte on the stream. If there was
// none for a while, the worker asks.
func (l *leased) watchStream(ctx context.Context, worker *Subscriber, giveUp func()) {
	if l.cfg.StreamDownFor < 0 {
		return
	}
	patience := l.cfg.StreamDownFor * time.Duration(min(1<<min(l.inVain, maxStreamDown), maxStreamDown)) // the inner bound is against overflow
	tick := time.NewTicker(max(patience/streamLooks, time.Millisecond))
	defer tick.Stop()
	var questions sync.WaitGroup
	defer questions.Wait()
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	var unasked heard
	began := time.Now()
	up, asked := began, began
	l.inVain++
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		state := worker.Stats().Stream
		heard := later(later(began, worker.lastHeard()), unasked.last())
		switch {
		case !state.RefusedSince.IsZero() || !worker.wantsStream():
			up, began = now, now
			continue
		case state.Connected:
			up = now
			if !worker.lastHeard().IsZero() {
				l.inVain = 0
			}
		}
		if silent := now.Sub(heard); silent >= patience/askAfter && now.Sub(asked) >= patience/askEvery {
			asked = now
			questions.Go(func() { worker.ask(asking, &unasked) }) // ends with asking
		}
		down, err := now.Sub(up), state.LastError
		if silent := now.Sub(heard); silent > down && state.Connected {
			down, err = silent, errSilent
		}
		if down >= patience+headGrace { // the stream may be open, and not have said so
			l.logger.Error("The lease is given up, because the event stream cannot be opened, or the gateway does not answer; another process may be able to reach it",
				err, watermill.LogFields{"down": down.Round(time.Millisecond).String()})
			giveUp()
			return
		}
	}
}

// errSilent is logged when the lease is given up.
var errSilent = errors.New("subscriber: nothing was heard from the gateway, although it was asked")

// begin lets the worker work.
func (l *leased) begin(worker *Subscriber, f *fence, epoch uint64) {
	l.change(LeaseHolder, epoch)
	l.logger.Info("Lease acquired", watermill.LogFields{"epoch": epoch})
	l.outer.mu.Lock()
	defer l.outer.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	release := worker.holdStream()
	l.worker, l.fence = worker, f
	for _, sub := range l.subs {
		l.join(worker, sub)
	}
	if l.outer.holds > 0 {
		l.release = release
	} else {
		release()
	}
}

// end records the end of a term, after which there may be another one.
func (l *leased) end(worker *Subscriber, lost, gaveUp, again bool, err error) {
	l.mu.Lock()
	if !again { // else another process gets it
		l.last = worker
	}
	l.worker, l.fence, l.release = nil, nil, nil
	if l.err = err; again {
		l.err = nil // what was not confirmed comes again
	}
	if lost {
		l.state.Lost++
	}
	if gaveUp {
		l.state.GivenUp++
	}
	epoch, cause := l.state.Epoch, l.state.LastError
	l.mu.Unlock()
	if again {
		l.change(LeaseStandby, 0)
	}
	if lost {
		fields := watermill.LogFields{"epoch": epoch, "unconfirmed": worker.confirmer.waiting.Load()}
		l.logger.Error("Lease lost; nothing is handled or confirmed until it is acquired again", cmp.Or(cause, ErrLeaseLost), fields)
	}
}

// handOver releases the lease, so that another process gets it at once. It ends with ctx, or after timeout.
func (l *leased) handOver(ctx context.Context, timeout time.Duration, term LeaseTerm) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := term.Release(ctx); err != nil {
		l.logger.Error("The lease could not be released; it ends with its time", err, watermill.LogFields{"epoch": term.Epoch()})
		return
	}
	l.logger.Info("Lease released", watermill.LogFields{"epoch": term.Epoch()})
}

// renew renews the lease until ctx or the term ends.
func (l *leased) renew(ctx context.Context, f *fence, term LeaseTerm) {
	ttl := l.lease.TTL()
	next := f.renewed.Load().Add(ttl / leaseRenewals)
	for failing := false; ; {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-term.Lost():
			l.note(ErrLeaseLost)
			f.end()
		case <-f.over:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil || f.passed() {
			return
		}
		began := time.Now()
		attempt, cancel := context.WithTimeout(ctx, ttl/leaseRenewals)
		err := term.Renew(attempt)
		cancel()
		if ctx.Err() != nil {
			return
		}
		l.note(err)
		switch {
		case err == nil:
			f.renew(term.Renewed())
			next, failing = began.Add(ttl/leaseRenewals), false
		case errors.Is(err, ErrLeaseLost):
			f.end()
		default:
			if !failing {
				l.logger.Info("Lease not renewed; retrying until it ends", watermill.LogFields{"err": err, "left": time.Until(f.until()).String()})
			}
			next, failing = time.Now().Add(ttl/leaseRetries), true
		}
	}
}

// change records another role.
func (l *leased) change(role LeaseRole, epoch uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Role == role {
		return
	}
	l.state.Role, l.state.Since = role, time.Now()
	l.state.Changes++
	if epoch != 0 {
		l.state.Epoch = epoch
	}
}

// note records what came of a request for the lease.
func (l *leased) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.LastError = err
}

// fail ends every subscription with cause.
func (l *leased) fail(cause error) {
	l.outer.mu.Lock()
	l.outer.failure = cause
	l.outer.mu.Unlock()
	l.stopAll()
}

// stopAll ends every subscription.
func (l *leased) stopAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sub := range l.subs {
		close(sub.stop)
	}
	l.subs = nil
}

// close is [Subscriber.CloseWithin].
func (l *leased) close(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l.mu.Lock()
	l.endsWithin = limit - l.releaseTimeout()
	l.mu.Unlock()
	l.outer.mu.Lock()
	l.outer.closed = true
	l.outer.mu.Unlock()
	l.outer.cancel() // for what waits for a start
	l.cancel()
	l.stopAll()
	if !waitUntil(ctx, ended(&l.wg)) || !waitUntil(ctx, ended(&l.outer.wg)) {
		l.logger.Error("Close gave up waiting", errStillRunning, nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// working is the worker of this term, or after the last one that of it; without either, the outer Subscriber, in which
// nothing is open.
func (l *leased) working() (*Subscriber, LeaseState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.state
	if l.fence != nil {
		state.Until = l.fence.until()
	}
	return cmp.Or(l.worker, l.last, l.outer), state
}

// newWorker returns a Subscriber for one term. failed is called with the reason when the service
// has refused the stream for too long.
func newWorker(cfg Config, logger watermill.LoggerAdapter, stats *counters, f *fence, failed func(cause error)) *Subscriber {
	s := newSubscriber(cfg, logger, stats)
	s.fence, s.confirmer.fence, s.failed = f, f, failed
	if s.quarantine != nil {
		s.quarantine.fence = f
	}
	return s
}

// cut ends everything at once, because the term is over: nothing is handed out or confirmed from
// then on, and the contexts of open messages end. Close has to follow.
func (s *Subscriber) cut() {
	s.mu.Lock()
	s.closed = true
	subs := slices.Clone(s.subscriptions)
	stopRun := s.stopRun
	s.mu.Unlock()
	if stopRun != nil {
		stopRun()
	}
	s.confirmer.cancel()
	if s.quarantine != nil {
		s.quarantine.cancel()
	}
	for _, sub := range subs {
		sub.giveUp()
		s.stopSubscription(sub)
	}
	s.cancel()
}
