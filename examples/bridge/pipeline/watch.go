package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/router"
)

// checkTimeout bounds one look at a sink.
const checkTimeout = 3 * time.Second

// part is one thing whose state is watched.
type part struct{ kind, name string }

// condition is the state of a part.
type condition struct {
	state  string
	bad    bool   // it is told as a warning
	reason string // why, when it is bad
}

// watch logs every change of state, once, and ends the pipeline when the gateway
// refuses the event stream for good. It returns when ctx ends.
func (p *Pipeline) watch(ctx context.Context) {
	tick := time.NewTicker(p.options.WatchInterval)
	defer tick.Stop()
	known := map[part]condition{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := p.conditions()
		for part, is := range now {
			was := known[part]
			switch {
			case was.state == is.state:
			case is.bad && is.reason == "":
				now[part] = was // the reason is just being written down
			default:
				p.logChange(part, was, is)
			}
		}
		known = now
		p.endIfRefused()
	}
}

// logChange tells that the state of a part has changed. The first state is told
// only when it is bad: that all is well is told at the start.
func (p *Pipeline) logChange(part part, was, is condition) {
	level := slog.LevelInfo
	switch {
	case is.bad:
		level = slog.LevelWarn
	case was.state == "":
		level = slog.LevelDebug
	}
	args := []any{"what", part.kind, "name", part.name, "state", is.state}
	if was.state != "" {
		args = append(args, "was", was.state)
	}
	if is.reason != "" {
		args = append(args, "reason", is.reason)
	}
	p.logger.Log(context.Background(), level, "state", args...)
}

// conditions are the states of all parts now.
func (p *Pipeline) conditions() map[part]condition {
	now := map[part]condition{}
	snapshot := p.Snapshot()
	if g := snapshot.Gateway; g.State != admin.GatewayUnused {
		now[part{"gateway", g.Host}] = condition{string(g.State), g.State == admin.GatewayDisconnected, g.LastError}
	}
	for _, s := range snapshot.Sinks {
		if s.CheckedAt.IsZero() {
			continue
		}
		is := condition{state: "up"}
		if !s.Up {
			is = condition{"down", true, s.Error}
		}
		now[part{"sink", s.Name}] = is
	}
	for _, r := range snapshot.Routes {
		if r.State == router.StateStopped {
			continue // a reload, or the end, of which others tell
		}
		bad := r.State == router.StateOutage || r.State == router.StateEnded || r.State == router.StateFailed
		reason := ""
		if bad || r.State == router.StateStarting {
			reason = r.LastError
		}
		now[part{"route", r.Name}] = condition{string(r.State), bad, reason}
	}
	return now
}

// endIfRefused ends the pipeline when routes from the gateway have ended because
// it refuses the event stream. While the pipeline stops they end as well.
func (p *Pipeline) endIfRefused() {
	p.mu.Lock()
	g, running := p.generation, p.phase == phaseRunning
	p.mu.Unlock()
	if !running {
		return
	}
	for i, h := range g.router.Health() {
		reason := p.subscriber.Stats().Stream.LastError
		if h.State == router.StateEnded && g.routes[i].Direction == admin.FromGateway && reason != nil {
			p.fail(&RefusedError{What: "the event stream", Err: reason})
			return
		}
	}
}

// askAround asks the sinks again and again whether they are there, and the sources
// how much waits in them, until ctx ends.
func (p *Pipeline) askAround(ctx context.Context) {
	tick := time.NewTicker(p.options.CheckInterval)
	defer tick.Stop()
	for {
		checks, cancel := context.WithTimeout(ctx, checkTimeout)
		var open sync.WaitGroup
		g := p.now() // all of this ends with checks
		for _, s := range g.sinks {
			open.Go(func() { _ = s.Health(checks) }) // remembered by the sink
		}
		for _, waiting := range g.backlogs {
			open.Go(func() { waiting.look(checks) })
		}
		open.Wait()
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// logStart tells what runs.
func (p *Pipeline) logStart(g *generation) {
	routes := make([]string, len(g.routes))
	for i, r := range g.routes {
		routes[i] = r.Name
	}
	p.logger.Info("bridge runs", "gateway", g.config.Gateway.BaseURL.String(), "routes", routes, "sinks", len(g.sinks),
		"endpoints", len(g.endpoints), "dedup", g.config.Dedup.Store, "poison", g.poison.name, "version", p.options.Version)
}

// logStop tells how it ended.
func (p *Pipeline) logStop(err error) {
	if err != nil {
		p.logger.Error("bridge has ended", "error", router.RedactError(err, nil))
		return
	}
	stats := p.subscriber.Stats()
	p.logger.Info("bridge has ended", "received", stats.Received, "confirmed", stats.Confirmed)
}
