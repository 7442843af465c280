package pipeline

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
)

const checkTimeout = 3 * time.Second

// watch logs what begins and ceases to count, when all is right, and who has the lease, and ends the pipeline if the gateway refuses the
// event stream for good. It returns when ctx ends.
func (p *Pipeline) watch(ctx context.Context) {
	tick := time.NewTicker(p.options.WatchInterval)
	defer tick.Stop()
	known, right := map[string]admin.Problem{}, false
	role := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		snapshot := p.Snapshot()
		if v := snapshot.Verdict; snapshot.State == "" { // while it stops nobody judges
			known = p.logProblems(known, v)
			if strings.HasPrefix(v.Sentence, "All is right") && !right {
				p.logger.Info("all is right", "sentence", v.Sentence)
				right = true
			}
			right = right && len(known) == 0
		}
		if l := snapshot.Lease; l.Role != role {
			p.logger.Info("lease", "role", l.Role, "was", role, "holder", l.Holder, "target", l.Target)
			role = l.Role
		}
		p.endIfRefused()
	}
}

// logProblems logs which problems have begun to count, and which of the known ones are over, and returns those that count now.
func (p *Pipeline) logProblems(known map[string]admin.Problem, v admin.Verdict) map[string]admin.Problem {
	now := map[string]admin.Problem{}
	for _, problem := range v.Problems {
		if !problem.Counts() {
			continue
		}
		key := string(problem.Kind) + " " + problem.Name
		before, told := known[key]
		if !told || problem.Unready && !before.Unready {
			p.logger.Warn("problem", "kind", problem.Kind, "name", problem.Name, "ready", v.Ready, "text", problem.Text)
		}
		if told && before.Since.Before(problem.Since) { // that of who waits longest now
			problem.Since = before.Since
		}
		now[key] = problem
	}
	for key, problem := range known {
		if _, lasts := now[key]; !lasts {
			until := problem.Recovered
			if until.IsZero() {
				until = time.Now()
			}
			p.logger.Info("problem over", "kind", problem.Kind, "name", problem.Name, "ready", v.Ready, "lasted", until.Sub(problem.Since).Round(time.Second).String())
		}
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
			p.fail(refused("the event stream", reason))
			return
		}
	}
}

// poll checks everything periodically, so that it is known since when something fails, and
// queries the backlogs of the sources and the poison queue. It returns when ctx ends.
func (p *Pipeline) poll(ctx context.Context) {
	wait := p.options.CheckInterval / 256 // at first: it should be ready as soon as it is
	for {
		next := time.After(wait)
		wait = min(2*wait, p.options.CheckInterval)
		checks, cancel := context.WithTimeout(ctx, checkTimeout)
		var open sync.WaitGroup
		g := p.now() // all of this ends with checks
		open.Go(func() { p.readiness.record(p.look(checks, g), time.Now()) })
		open.Go(func() {
			certificates := certificatesOf(g.config)
			p.certificates.Store(&certificates)
		})
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
		case <-next:
		}
	}
}

// certificatesOf reads the files with certificates of this program, which are renewed without a reload. A name out of the
// environment may not be shown, so it is not looked at.
func certificatesOf(cfg *config.Config) (all []admin.Certificate) {
	for _, s := range cfg.Settings() {
		file, text := s.Value.(string)
		if !text || file == "" || s.Environment || !strings.HasSuffix(s.Path, ".cert_file") {
			continue
		}
		c := admin.Certificate{Setting: s.Path, File: file}
		leaf, err := config.Leaf(file)
		if c.Error = router.RedactError(err, nil); err == nil {
			c.NotAfter = leaf.NotAfter
		}
		all = append(all, c)
	}
	return all
}

func (p *Pipeline) logStart(g *generation) {
	routes := make([]string, len(g.routes))
	for i, r := range g.routes {
		routes[i] = r.Name
	}
	p.logger.Info("agrimill is running", "gateway", g.config.Gateway.BaseURL, "routes", routes, "sinks", len(g.sinks),
		"endpoints", len(g.endpoints), "dedup", g.config.Dedup.Store, "poison", g.poison.name, "version", p.options.Version)
}

func (p *Pipeline) logStop(err error) {
	stats := p.subscriber.Stats()
	counts := []any{"received", stats.Received, "confirmed", stats.Confirmed}
	if stats.Untaken > 0 { // nothing here wants them
		counts = append(counts, "untaken", stats.Untaken)
	}
	if stats.Rejected > 0 { // they are not confirmed
		counts = append(counts, "rejected", stats.Rejected)
	}
	var open *UnfinishedError
	switch {
	case errors.As(err, &open):
		if open.Err != nil {
			counts = append(counts, "error", router.RedactError(open.Err, nil))
		}
		p.logger.Warn("agrimill stopped with unfinished messages; they are left with the gateway or broker, and come again", append(counts,
			"open", open.Open, "set_aside", open.SetAside, "held", open.Held, "unconfirmed", open.Unconfirmed, "returned", open.Returned)...)
	case err != nil:
		failure := []any{"error", router.RedactError(err, nil)}
		if advice := admin.Advice(err); advice != "" {
			failure = append(failure, "advice", advice)
		}
		p.logger.Error("agrimill stopped", failure...)
	default:
		p.logger.Info("agrimill stopped", counts...)
	}
}

// historyInterval is how often the history learns of the routes and the journal. In that time the journal must not drop what it
// gets, so that latencies are complete: with its default bounds that takes 20,000 messages per second.
const historyInterval = 2 * time.Second

func (p *Pipeline) remember(ctx context.Context) {
	tick := time.NewTicker(historyInterval)
	defer tick.Stop()
	for {
		open := p.subscriber.Open()
		now := p.snapshot(open)
		p.history.Update(admin.SamplesFrom(now, open), p.journal)
		p.history.AddUnconfirmed(now.Subscriber.Unconfirmed)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
