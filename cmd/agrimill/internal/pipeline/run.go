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
	if drained.stopped {
		err = p.unfinished(drained, err)
	}
	p.mu.Lock()
	p.phase, p.err = phaseStopped, err
	p.mu.Unlock()
	p.logStop(err)
	return err
}

type drained struct {
	until    time.Time // when the subscriber has to be closed
	stopped  bool      // because the context ended, and for no other reason
	open     int       // messages of the gateway that were not handled
	returned int       // messages that routes from brokers have not finished
}

// unfinished returns what a stopped pipeline left open; nil if nothing was and there is no
// error.
func (p *Pipeline) unfinished(d drained, err error) error {
	stats := p.subscriber.Stats()
	open := UnfinishedError{
		Open: d.open, SetAside: stats.SetAsideNow, Held: stats.HeldNow, Unconfirmed: stats.HeldConfirmations + stats.UnsyncedConfirmations,
		Returned: d.returned, Err: err,
	}
	var unconfirmed *subscriber.UnconfirmedError
	if errors.As(err, &unconfirmed) {
		open.Unconfirmed += unconfirmed.Count
	}
	if open == (UnfinishedError{}) {
		return nil
	}
	return &open
}

// opened returns what is left open of what was before the stop: stats are those of before, and
// returned is what routes from brokers had returned. The routes of g have ended.
func (p *Pipeline) opened(g *generation, stats subscriber.Stats, returned int) drained {
	now := p.subscriber.Stats()
	d := drained{
		returned: g.returned() - returned,
		open:     stats.Left + int(now.Abandoned-stats.Abandoned) + now.InFlight + now.Stalled,
	}
	for i, h := range g.router.Health() {
		if g.routes[i].Direction != admin.FromGateway {
			d.returned += h.InFlight
		}
	}
	return d
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
		p.addTotals(g)
		switch {
		case request != nil:
			p.replace(beside, g, request, err)
		case failure != nil:
			close(p.ended)
			return drained{until: until}, errors.Join(failure, err)
		default:
			close(p.ended)
			d := p.opened(g, stats, returned)
			d.until, d.stopped = until, stopped
			return d, err
		}
	}
}

// addTotals saves the counts of a router's routes, so that they continue with the next one.
func (p *Pipeline) addTotals(g *generation) {
	health := g.router.Health()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range health {
		p.totals[h.Name] = sum(h, p.totals[h.Name])
	}
	g.counted = true
}

// Health returns the state of every route. Counts are since the start of the pipeline,
// across reloads; those of a route that was gone are since it came back.
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
