package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// Options are what a pipeline gets from the program around it. The zero value is usable.
type Options struct {
	// Name and Version appear in the status: the operator's name for this agrimill, and the
	// version of the program.
	Name, Version string
	// Revision is the source revision of the program, for the metric agrimill_build_info; empty if unknown.
	Revision string
	// Logger gets one line per change of state, and errors; never payloads or secrets. Nil is silent.
	Logger *slog.Logger
	// Registry gets the collectors, which stay registered after Run. Nil means no metrics.
	Registry prometheus.Registerer
	// Stdout is where sinks of kind log write. Nil discards.
	Stdout io.Writer
	// CheckInterval is how often sinks and stores are checked, 2s if 0.
	CheckInterval time.Duration
	// WatchInterval is how soon a change of state is logged, 500ms if 0.
	WatchInterval time.Duration
	// ReadyGrace is the [admin.Steady.Grace] of the verdict, and so of Ready, 15s if 0.
	ReadyGrace time.Duration
	// TenantsInterval is the minimum time between two refreshes of the list of tenants while it is displayed, 1m if 0: no
	// event reports that an endpoint was renamed.
	TenantsInterval time.Duration
	// Observer is notified of what happens to messages. Nil means none.
	Observer router.Observer
	// ForceReplays has Replay send messages that have reached some of their recipients to all of them again.
	ForceReplays bool
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	o.CheckInterval = cmp.Or(o.CheckInterval, 2*time.Second)
	o.WatchInterval = cmp.Or(o.WatchInterval, 500*time.Millisecond)
	o.ReadyGrace = cmp.Or(o.ReadyGrace, 15*time.Second)
	o.TenantsInterval = cmp.Or(o.TenantsInterval, time.Minute)
}

// Pipeline runs routes between the gateway and brokers. Create it with [New] and call
// [Pipeline.Run] once. All methods are safe for concurrent use.
type Pipeline struct {
	options Options
	logger  *slog.Logger
	started time.Time

	// All but state live as long as the pipeline, across reloads.
	inbound
	instance
	remembered
	observed
	signals
	state
}

// inbound is what talks to the gateway, but for the routes that send.
type inbound struct {
	client     *gateway.Client
	secret     *secret
	directory  *gateway.Directory
	names      names
	subscriber *subscriber.Subscriber
	endpoints  endpoints
}

// instance is this process among several.
type instance struct {
	lease *lease       // nil: none
	turns *turns       // nil: it is always its turn
	owner router.Owner // of reservations in memory
}

// remembered is what is known of messages that came before, and where large payloads are.
type remembered struct {
	memory     *memory
	inward     router.KeyFunc
	devices    devices
	claimCheck *claimcheck.Store  // nil: none
	claims     gateway.ClaimCheck // the same for who uses it: nil without one
}

// observed is what operators see.
type observed struct {
	readiness    readiness
	snapshots    sync.Mutex // is held while one is made: steady wants them in their order
	steady       admin.Steady
	certificates atomic.Pointer[[]admin.Certificate] // as of the last look
	observer     *metrics.Observer
	sinkMetrics  *metrics.Sinks   // those of the same name are counted together
	journal      *journal.Journal // nil: none
	history      *history.History
	tracing      *tracing.Tracing         // nil: none
	spans        *sdktrace.TracerProvider // nil: none

	// How many confirmations the gateway had accepted when a check last saw more, and when that was.
	confirmed   int64
	confirmedAt time.Time
}

// signals pass between Run, its parts and the callers of Reload.
type signals struct {
	looked     chan struct{}       // holds a token if the tenants were displayed
	authorized chan struct{}       // closed when the gateway has accepted the credentials
	failed     chan error          // gets why the pipeline cannot continue
	reloads    chan *reloadRequest // to Run
	reloading  chan struct{}       // holds a token during Reload
	ended      chan struct{}       // closed when Run is about to stop everything
	background sync.WaitGroup
}

// state is what changes when the pipeline starts, stops or is reloaded.
type state struct {
	mu         sync.Mutex // guards what follows; never held while anything blocks
	phase      phase
	err        error                         // of Run
	generation *generation                   // the current or last one
	totals     map[string]router.RouteHealth // what the routes had counted before this generation; not changed
	loaded     configState
}

type phase int

const (
	phaseNew phase = iota
	phaseRunning
	phaseDraining
	phaseStopped
)

