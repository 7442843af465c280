package pipeline

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/poisonqueue"
)

var _ admin.Source = (*Pipeline)(nil)

// Snapshot implements [admin.Source].
func (p *Pipeline) Snapshot() admin.Snapshot {
	p.mu.Lock()
	g, phase, loaded := p.generation, p.phase, p.loaded
	p.mu.Unlock()
	stats := p.subscriber.Stats()
	s := admin.Snapshot{
		Name: p.options.Name, Version: p.options.Version, Started: p.started,
		Config:     admin.ConfigState{LoadedAt: loaded.at, Error: loaded.failure},
		Gateway:    admin.GatewayFrom(stats.Stream),
		Subscriber: admin.SubscriberFrom(stats),
		Poison:     admin.Poison{Sink: g.poison.name, Topic: g.config.Poison.Topic},
	}
	s.Subscriber.MaxInFlight = g.config.Subscriber.MaxInFlight
	s.Subscriber.MaxInFlightBytes = int64(g.config.Subscriber.MaxInFlightBytes)
	switch phase {
	case phaseNew:
		s.State = admin.StateStarting
	case phaseDraining:
		s.State = admin.StateDraining
	case phaseStopped:
		s.State = admin.StateStopped
	}
	if u, err := url.Parse(string(g.config.Gateway.BaseURL)); err == nil {
		s.Gateway.Host = u.Host
	}
	if !g.receives() {
		s.Gateway.State = admin.GatewayUnused
	}
	limit := p.client.RateLimit()
	s.Gateway.RateLimited, s.Gateway.RateLimitedUntil = limit.Limited, limit.PausedUntil
	for i, h := range p.Health() {
		if i >= len(g.routes) || g.routes[i].Name != h.Name {
			break // a reload has come in between; the next snapshot is of one piece
		}
		route := g.routes[i]
		route.RouteHealth = h
		if waiting := g.backlogs[h.Name]; waiting != nil {
			route.Backlog = waiting.last.Load()
		}
		s.Routes = append(s.Routes, route)
	}
	for _, sink := range g.sinks {
		s.Sinks = append(s.Sinks, sink.status())
	}
	slices.SortFunc(s.Sinks, func(a, b admin.Sink) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// receives reports whether a route receives from the gateway.
func (g *generation) receives() bool {
	return slices.ContainsFunc(g.routes, func(r admin.Route) bool { return r.Direction == admin.FromGateway })
}

// status is what the sink was when it was last asked.
func (s *sink) status() admin.Sink {
	status := admin.Sink{Name: s.name, Kind: s.kind, Target: s.target}
	status.Up, status.Error, status.CheckedAt = s.last()
	if inner, err := s.get(); err == nil {
		d := inner.Describe()
		status.Durability, status.DurabilityNote = d.Durability.String(), d.DurabilityNote
	}
	return status
}

// Live implements [admin.Source].
func (p *Pipeline) Live() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return errors.New(router.RedactError(p.err, nil))
}

// Ready implements [admin.Source]. It asks the sinks; the rest is known.
func (p *Pipeline) Ready(ctx context.Context) []admin.Check {
	p.mu.Lock()
	g, phase := p.generation, p.phase
	p.mu.Unlock()
	if phase != phaseRunning {
		return []admin.Check{{Name: "pipeline", Message: "it does not run"}}
	}
	checks := []admin.Check{p.checkGateway(g)}
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range g.sinks {
			if !yield(name) {
				return
			}
		}
	})
	results := make([]error, len(names))
	var open sync.WaitGroup
	for i, name := range names {
		open.Go(func() { results[i] = g.sinks[name].Health(ctx) }) // ends with ctx
	}
	open.Wait()
	for i, name := range names {
		checks = append(checks, check("sink "+name, results[i]))
	}
	for i, h := range g.router.Health() {
		// A route from the gateway has no connection of its own.
		if g.routes[i].Direction != admin.ToGateway {
			continue
		}
		c := admin.Check{Name: "source of route " + h.Name, OK: true}
		switch h.State {
		case router.StateRunning, router.StateOutage:
		default:
			c.OK, c.Message = false, string(h.State)+": "+h.LastError
		}
		checks = append(checks, c)
	}
	if p.memory.later != nil {
		_, err := p.memory.later.get()
		checks = append(checks, check("dedup", err))
	}
	if p.claimCheck != nil {
		checks = append(checks, check("claim check", p.claimCheck.Check(ctx)))
	}
	return checks
}

func check(name string, err error) admin.Check {
	return admin.Check{Name: name, OK: err == nil, Message: router.RedactError(err, nil)}
}

// checkGateway reports whether the event stream is open or, when no route receives
// from the gateway, whether it has accepted the credentials.
func (p *Pipeline) checkGateway(g *generation) admin.Check {
	c := admin.Check{Name: "gateway"}
	stream := p.subscriber.Stats().Stream
	switch {
	case !g.receives():
		c.OK, c.Message = p.isAuthorized(), "no route receives from it"
		if !c.OK {
			c.Message = "has not answered yet"
		}
	case stream.Connected:
		c.OK = true
	case stream.LastError != nil:
		c.Message = router.RedactError(stream.LastError, nil)
	default:
		c.Message = "the event stream is not open yet"
	}
	return c
}

// Tenants implements [admin.Source]. It knows them from the directory, which the
// event stream keeps current.
func (p *Pipeline) Tenants(context.Context) ([]admin.Tenant, error) {
	if !p.isAuthorized() {
		return nil, errors.New("the gateway has not answered yet")
	}
	return admin.TenantsFrom(p.directory.Tenants(), p.directory.Scopes), nil
}

// PoisonStore implements [admin.Source]. The queue can be looked at when it is in
// NATS, once that was reached.
func (p *Pipeline) PoisonStore() router.PoisonStore {
	g := p.now()
	cfg := g.config.Sinks[g.config.Poison.Sink].NATS
	opened, err := g.poison.get()
	sink, isNATS := opened.(*nats.Sink)
	if cfg == nil || err != nil || !isNATS {
		return nil
	}
	queue, err := poisonqueue.New(poisonqueue.Config{
		Conn: sink.Conn(), Stream: cfg.Stream, SubjectPrefix: cfg.SubjectPrefix, Topic: g.config.Poison.Topic,
	})
	if err != nil {
		return nil
	}
	return queue
}

// errNoPoisonStore says that there is no queue to replay from.
var errNoPoisonStore = errors.New("the poison queue cannot be looked at: it is not in NATS, or NATS cannot be reached")

// Replay implements [admin.Source]. The messages go through the routes that
// poisoned them, as these are now.
func (p *Pipeline) Replay(ctx context.Context, ids []string) (router.ReplayReport, error) {
	store := p.PoisonStore()
	if store == nil {
		return router.ReplayReport{}, errNoPoisonStore
	}
	return p.now().router.ReplaySelected(ctx, store, router.PoisonSelection{IDs: ids})
}
