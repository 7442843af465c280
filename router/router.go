package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Errors of a Router's life.
var (
	// ErrNoRoutes: Run was called before Add.
	ErrNoRoutes = errors.New("router has no routes")
	// ErrStarted: Run was called before, so it cannot be called again and no
	// route can be added.
	ErrStarted = errors.New("router was started before")
	// ErrClosed: the Router is closed.
	ErrClosed = errors.New("router is closed")
	// ErrRoutesEnded: all subscriptions ended by themselves, so Run did.
	ErrRoutesEnded = errors.New("all routes of the router have ended")
	// ErrCloseTimeout: the time for Close was not enough, see [CloseError].
	ErrCloseTimeout = errors.New("router close timeout")
)

// CloseError says what did not end well when the Router closed. Nothing is lost
// by it: what was not finished was not acknowledged and comes again.
type CloseError struct {
	// Open is how many messages were still in flight when the time for them
	// was over.
	Open int
	// Errs are the errors of subscribers, sinks and the dedup store, and
	// [ErrCloseTimeout] when the time was not enough.
	Errs []error
}

// Error tells the number and the errors.
func (e *CloseError) Error() string {
	text := "closing the router"
	if e.Open > 0 {
		text += fmt.Sprintf(": %d messages in flight were not finished and stay unacknowledged", e.Open)
	}
	for _, err := range e.Errs {
		text += ": " + err.Error()
	}
	return text
}

// Unwrap returns Errs.
func (e *CloseError) Unwrap() []error { return e.Errs }

// Router carries messages along its routes. Make it with [New], [Router.Add] the
// routes, and [Router.Run] it once. All methods are safe for concurrent use.
type Router struct {
	config   Config
	payloads *payloads
	logger   watermill.LoggerAdapter

	mu      sync.Mutex
	routes  []*route
	started bool
	closed  bool
	wm      *message.Router

	stop    chan struct{} // closed when Close begins: no more intake, no more waits
	release chan struct{} // closed when the messages in flight are done
	abandon chan struct{} // closed at the end of Close
	running chan struct{} // closed when every route has tried to subscribe

	cancel  context.CancelFunc // of the subscriptions; set by Run
	expect  context.CancelFunc // tells Watermill that its handlers are meant to end; set by Run
	unhold  func()             // lets held subscribers start; set by Run, idempotent
	pending atomic.Int64       // routes that have not tried to subscribe yet
	intakes sync.WaitGroup
	idle    chan struct{} // gets a token whenever a route has no message in flight

	closeOnce sync.Once
	closeErr  error
}

// New returns a Router without routes, or an error that matches [ErrConfig]. A
// nil logger is silent. Payloads are never logged.
func New(config Config, logger watermill.LoggerAdapter) (*Router, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	if config.Dedup.Store == nil && !config.Dedup.Off {
		store, err := NewMemoryStore(MemoryStoreConfig{})
		if err != nil {
			return nil, err
		}
		config.Dedup.Store = store
	}
	return &Router{
		config:   config,
		payloads: newPayloads(config.ClaimCheck, config.MaxInlinePayload),
		logger:   logger,
		stop:     make(chan struct{}),
		release:  make(chan struct{}),
		abandon:  make(chan struct{}),
		running:  make(chan struct{}),
		idle:     make(chan struct{}, 1),
	}, nil
}

// Add adds a route. The error matches [ErrConfig] for a route that cannot work
// or a name that exists, [ErrStarted] once Run was called, [ErrClosed] after
// Close.
func (r *Router) Add(config Route) error {
	if err := config.validate(); err != nil {
		return err
	}
	rt := &route{
		Route:    config,
		payloads: r.payloads,
		health:   &health{name: config.Name, next: r.config.Observer, state: StateStarting, since: time.Now()},
		logger:   r.logger.With(watermill.LogFields{"route": config.Name}),
	}
	rt.done = func() {
		if rt.health.inFlight.Add(-1) == 0 {
			select {
			case r.idle <- struct{}{}:
			default:
			}
		}
	}
	chain, err := r.chain(rt)
	if err != nil {
		return err
	}
	rt.assemble(r.config.Middleware, chain)

	if err := r.register(rt); err != nil {
		return err
	}
	r.warnPoisonSize(rt)
	return nil
}

func (r *Router) register(rt *route) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case r.started:
		return ErrStarted
	}
	for _, other := range r.routes {
		if other.Name == rt.Name {
			return fmt.Errorf("%w: route %q exists", ErrConfig, rt.Name)
		}
	}
	r.routes = append(r.routes, rt)
	return nil
}

