package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
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
	// ErrRoutesEnded: all subscriptions ended on their own, and so did Run. The error
	// also matches the reasons, as far as they are known.
	ErrRoutesEnded = errors.New("all routes of the router have ended")
	// ErrCloseTimeout: Close did not finish in time; see [CloseError].
	ErrCloseTimeout = errors.New("router close timeout")
)

// CloseError reports what did not finish cleanly when the Router closed. Nothing is lost:
// unfinished messages were not acknowledged and are redelivered.
type CloseError struct {
	// Open is how many messages were still in flight when their time
	// was up.
	InFlight int
	// Errs are the errors of subscribers, sinks and the dedup store, and
	// [ErrCloseTimeout] if Close ran out of time.
	Errs []error
}

// Error reports the number of open messages and the errors.
func (e *CloseError) Error() string {
	text := "closing the router"
	if e.InFlight > 0 {
		text += fmt.Sprintf(": %d messages in flight were not finished and stay unacknowledged", e.InFlight)
	}
	for _, err := range e.Errs {
		text += ": " + err.Error()
	}
	return text
}

// Unwrap returns Errs.
func (e *CloseError) Unwrap() []error { return e.Errs }

// RouteError reports why a route ended on its own: its subscription was refused, for
// example because of a configuration mistake in its source, or has ended for good. It
// does not concern the other routes.
type RouteError struct {
	// Route is the name of the route.
	Route string
	// Err is the cause.
	Err error
}

// Error returns the route and the cause.
func (e *RouteError) Error() string {
	return fmt.Sprintf("route %q: %s", e.Route, RedactError(e.Err, nil))
}

// Unwrap returns Err.
func (e *RouteError) Unwrap() error { return e.Err }

// Router carries messages along its routes. Create it with [New], [Router.Add] the
// routes, and [Router.Run] it once. All methods are safe for concurrent use.
type Router struct {
	config Config
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	routes  []*route
	started bool
	closed  bool

	ending  atomic.Value  // holds the Done channel of Run's context
	stop    chan struct{} // closed when Close begins: no more waits, and no more intake, except of what is drained
	drawn   chan struct{} // closed when the sources have been drained: no more intake
	abandon chan struct{} // closed at the end of Close
	running chan struct{} // closed when every route has tried to subscribe

	cancel  context.CancelFunc // of the subscriptions; set by Run, called when the messages in flight are done
	unhold  func()             // lets held subscribers start; set by Run, idempotent
	intakes sync.WaitGroup     // their goroutines
	active  sync.WaitGroup     // routes that have not ended
	idle    chan struct{}      // gets a token whenever a route has no message in flight

	life     *lifecycle.Life
	closeErr error // of Close
}

// New returns a Router without routes, or an error that matches [ErrConfig]. A
// nil logger discards all output. Payloads are never logged.
func New(config Config, logger watermill.LoggerAdapter) (*Router, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	logger = warnlog.Or(logger)
	config.Dedup = config.Dedup.ownStore()
	return &Router{
		config:  config,
		logger:  logger,
		stop:    make(chan struct{}),
		drawn:   make(chan struct{}),
		abandon: make(chan struct{}),
		running: make(chan struct{}),
		idle:    make(chan struct{}, 1),
		life:    lifecycle.New(),
	}, nil
}