// New checks the configuration and builds everything without connecting. ctx bounds the opening of files. The error matches
// [ErrConfig] for a mistake in the configuration, not for what the system prevents now, such as a directory that is not writable.
// A pipeline that is never run must be closed with Close.
func New(ctx context.Context, cfg *config.Config, options Options) (*Pipeline, error) {
	if options.CheckInterval < 0 || options.WatchInterval < 0 || options.TenantsInterval < 0 || options.ReadyGrace < 0 {
		return nil, configError{errors.New("pipeline: intervals and the grace period must not be negative")}
	}
	options.setDefaults()
	p := &Pipeline{
		options: options, started: time.Now(),
		observed: observed{steady: admin.Steady{Grace: options.ReadyGrace}},
		signals: signals{
			looked: make(chan struct{}, 1), authorized: make(chan struct{}), failed: make(chan error, 1), reloads: make(chan *reloadRequest),
			reloading: make(chan struct{}, 1), ended: make(chan struct{}),
		},
	}
	p.logger = slog.New(namingHandler{options.Logger.Handler(), p})
	p.endpoints.logger = p.logger.With("part", "endpoints")
	if err := p.build(ctx, cfg); err != nil {
		if !mayPass(err) {
			err = configError{err}
		}
		return nil, errors.Join(err, p.Close())
	}
	if options.Registry != nil {
		if err := p.register(options.Registry); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), p.Close())
		}
	}
	return p, nil
}

func (p *Pipeline) build(ctx context.Context, cfg *config.Config) (err error) {
	if cfg.ClaimCheck != nil {
		if p.claimCheck, err = claimcheck.New(ctx, cfg.ClaimCheck.Config); err != nil {
			return fmt.Errorf("claim_check: %w", err)
		}
		p.claims = p.claimCheck
	}
	if p.memory, err = p.newMemory(cfg.Dedup); err != nil {
		return err
	}
	if p.devices, err = p.newDevices(cfg.Devices); err != nil {
		return err
	}
	p.owner = newOwner(cfg)
	if p.lease = p.newLease(cfg.HA); p.lease != nil {
		p.turns = newTurns()
		p.endpoints.turns = p.turns
	}
	// It remembers what differs under a context ID, which a reload does not change.
	if p.inward, err = router.NewKeyFunc(cfg.KeysConfig()); err != nil {
		return err
	}
	p.observer = metrics.NewObserver(p.options.Observer)
	journalConfig := cfg.Journal.Config
	journalConfig.Routes = p.fromGateway
	journalConfig.Failed = func(err error) {
		p.logger.Warn("the file of the journal fails", "error", router.RedactError(err, nil))
	}
	if p.journal, err = journal.New(journalConfig); err != nil {
		return err
	}
	p.history = history.New(nil)
	p.sinkMetrics = metrics.NewSinks()
	if err = p.newTracing(ctx, cfg.Tracing); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	if err = p.newGateway(cfg); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	p.generation, err = p.newGeneration(cfg, nil)
	p.loaded.LoadedAt, p.loaded.config = p.started, cfg
	return err
}

// Close closes a pipeline that was never run; Run closes what it ran. It is idempotent.
func (p *Pipeline) Close() error {
	p.mu.Lock()
	unused := p.phase == phaseNew
	if unused {
		p.phase = phaseStopped
	}
	g := p.generation
	p.mu.Unlock()
	if !unused {
		return nil
	}
	var err error
	if g != nil {
		err = g.router.Close()
	}
	return errors.Join(err, p.release(g, time.Now()))
}

// release closes what New created, in reverse order. The routers are already closed. The subscriber has until then, and
// the sinks and stores have what is left after it, too, but each its part of the budget at least.
func (p *Pipeline) release(g *generation, until time.Time) error {
	// Without one, New failed, and nothing takes any time.
	budget := budget{subscriber: time.Second, sinks: time.Second, spans: time.Second}
	if g != nil {
		budget = budgetOf(g.config)
	}
	var errs []error
	if p.subscriber != nil {
		errs = append(errs, p.subscriber.CloseWithin(max(budget.subscriber, time.Until(until))))
	}
	ending, cancel := context.WithTimeout(context.Background(), budget.sinks+max(0, time.Until(until)))
	defer cancel()
	errs = append(errs, p.lease.close(ending))
	if g != nil {
		errs = append(errs, closeAll(ending, g.sinks))
	}
	if p.memory != nil {
		errs = append(errs, p.memory.close(ending))
	}
	_ = p.devices.later.Close(ending) // it was told what there is to tell
	if p.claimCheck != nil {
		errs = append(errs, p.claimCheck.Close())
	}
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	errs = append(errs, p.journal.Close())
	if p.spans != nil {
		ctx, cancel := context.WithTimeout(context.Background(), budget.spans)
		defer cancel()
		_ = p.spans.Shutdown(ctx) // the exporter logs failures
	}
	return errors.Join(errs...)
}

func closeAll(ctx context.Context, list map[string]*sink) error {
	results := make(chan error, len(list))
	for _, s := range list {
		go func() { results <- s.close(ctx) }() // ends with ctx
	}
	var errs []error
	for range list {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func (p *Pipeline) now() *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// fail ends the pipeline. Only the first error counts.
func (p *Pipeline) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}
