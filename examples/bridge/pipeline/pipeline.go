package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// Defaults of [Options].
const (
	DefaultCheckInterval = 2 * time.Second
	DefaultWatchInterval = 500 * time.Millisecond
)

// Options are what a pipeline gets from the program around it. The zero value will do.
type Options struct {
	// Name and Version stand in the status: what the operator calls this bridge,
	// and the version of the program.
	Name, Version string
	// Logger gets one line at each change of state, and errors; never payloads or
	// secrets. Nil is silent.
	Logger *slog.Logger
	// Registry gets the collectors. They stay registered after the end. Nil means
	// no metrics.
	Registry prometheus.Registerer
	// Stdout is where sinks of kind log write. Nil discards.
	Stdout io.Writer
	// CheckInterval is how often sinks are asked whether they are there. 0 means
	// [DefaultCheckInterval]; negative is an error.
	CheckInterval time.Duration
	// WatchInterval is how soon a change of state is logged. 0 means
	// [DefaultWatchInterval]; negative is an error.
	WatchInterval time.Duration
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.CheckInterval == 0 {
		o.CheckInterval = DefaultCheckInterval
	}
	if o.WatchInterval == 0 {
		o.WatchInterval = DefaultWatchInterval
	}
}

// Pipeline is a bridge: routes between the gateway and brokers. Make it with [New]
// and [Pipeline.Run] it once. All methods are safe for concurrent use.
type Pipeline struct {
	options Options
	logger  *slog.Logger
	started time.Time

	// These live as long as the pipeline, over reloads.
	client     *gateway.Client
	directory  *gateway.Directory
	subscriber *subscriber.Subscriber
	endpoints  endpoints
	memory     *memory
	claimCheck *claimcheck.Store // nil: none
	observer   *metrics.Observer
	// sinkMetrics measures the sinks. Those of one name count together.
	sinkMetrics *metrics.Sinks
	tracing     *tracing.Tracing         // nil: none
	spans       *sdktrace.TracerProvider // nil: none

	authorized chan struct{}       // closed when the gateway has accepted the credentials
	failed     chan error          // gets why the pipeline cannot go on
	reloads    chan *reloadRequest // to Run
	reloading  chan struct{}       // holds a token during Reload
	ended      chan struct{}       // closed when Run is about to stop everything
	background sync.WaitGroup

	mu         sync.Mutex // guards what follows; never held while anything blocks
	phase      phase
	err        error       // of Run
	generation *generation // the one that runs, or ran last
	totals     map[string]router.RouteHealth
	loaded     configState
}

// phase is where in its life a pipeline is.
type phase int

const (
	phaseNew phase = iota
	phaseRunning
	phaseDraining
	phaseStopped
)

// New checks the configuration and makes everything, without connecting to
// anything: what is down makes no difference. ctx bounds the opening of files. The
// error matches [ErrConfig] for a mistake in the configuration.
//
// Run closes the pipeline. One that is never run has to be closed with Close.
func New(ctx context.Context, cfg *config.Config, options Options) (*Pipeline, error) {
	if options.CheckInterval < 0 || options.WatchInterval < 0 {
		return nil, configError{errors.New("pipeline: CheckInterval and WatchInterval must not be negative")}
	}
	options.setDefaults()
	p := &Pipeline{
		options: options, logger: options.Logger, started: time.Now(),
		authorized: make(chan struct{}), failed: make(chan error, 1), reloads: make(chan *reloadRequest),
		reloading: make(chan struct{}, 1), ended: make(chan struct{}), totals: map[string]router.RouteHealth{},
	}
	p.endpoints.logger = p.logger.With("part", "endpoints")
	if err := p.build(ctx, cfg); err != nil {
		return nil, errors.Join(configError{err}, p.Close())
	}
	if options.Registry != nil {
		if err := p.register(options.Registry); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), p.Close())
		}
	}
	return p, nil
}

// build makes the parts, each from what stands before it.
func (p *Pipeline) build(ctx context.Context, cfg *config.Config) (err error) {
	if cfg.ClaimCheck != nil {
		if p.claimCheck, err = claimcheck.New(ctx, cfg.ClaimCheck.StoreConfig()); err != nil {
			return fmt.Errorf("claim_check: %w", err)
		}
	}
	if p.memory, err = p.newMemory(cfg.Dedup); err != nil {
		return err
	}
	p.observer = metrics.NewObserver(nil)
	if p.sinkMetrics, err = metrics.NewSinks(metrics.SinksConfig{}); err != nil {
		return err
	}
	if err = p.newTracing(ctx, cfg.Tracing); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	if err = p.newGateway(cfg); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	p.generation, err = p.newGeneration(cfg, nil)
	p.loaded.at = p.started
	return err
}

// Close closes a pipeline that was never run. One that runs is ended by the context
// of Run, which closes everything: then Close does nothing. It is idempotent.
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
	return errors.Join(err, p.release(g))
}

// release closes what New has made, the other way round. The routers are closed.
func (p *Pipeline) release(g *generation) error {
	// New failed without one: then nothing takes any time.
	budget := budget{sinks: time.Second, spans: time.Second}
	if g != nil {
		budget = budgetOf(g.config)
	}
	var errs []error
	if p.subscriber != nil {
		errs = append(errs, p.subscriber.Close())
	}
	ending, cancel := context.WithTimeout(context.Background(), budget.sinks)
	defer cancel()
	if g != nil {
		errs = append(errs, closeAll(ending, g.sinks))
	}
	if p.memory != nil {
		errs = append(errs, p.memory.shut(ending))
	}
	if p.claimCheck != nil {
		errs = append(errs, p.claimCheck.Close())
	}
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.spans != nil {
		p.endTracing(budget.spans)
	}
	return errors.Join(errs...)
}

// closeAll closes sinks at the same time, until ctx ends.
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

// now returns the generation that runs.
func (p *Pipeline) now() *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// fail ends the pipeline. Only the first reason counts.
func (p *Pipeline) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}