// Add adds a route. The error matches [ErrConfig] if the route cannot work, has one of
// the few middlewares of Watermill that break what a route promises (docs/watermill.md lists all) or a
// [Dedup] in its own Middleware, or its name is taken, [ErrStarted] once Run was called, and [ErrClosed] after
// Close.
func (r *Router) Add(config Route) error {
	if err := config.validate(); err != nil {
		return err
	}
	if config.To != nil && sameSink(config.To, r.config.Poison) {
		if config.ToTopic == r.config.PoisonTopic {
			return fmt.Errorf("%w: route %q: the topic in the sink is that of the poison queue", ErrConfig, config.Name)
		}
		config.TopicFunc = keepOff(config.TopicFunc, r.config.PoisonTopic, config.To.TopicSegment)
	}
	rt := &route{
		Route:    config,
		payloads: payloads{r.config.ClaimCheck},
		health: &health{
			name: config.Name, next: r.config.Observer, state: StateStarting, since: time.Now(), failingAfter: uint64(r.config.FailingAfter),
		},
		classify: r.config.Classify,
		names:    watermillNames(&config),
		logger:   r.logger.With(watermill.LogFields{"route": config.Name}),
	}
	rt.done = func() {
		if rt.health.inFlight.Add(-1) == 0 {
			wakeup.Token(r.idle)
		}
	}
	var err error
	if rt.durable, err = newDurable(&rt.Route, r.config.Poison); err != nil {
		return err
	}
	chain, err := r.chain(rt)
	if err != nil {
		return err
	}
	if err := errors.Join(
		checkMiddlewares(rt.Name, r.config.Middleware, false),
		checkMiddlewares(rt.Name, chain, false),
		checkMiddlewares(rt.Name, rt.Middleware, true),
	); err != nil {
		return err
	}
	rt.assemble(r.config.Middleware, chain)
	rt.typed = rt.To != nil && rt.To.Describe().TopicIsType
	rt.alone = rt.unchanged && !rt.typed && rt.Filter == nil && r.config.Chain == nil && len(r.config.Middleware) == 0 && rt.To.Describe().ReadOnly == rt.To

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
	shared := &company{}
	for _, other := range r.routes {
		if other.Name == rt.Name {
			return fmt.Errorf("%w: route %q exists", ErrConfig, rt.Name)
		}
		if same(other.From, rt.From) {
			shared = other.retry.company
		}
	}
	rt.retry.share(shared)
	r.routes = append(r.routes, rt)
	return nil
}

// chain makes the standard middlewares of a route, in their order.
func (r *Router) chain(rt *route) ([]message.HandlerMiddleware, error) {
	poison, err := NewPoisonQueue(PoisonConfig{
		Publisher: r.config.Poison, Topic: r.config.PoisonTopic,
		ClaimCheck: r.config.ClaimCheck, Stop: r.stop, ending: r.runEnded, Classify: r.config.Classify, Name: rt.Name, Observer: rt.health,
	}, r.logger)
	if err != nil {
		return nil, err
	}
	var recovered func() <-chan struct{}
	if sink, ok := sinks.As[sinks.Recovering](rt.To); ok {
		recovered = sink.Recovered
	}
	rt.retry, err = NewRetry(RetryConfig{
		RetrySettings: r.config.Retry,
		Stop:          r.stop, ending: r.runEnded, Recovered: recovered,
		Classify: r.config.Classify, Name: rt.Name, Observer: rt.health,
		lastSuccess: func() time.Time { return time.Unix(0, rt.health.lastSuccess.Load()) },
	}, r.logger)
	if err != nil {
		return nil, err
	}
	rt.dedup, err = NewDedup(DedupConfig{DedupSettings: r.config.Dedup, Scope: rt.Name, Observer: rt.health}, r.logger)
	if err != nil {
		return nil, err
	}
	standard := Chain{
		Poison:    poison.Middleware,
		Retry:     rt.retry.Middleware,
		Dedup:     rt.dedup.Middleware,
		Recoverer: NewRecoverer(rt.logger),
	}
	if r.config.Chain != nil {
		return r.config.Chain(rt.Name, standard), nil
	}
	return []message.HandlerMiddleware{standard.Poison, standard.Retry, standard.Dedup, standard.Recoverer}, nil
}

// warnPoisonSize tells when the poison queue may refuse what comes along.
func (r *Router) warnPoisonSize(rt *route) {
	if limit := sizeLimit(r.config.Poison); limit > 0 && r.config.ClaimCheck == nil {
		rt.logger.Info("messages above the size limit of the poison queue stay unacknowledged if they have to go there; a claim check helps",
			watermill.LogFields{"max_message_size": limit})
	}
}

