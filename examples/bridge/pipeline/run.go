package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/agrimill/agrimill/router"
)

// Run carries messages until ctx ends, and then drains: nothing more is taken,
// what was taken is finished and confirmed, everything is closed; all within
// config.Shutdown.Timeout. It returns nil after a clean end. An error matches
// [ErrRefused] when the gateway refuses this application, [ErrStarted] when Run was
// called before, or says what did not end in time; that comes again and is not
// lost.
func (p *Pipeline) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.phase != phaseNew {
		p.mu.Unlock()
		return ErrStarted
	}
	p.phase = phaseRunning
	g := p.generation
	p.mu.Unlock()

	// What works beside the routes goes on while they drain.
	beside, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	for _, s := range g.sinks {
		s.open(beside)
	}
	if p.memory.later != nil {
		p.memory.later.start(beside, func(natsMemory) {})
	}
	p.background.Go(func() { p.authorize(beside) }) // ends with beside
	p.background.Go(func() { p.watch(beside) })     // ends with beside
	p.background.Go(func() { p.askAround(beside) }) // ends with beside
	p.endpoints.start(beside, g.endpoints)
	p.logStart(g)

	err := p.runGenerations(ctx, beside)

	stopBeside()
	p.background.Wait()
	p.endpoints.wait()
	err = errors.Join(err, p.release(p.now()))
	p.mu.Lock()
	p.phase, p.err = phaseStopped, err
	p.mu.Unlock()
	p.logStop(err)
	return err
}

// runGenerations runs one router after the other, until ctx ends or the pipeline
// cannot go on.
func (p *Pipeline) runGenerations(ctx, beside context.Context) error {
	for {
		running, stop := context.WithCancel(ctx)
		g := p.now()
		result := make(chan error, 1)
		go func() { result <- g.router.Run(running) }() // ends with running

		var request *reloadRequest
		var failure error
		select {
		case <-ctx.Done():
		case failure = <-p.failed:
		case request = <-p.reloads:
		case err := <-result:
			if ctx.Err() == nil {
				err = p.whyEnded(err)
			}
			result <- err
		}
		if request == nil {
			p.setPhase(phaseDraining)
			p.logger.Info("bridge stops: what was taken is finished first", "within", g.config.Shutdown.Timeout.String())
		}
		stop()
		err := <-result
		p.addTotals(g)
		switch {
		case request != nil:
			p.replace(beside, g, request, err)
		case failure != nil:
			close(p.ended)
			return errors.Join(failure, err)
		default:
			close(p.ended)
			return err
		}
	}
}

// whyEnded says why a router has ended by itself.
func (p *Pipeline) whyEnded(err error) error {
	if reason := p.subscriber.Stats().Stream.LastError; errors.Is(err, router.ErrRoutesEnded) && reason != nil {
		return &RefusedError{What: "the event stream", Err: reason}
	}
	return fmt.Errorf("the routes have ended: %w", err)
}

func (p *Pipeline) setPhase(phase phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = phase
}

// addTotals keeps what the routes of a router have counted, so that the counts go
// on with the next one.
func (p *Pipeline) addTotals(g *generation) {
	health := g.router.Health()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range health {
		p.totals[h.Name] = sum(h, p.totals[h.Name])
	}
	g.counted = true
}

// Health returns the state of every route. The counts are those since the start of
// the pipeline, over reloads.
func (p *Pipeline) Health() []router.RouteHealth {
	g := p.now()
	health := g.router.Health()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, h := range health {
		if g.counted {
			health[i] = sum(router.RouteHealth{Name: h.Name, State: h.State, Since: h.Since}, p.totals[h.Name])
			continue
		}
		health[i] = sum(h, p.totals[h.Name])
	}
	return health
}

// sum adds the counts of before to those of h.
func sum(h, before router.RouteHealth) router.RouteHealth {
	h.Delivered += before.Delivered
	h.Filtered += before.Filtered
	h.Duplicates += before.Duplicates
	h.Poisoned += before.Poisoned
	h.Returned += before.Returned
	h.Retries += before.Retries
	h.RetriesByClass.Handler += before.RetriesByClass.Handler
	h.RetriesByClass.Outage += before.RetriesByClass.Outage
	h.RetriesByClass.Shutdown += before.RetriesByClass.Shutdown
	if h.LastSuccess.IsZero() {
		h.LastSuccess = before.LastSuccess
	}
	if h.LastErrorAt.IsZero() {
		h.LastError, h.LastErrorAt = before.LastError, before.LastErrorAt
	}
	return h
}