// chain makes the standard middlewares of a route, in their order.
func (r *Router) chain(rt *route) ([]message.HandlerMiddleware, error) {
	poison, err := NewPoisonQueue(PoisonConfig{
		Publisher: r.config.Poison, Topic: r.config.PoisonTopic, Timeout: r.config.PoisonTimeout,
		ClaimCheck: r.config.ClaimCheck, MaxInlinePayload: r.config.MaxInlinePayload,
		Stop: r.stop, Name: rt.Name, Observer: rt.health,
	}, r.logger)
	if err != nil {
		return nil, err
	}
	retryConfig := r.config.Retry
	retryConfig.Stop, retryConfig.Name, retryConfig.Observer = r.stop, rt.Name, rt.health
	if rt.retry, err = NewRetry(retryConfig, r.logger); err != nil {
		return nil, err
	}
	standard := Chain{
		Poison:    poison.Middleware,
		Retry:     rt.retry.Middleware,
		Recoverer: NewRecoverer(rt.logger),
	}
	if !r.config.Dedup.Off {
		dedupConfig := r.config.Dedup
		dedupConfig.Scope, dedupConfig.Observer = rt.Name, rt.health
		dedup, err := NewDedup(dedupConfig, r.logger)
		if err != nil {
			return nil, err
		}
		standard.Dedup = dedup.Middleware
	}
	if r.config.Chain != nil {
		return r.config.Chain(rt.Name, standard), nil
	}
	return []message.HandlerMiddleware{standard.Poison, standard.Retry, standard.Dedup, standard.Recoverer}, nil
}

// warnPoisonSize tells when the poison queue may refuse what comes along.
func (r *Router) warnPoisonSize(rt *route) {
	if limit := sizeLimit(r.config.Poison); limit > 0 && r.config.ClaimCheck == nil {
		rt.logger.Info("messages above the size limit of the poison queue stay unacknowledged if they have to go there; a claim check helps (router.Config.ClaimCheck)",
			watermill.LogFields{"max_message_size": limit})
	}
}

// Run subscribes all routes and carries messages until ctx ends, Close is called
// or all subscriptions have ended by themselves. It then closes the Router, see
// [Router.Close], and returns when that is done. It returns nil after a clean
// end; [ErrRoutesEnded]; a [*CloseError]; or, without having done anything,
// [ErrNoRoutes], [ErrStarted] or [ErrClosed].
//
// The end of ctx begins the shutdown and does not cancel the work that is under
// way. The subscriptions get the values of ctx and a cancellation of their own.
//
// A route whose subscription cannot be made is tried again, unless the error is
// [ClassPermanent], and does not hold up the others.
func (r *Router) Run(ctx context.Context) error {
	run, expect := context.WithCancel(context.WithoutCancel(ctx))
	defer expect()
	if err := r.start(ctx, expect); err != nil {
		return err
	}
	// Close waits for this Run, so it needs a goroutine of its own; Run waits
	// for it below.
	unwatch := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer unwatch()

	err := r.wm.Run(run) // returns when the last route has ended
	if err == nil {
		select {
		case <-r.stop:
		default:
			err = ErrRoutesEnded
		}
	}
	return errors.Join(err, r.Close())
}

// start makes Watermill's Router. Its handlers are added here and not in Add,
// because it waits on Close for handlers that were never run.
func (r *Router) start(ctx context.Context, expect context.CancelFunc) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case r.started:
		return ErrStarted
	case len(r.routes) == 0:
		return ErrNoRoutes
	}
	wm, err := message.NewRouter(message.RouterConfig{CloseTimeout: r.drainTimeout()}, r.logger)
	if err != nil {
		return err
	}
	subscriptions, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.pending.Store(int64(len(r.routes)))
	r.unhold = holdAll(r.routes)
	attempted := func() {
		if r.pending.Add(-1) == 0 {
			r.unhold()
			close(r.running)
		}
	}
	for _, rt := range r.routes {
		in := &intake{
			route: rt, ctx: subscriptions, stop: r.stop, release: r.release, abandon: r.abandon,
			running: &r.intakes, attempted: attempted, shift: make(chan *message.Message, 1),
		}
		r.intakes.Add(1) // until in.run returns
		wm.AddConsumerHandler(rt.Name, rt.Topic, in, in.run)
	}
	r.started, r.wm, r.cancel, r.expect = true, wm, cancel, expect
	return nil
}

// holder is a subscriber whose subscriptions share one source. It can be kept
// from reading until all of them exist: a message goes only to the ones that do
// when it arrives.
type holder interface{ Hold() (release func()) }

// holdAll holds every subscriber that can be held, once.
func holdAll(routes []*route) (release func()) {
	held := map[holder]bool{}
	var releases []func()
	for _, rt := range routes {
		if h, ok := rt.From.(holder); ok && reflect.TypeOf(h).Comparable() && !held[h] {
			held[h] = true
			releases = append(releases, h.Hold())
		}
	}
	return sync.OnceFunc(func() {
		for _, release := range releases {
			release()
		}
	})
}

// Running returns a channel that is closed when Run has tried to subscribe every
// route once. Health tells with what success.
func (r *Router) Running() <-chan struct{} { return r.running }

// drainTimeout is the part of CloseTimeout for messages in flight. The rest is
// for confirmations and for closing.
func (r *Router) drainTimeout() time.Duration {
	return r.config.CloseTimeout - r.config.CloseTimeout/5
}

