package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// checkTimeout bounds one round of checks.
const checkTimeout = 3 * time.Second

// part is one thing whose state is watched.
type part struct{ kind, name string }

// condition is the state of a part.
type condition struct {
	state  string
	bad    bool   // logged as a warning
	reason string // why, when it is bad
}

// told is what the log says of a part.
type told struct {
	condition
	at    time.Time // when its state was logged
	final bool      // no other reason of the same state is logged
}

// next returns what the log says once it has been told, and what of that is new: nothing, or a line with the state that
// was before, if that was another one. A state that lasts gets a second line if its reason has become another one by then:
// a server that is away refuses the credentials only when it is back.
func (was told) next(is condition, now time.Time, grace time.Duration) (next told, before condition, line bool) {
	switch {
	case was.state != is.state && is.bad && is.reason == "": // it is not recorded yet
		return was, was.condition, false
	case was.state != is.state:
		return told{condition: is, at: now, final: !is.bad}, was.condition, true
	case !was.final && is.reason != was.reason && is.reason != "" && now.Sub(was.at) >= grace:
		return told{condition: is, at: was.at, final: true}, condition{}, true
	}
	return was, was.condition, false
}

// watch logs every change of state, and ends the pipeline if the gateway refuses the
// event stream for good. It returns when ctx ends.
func (p *Pipeline) watch(ctx context.Context) {
	tick := time.NewTicker(p.options.WatchInterval)
	defer tick.Stop()
	known := map[part]told{}
	was := "" // what the log has said about the whole
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := map[part]told{}
		snapshot := p.Snapshot()
		if is := snapshot.Verdict.Summary(); is != was && snapshot.Verdict.Settled() {
			p.logVerdict(snapshot.Verdict, was == "")
			was = is
		}
		for part, is := range conditions(snapshot) {
			next, was, line := known[part].next(is, time.Now(), p.options.ReadyGrace)
			if now[part] = next; line {
				p.logChange(part, was, is)
			}
		}
		known = now
		p.endIfRefused()
	}
}

// logChange logs that the state of a part has changed. The first state is logged only if it
// is bad: that all is well is logged at startup.
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

// logVerdict logs that something has begun or ceased to count. The first verdict is logged only if something is wrong.
func (p *Pipeline) logVerdict(v admin.Verdict, first bool) {
	problems := 0
	for _, n := range v.Counting() {
		problems += n
	}
	level := slog.LevelInfo
	switch {
	case problems > 0:
		level = slog.LevelWarn
	case first:
		level = slog.LevelDebug
	}
	p.logger.Log(context.Background(), level, "verdict", "ready", v.Ready, "problems", problems, "sentence", v.Sentence)
}

// conditions returns the current states of all parts.
func conditions(snapshot admin.Snapshot) map[part]condition {
	now := map[part]condition{}
	if g := snapshot.Gateway; g.State != admin.GatewayUnused {
		now[part{"gateway", g.Host}] = condition{string(g.State), g.State == admin.GatewayDisconnected, g.LastError}
	}
	if fail := snapshot.Subscriber.ConfirmationsFail; fail != "" {
		now[part{"confirmations", snapshot.Gateway.Host}] = condition{"failing", true, fail}
	} else {
		now[part{"confirmations", snapshot.Gateway.Host}] = condition{state: "accepted"}
	}
	if l := snapshot.Lease; l.Role != "" {
		is := condition{state: l.Role}
		if l.Holder != "" && l.Role != subscriber.LeaseHolder.String() {
			is.reason = l.Holder + " holds the lease"
		}
		now[part{"lease", l.Target}] = is
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
	if d := snapshot.Dedup; d.Store != "" {
		is := condition{state: "up"}
		if !d.Up {
			is = condition{"down", true, d.Error}
		}
		now[part{"dedup", d.Store}] = is
	}
	for _, r := range snapshot.Routes {
		if r.State == router.StateStopped {
			continue // a reload or the shutdown, which are logged elsewhere
		}
		bad := r.State == router.StateOutage || r.State == router.StateFailing || r.State == router.StateEnded || r.State == router.StateFailed
		reason := ""
		if bad || r.State == router.StateStarting {
			reason = r.LastError
		}
		now[part{"route", r.Name}] = condition{string(r.State), bad, reason}
	}
	return now
}

// endIfRefused ends the pipeline if routes from the gateway ended because it refuses the
// event stream. While the pipeline is stopping, routes end anyway.
func (p *Pipeline) endIfRefused() {
	p.mu.Lock()
	g, running := p.generation, p.phase == phaseRunning
	p.mu.Unlock()
	if !running {
		return
	}
	for i, h := range g.router.Health() {
		reason := p.subscriber.Err()
		if h.State == router.StateEnded && g.routes[i].Direction == admin.FromGateway && reason != nil {
			p.fail(&RefusedError{What: "the event stream", Err: reason})
			return
		}
	}
}

// poll checks everything periodically, so that it is known since when something fails, and
// queries the backlogs of the sources and the poison queue. It returns when ctx ends.
func (p *Pipeline) poll(ctx context.Context) {
	tick := time.NewTicker(p.options.CheckInterval)
	defer tick.Stop()
	for {
		checks, cancel := context.WithTimeout(ctx, checkTimeout)
		var open sync.WaitGroup
		g := p.now() // all of this ends with checks
		open.Go(func() { p.readiness.record(p.look(checks, g), time.Now()) })
		open.Go(func() { p.certificates.look(p.now().config) })
		open.Go(func() { g.depth.look(checks) })
		for _, waiting := range g.backlogs {
			open.Go(func() { waiting.look(checks) })
		}
		open.Wait()
		cancel()
		p.journal.Prune() // also while nothing happens
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// logStart logs what is running.
func (p *Pipeline) logStart(g *generation) {
	routes := make([]string, len(g.routes))
	for i, r := range g.routes {
		routes[i] = r.Name
	}
	p.logger.Info("agrimill is running", "gateway", g.config.Gateway.BaseURL, "routes", routes, "sinks", len(g.sinks),
		"endpoints", len(g.endpoints), "dedup", g.config.Dedup.Store, "poison", g.poison.name, "version", p.options.Version)
}

// logStop logs how it ended.
func (p *Pipeline) logStop(err error) {
	stats := p.subscriber.Stats()
	counts := []any{"received", stats.Received, "confirmed", stats.Confirmed}
	if stats.Untaken > 0 { // nothing here wants them
		counts = append(counts, "untaken", stats.Untaken)
	}
	var open *UnfinishedError
	switch {
	case errors.As(err, &open):
		if open.Err != nil {
			counts = append(counts, "error", router.RedactError(open.Err, nil))
		}
		p.logger.Warn("agrimill stopped with unfinished messages; they are left with the gateway or broker, and come again", append(counts,
			"open", open.Open, "set_aside", open.SetAside, "held", open.Held, "unconfirmed", open.Unconfirmed, "quarantine", open.Quarantine, "returned", open.Returned)...)
	case err != nil:
		p.logger.Error("agrimill stopped", "error", router.RedactError(err, nil))
	default:
		p.logger.Info("agrimill stopped", counts...)
	}
}