// Run subscribes all routes and carries messages until ctx ends, Close is called or all subscriptions have ended on their
// own. It then closes the Router, see [Router.Close]. It returns nil after a clean shutdown; or, joined, [ErrRoutesEnded],
// a [*RouteError] for each route that ended on its own for a known reason, and a [*CloseError]; or, without having
// done anything, [ErrNoRoutes], [ErrStarted] or [ErrClosed].
//
// The end of ctx starts the shutdown and does not cancel work in progress. The subscriptions get the values of ctx and their
// own cancellation.
//
// A route whose subscription fails is retried, and does not delay the others. It is refused for good, in [StateFailed], if the
// error is [ClassPermanent], or means that the configuration of a subscriber of this module is invalid or that it was
// closed.
func (r *Router) Run(ctx context.Context) error {
	if err := r.start(ctx); err != nil {
		return err
	}
	// Close waits for this Run, so it needs a goroutine of its own; Run waits
	// for it below.
	unwatch := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer unwatch()

	wait(&r.active, r.abandon)
	causes := r.causes()
	var err error
	select {
	case <-r.stop:
		err = errors.Join(causes...)
	default:
		err = ErrRoutesEnded
		for _, cause := range causes {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	return errors.Join(err, r.Close())
}

// causes returns a [*RouteError] for each route that has ended by itself, as far as it
// is known why. Of those that ended for the same reason one is named.
func (r *Router) causes() []error {
	var causes []error
	told := map[string]bool{}
	for _, rt := range r.routes {
		rt.health.mu.Lock()
		cause := rt.health.cause
		rt.health.mu.Unlock()
		if cause != nil && !told[cause.Error()] {
			told[cause.Error()] = true
			causes = append(causes, &RouteError{Route: rt.Name, Err: cause})
		}
	}
	return causes
}

func (r *Router) start(ctx context.Context) error {
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
	r.ending.Store(ctx.Done())
	subscriptions, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var pending atomic.Int64 // routes that have not tried to subscribe yet
	pending.Store(int64(len(r.routes)))
	ready := make(chan struct{})
	r.unhold = sync.OnceFunc(func() { close(ready) })
	attempted := func() {
		if pending.Add(-1) == 0 {
			r.unhold()
			close(r.running)
		}
	}
	for _, rt := range r.routes {
		in := &intake{
			route: rt, ctx: subscriptions, start: ready, stop: r.stop, abandon: r.abandon,
			running: &r.intakes, attempted: attempted,
		}
		if _, drains := rt.From.(drainer); drains {
			in.stop = r.drawn
		}
		r.active.Add(1)
		// Ends when the subscription has, or Close has no more time.
		r.intakes.Go(func() {
			defer r.active.Done()
			in.run()
		})
	}
	r.started, r.cancel = true, cancel
	return nil
}

// Running returns a channel that is closed when Run has tried to subscribe every
// route once. Health reports the results.
func (r *Router) Running() <-chan struct{} { return r.running }

// runEnded reports whether Run's context has ended. A handler that uses it, too, may be faster than Close.
func (r *Router) runEnded() bool {
	ended, _ := r.ending.Load().(<-chan struct{})
	return wakeup.Raised(ended)
}

// Health returns the state of every route, in the order in which the routes were added.
func (r *Router) Health() []RouteHealth {
	r.mu.Lock()
	routes := r.routes
	r.mu.Unlock()
	reports := make([]RouteHealth, len(routes))
	for i, rt := range routes {
		report := rt.health.report()
		report.Waiting = rt.retry.waitingMessages()
		report.WaitingForCopies, report.CopyWaits = rt.dedup.waits.report()
		report.MaybeRepeated = rt.dedup.maybeRepeated.Load()
		report.Refused = rt.retry.Refused()
		if since, until := rt.retry.outage(); !since.IsZero() && (report.State == StateRunning || report.State == StateFailing) {
			report.State, report.Since, report.Until = StateOutage, since, until
		}
		report.unread(rt.From)
		reports[i] = report
	}
	return reports
}