// Close ends the Router in this order, bounded by [Config.CloseTimeout]:
//
//  1. No more messages are taken. Waits for another attempt end, and their
//     messages are given back; attempts that are under way go on.
//  2. The messages in flight are waited for, and acknowledged.
//  3. The subscriptions are cancelled and every subscriber is closed, which for
//     the gateway's Subscriber sends the confirmations.
//  4. Every sink, the poison queue and the dedup store are closed.
//
// Each one is closed once, even when several routes share it. One whose Close
// does not return in time is left behind, and named in the error. The error is a
// [*CloseError] or nil. Further calls wait for the first one and return the same.
func (r *Router) Close() error {
	r.closeOnce.Do(func() { r.closeErr = r.shutdown() })
	return r.closeErr
}

func (r *Router) shutdown() error {
	all, cancelAll := context.WithTimeout(context.Background(), r.config.CloseTimeout)
	defer cancelAll()
	subscribers, cancelSubscribers := context.WithTimeout(all, r.config.CloseTimeout/10*9)
	defer cancelSubscribers()
	drain, cancelDrain := context.WithTimeout(all, r.drainTimeout())
	defer cancelDrain()

	r.mu.Lock()
	r.closed = true
	routes, wm, unhold := r.routes, r.wm, r.unhold
	r.mu.Unlock()
	if unhold != nil {
		unhold()
	}

	failure := &CloseError{}
	close(r.stop)
	for _, rt := range routes {
		rt.health.setState(StateStopped)
	}
	if wm != nil {
		r.expect()
		if !r.drained(drain.Done()) {
			failure.Open = r.inFlight()
			failure.Errs = append(failure.Errs, fmt.Errorf("%w: messages are still in flight", ErrCloseTimeout))
		}
		r.cancel()
	}
	close(r.release)

	var closing closer
	for _, rt := range routes {
		closing.add(fmt.Sprintf("subscriber of route %q", rt.Name), rt.From)
	}
	failure.Errs = append(failure.Errs, closing.close(subscribers.Done())...)
	wait(&r.intakes, subscribers.Done())
	close(r.abandon)

	// Messages that were in flight when the time for them was over have lost
	// their context by now, and get a moment to notice.
	r.drained(subscribers.Done())
	for _, rt := range routes {
		if rt.To != nil {
			closing.add(fmt.Sprintf("sink of route %q", rt.Name), rt.To)
		}
	}
	closing.add("poison queue", r.config.Poison)
	if store, ok := r.config.Dedup.Store.(io.Closer); ok {
		closing.add("dedup store", store)
	}
	failure.Errs = append(failure.Errs, closing.close(all.Done())...)

	if failure.Open == 0 && len(failure.Errs) == 0 {
		return nil
	}
	return failure
}

// drained waits until no message is in flight; false means that limit was first.
func (r *Router) drained(limit <-chan struct{}) bool {
	for r.inFlight() > 0 {
		select {
		case <-r.idle:
		case <-limit:
			return r.inFlight() == 0
		}
	}
	return true
}

func (r *Router) inFlight() int {
	n := 0
	for _, rt := range r.routes {
		n += int(rt.health.inFlight.Load())
	}
	return n
}

// Health returns the state of every route, in the order in which they were added.
func (r *Router) Health() []RouteHealth {
	r.mu.Lock()
	routes := r.routes
	r.mu.Unlock()
	reports := make([]RouteHealth, len(routes))
	for i, rt := range routes {
		report := rt.health.report()
		report.Waiting = rt.retry.Waiting()
		if since, ok := rt.retry.OutageSince(); ok && report.State == StateRunning {
			report.State, report.Since = StateOutage, since
		}
		reports[i] = report
	}
	return reports
}

// closer closes things at the same time, each one once in its life.
type closer struct {
	known []io.Closer
	next  []closing
}

type closing struct {
	name string
	what io.Closer
}

func (c *closer) add(name string, what io.Closer) {
	for _, other := range c.known {
		if same(other, what) {
			return
		}
	}
	c.known = append(c.known, what)
	c.next = append(c.next, closing{name, what})
}

// same reports whether a and b are one object. Values that cannot be compared
// are taken for different ones.
func same(a, b io.Closer) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

// close closes what was added since the last call, and waits until limit.
func (c *closer) close(limit <-chan struct{}) []error {
	type result struct {
		i   int
		err error
	}
	items := c.next
	c.next = nil
	results := make(chan result, len(items))
	for i, item := range items {
		// Ends when the thing's Close returns. We have no means to end it.
		go func() { results <- result{i, item.what.Close()} }()
	}
	var errs []error
	closed := make([]bool, len(items))
	for range items {
		var r result
		select {
		case r = <-results:
		default:
			select {
			case r = <-results:
			case <-limit:
				r.i = -1
			}
		}
		if r.i < 0 {
			break
		}
		closed[r.i] = true
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", items[r.i].name, r.err))
		}
	}
	for i, item := range items {
		if !closed[i] {
			errs = append(errs, fmt.Errorf("%w: %s does not return from Close", ErrCloseTimeout, item.name))
		}
	}
	return errs
}

// wait waits for a group until limit.
func wait(group *sync.WaitGroup, limit <-chan struct{}) {
	done := make(chan struct{})
	// Ends when the group does: after Router.abandon is closed, with the last
	// handler.
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-limit:
	}
}
