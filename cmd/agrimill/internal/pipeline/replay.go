package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
)

// Replay implements [admin.Source]. The messages go through the routes that poisoned them,
// as currently configured: topic, sink, filter and claim check. With ha only the instance that
// holds the lease replays, and no longer than it has it; the error matches [ErrStandby].
func (p *Pipeline) Replay(ctx context.Context, queue router.PoisonStore, ids []string) (router.ReplayReport, error) {
	if p.turns != nil {
		now, leave, _ := p.turns.enter()
		if err := now.err(); err != nil {
			if now != nil {
				leave()
			}
			return router.ReplayReport{}, err
		}
		defer leave()
		var cancel context.CancelFunc
		ctx, cancel = now.within(ctx)
		defer cancel()
	}
	return p.now().router.Replay(ctx, queue, router.PoisonSelection{IDs: ids, Force: p.options.ForceReplays})
}

// NewReplayer returns a pipeline that only serves Replay, beside the process that runs the routes. It opens the poison queue and what
// the named routes need, and returns when each was tried once; what is unavailable is an outage to Replay, until ctx ends. A store in
// memory replaces a dedup file, which that process has: only the broker recognizes copies then.
//
// The pipeline must be closed and must not be run. Errors are those of [New].
func NewReplayer(ctx context.Context, cfg *config.Config, routes []string, options Options) (*Pipeline, error) {
	p, err := New(ctx, forReplay(cfg, routes), options)
	if err != nil {
		return nil, err
	}
	p.names.look = func(found bool) { // nothing runs that would list the tenants
		if !found {
			_ = p.names.list(ctx) // what is not found is an outage
		}
	}
	var opening []<-chan struct{}
	for _, s := range p.generation.sinks {
		s.open(ctx)
		opening = append(opening, s.Tried())
	}
	p.memory.later.Start(ctx, nil)
	p.devices.later.Start(ctx, nil)
	if p.memory.later != nil {
		opening = append(opening, p.memory.later.Tried())
	}
	for _, tried := range opening {
		select {
		case <-tried:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), p.Close())
		}
	}
	return p, nil
}

// forReplay removes from a configuration what replays of these routes do not need.
func forReplay(cfg *config.Config, routes []string) *config.Config {
	only := *cfg
	only.Endpoints, only.HA = nil, nil // it confirms nothing
	only.Routes = slices.DeleteFunc(slices.Clone(cfg.Routes), func(r config.Route) bool { return !slices.Contains(routes, r.Name) })
	only.Sinks = maps.Clone(cfg.Sinks)
	maps.DeleteFunc(only.Sinks, func(name string, _ config.Sink) bool {
		return name != cfg.Poison.Sink && !slices.ContainsFunc(only.Routes, func(r config.Route) bool { return r.To.Sink == name })
	})
	if only.Dedup.Store == config.DedupBBolt {
		only.Dedup.Store, only.Dedup.BBolt, only.Dedup.MaxEntries = config.DedupMemory, nil, 0
	}
	only.Journal.Path = ""                        // the process that runs the routes has it
	only.Dedup.Owner.Instance = config.NoInstance // the process that runs the routes has it
	return &only
}
