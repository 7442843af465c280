package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Run moves messages until ctx ends and then drains: it takes no more messages, finishes and confirms those in flight, and closes
// everything, within config.Shutdown.Timeout. The error matches [ErrUnfinished] if something was left open, which is then redelivered,
// [ErrRefused] if the gateway refuses this application, and [ErrStarted] if Run was called before.
func (p *Pipeline) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.phase != phaseNew {
		p.mu.Unlock()
		return ErrStarted
	}
	p.phase = phaseRunning
	g := p.generation
	p.mu.Unlock()

	// What runs beside the routes keeps running while they drain.
	beside, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	for _, s := range g.sinks {
		s.open(beside)
	}
	p.lease.open(beside)
	p.memory.later.Start(beside, nil)
	p.devices.later.Start(beside, nil)
	p.background.Go(func() { p.authorize(beside) })      // ends with beside
	p.background.Go(func() { p.watch(beside) })          // ends with beside
	p.background.Go(func() { p.poll(beside) })           // ends with beside
	p.background.Go(func() { p.refreshTenants(beside) }) // ends with beside
	p.background.Go(func() { p.remember(beside) })       // ends with beside
	p.endpoints.start(beside, g.endpoints)
	p.logStart(g)

	drained, err := p.runGenerations(ctx, beside)

	stopBeside()
	p.background.Wait()
	p.endpoints.running.Wait()
	err = errors.Join(err, p.release(p.now(), drained.until))
	if drained.open != nil {
		err = p.unfinished(drained.open, err)
	}
	p.mu.Lock()
	p.phase, p.err = phaseStopped, err
	p.mu.Unlock()
	p.logStop(err)
	return err
}

type drained struct {
	until time.Time        // when the subscriber has to be closed
	open  *UnfinishedError // of what was stopped because the context ended, and for no other reason: what the routes left
}

// unfinished completes what was left open, once everything is closed; nil if nothing was and there is no error.
func (p *Pipeline) unfinished(open *UnfinishedError, err error) error {
	stats := p.subscriber.Stats()
	open.SetAside, open.Held, open.Unconfirmed, open.Err = stats.SetAsideNow, stats.HeldNow, stats.HeldConfirmations+stats.UnsyncedConfirmations, err
	if unconfirmed, ok := errors.AsType[*subscriber.UnconfirmedError](err); ok {
		open.Unconfirmed += unconfirmed.Count
	}
	if *open == (UnfinishedError{}) {
		return nil
	}
	return open
}

// opened returns what is left open of what was before the stop: stats are those of before, and
// returned is what routes from brokers had returned. The routes of g have ended.
func (p *Pipeline) opened(g *generation, stats subscriber.Stats, returned int) *UnfinishedError {
	now := p.subscriber.Stats()
	open := &UnfinishedError{
		Returned: g.returned() - returned,
		Open:     stats.Left + int(now.Abandoned-stats.Abandoned) + now.InFlight + now.Stalled,
	}
	for i, h := range g.router.Health() {
		if g.routes[i].Direction != admin.FromGateway {
			open.Returned += h.InFlight
		}
	}
	return open
}

func (g *generation) returned() (n int) {
	for i, h := range g.router.Health() {
		if g.routes[i].Direction != admin.FromGateway {
			n += int(h.Returned)
		}
	}
	return n
}

// runGenerations runs one router after another, until ctx ends or the pipeline cannot
// continue.
func (p *Pipeline) runGenerations(ctx, beside context.Context) (drained, error) {
	for {
		// Not derived from ctx's cancellation: what is returned is counted from the call
		// of stop.
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		g := p.now()
		result := make(chan error, 1)
		go func() { result <- g.router.Run(running) }() // ends with running

		var request *reloadRequest
		var failure error
		stopped := false
		select {
		case <-ctx.Done():
			stopped = true
		case failure = <-p.failed:
		case request = <-p.reloads:
		case err := <-result:
			if reason := p.subscriber.Err(); errors.Is(err, router.ErrRoutesEnded) && reason != nil {
				err = refused("the event stream", reason)
			} else {
				err = fmt.Errorf("all routes ended: %w", err)
			}
			result <- err
		}
		if request == nil {
			p.mu.Lock()
			p.phase = phaseDraining
			p.mu.Unlock()
			p.logger.Info("agrimill is stopping; finishing messages in flight", "within", g.config.Shutdown.Timeout.String())
		}
		stats, returned := p.subscriber.Stats(), g.returned()
		budget := budgetOf(g.config)
		until := time.Now().Add(budget.router + budget.subscriber)
		stop()
		err := <-result
		switch {
		case request != nil:
			p.replace(beside, g, request, err)
		case failure != nil:
			close(p.ended)
			return drained{until: until}, errors.Join(failure, err)
		default:
			close(p.ended)
			d := drained{until: until}
			if stopped {
				d.open = p.opened(g, stats, returned)
			}
			return d, err
		}
	}
}

// Health returns the state of every route. Counts are since the start of the pipeline,
// across reloads; those of a route that was gone are since it came back.
func (p *Pipeline) Health() []router.RouteHealth {
	p.mu.Lock()
	g, totals := p.generation, p.totals
	p.mu.Unlock()
	health := g.router.Health()
	for i, h := range health {
		health[i] = sum(h, totals[h.Name])
	}
	return health
}

// sum adds the counts of before to those of h.
func sum(h, before router.RouteHealth) router.RouteHealth {
	h.Delivered += before.Delivered
	h.Filtered += before.Filtered
	h.Duplicates += before.Duplicates
	h.MaybeRepeated += before.MaybeRepeated
	h.Poisoned += before.Poisoned
	h.Returned += before.Returned
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
