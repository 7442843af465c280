package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
)

// ReloadReport says what a reload did.
type ReloadReport struct {
	// Changed lists what is different now, e.g. `route "farm" changed`. If it is empty, nothing was done.
	Changed []string
	// Restart lists the sections that differ and stay as they were until a restart.
	Restart []string
	// Unfinished says which messages, which are redelivered, the old routes could not finish in time; empty if there are none.
	Unfinished string
}

// reloadRequest passes a generation to Run.
type reloadRequest struct {
	next  *generation
	taken chan string // gets ReloadReport.Unfinished once the generation is current
}

// configState is the state of the configuration, as the status shows it.
type configState struct {
	admin.ConfigState
	config *config.Config
}

// maxReloads is how many reloads the status page shows.
const maxReloads = 20

func (s configState) with(r admin.Reload) []admin.Reload {
	all := append(slices.Clone(s.Reloads), r)
	return all[max(0, len(all)-maxReloads):]
}

// Reload applies another configuration, which must not be changed any longer. What cannot change while the pipeline runs stays as it is
// and is reported. The current routes are drained first, so it takes up to config.Shutdown.Timeout.
//
// The error matches [ErrConfig] for an invalid configuration, and [ErrNotRunning] once the pipeline has begun to stop; nothing has
// changed then. Before Run it waits for it. If ctx ends before the new routes run, the error is that of ctx, and they may or may not
// start later.
func (p *Pipeline) Reload(ctx context.Context, cfg *config.Config) (ReloadReport, error) {
	if err := ctx.Err(); err != nil {
		return ReloadReport{}, err
	}
	select {
	case p.reloading <- struct{}{}:
		defer func() { <-p.reloading }()
	case <-ctx.Done():
		return ReloadReport{}, ctx.Err()
	case <-p.ended:
		return ReloadReport{}, ErrNotRunning
	}
	report, err := p.reload(ctx, cfg)
	if err != nil {
		p.ReloadFailed(err)
	}
	return report, err
}

// ReloadFailed makes the status show that a new configuration was rejected, for one that
// could not even be read.
func (p *Pipeline) ReloadFailed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded.Error, p.loaded.FailedAt = router.RedactError(err, nil), time.Now()
	p.loaded.Reloads = p.loaded.with(admin.Reload{At: p.loaded.FailedAt, Error: p.loaded.Error})
}

func (p *Pipeline) reload(ctx context.Context, cfg *config.Config) (ReloadReport, error) {
	p.mu.Lock()
	old, phase := p.generation, p.phase
	p.mu.Unlock()
	if phase != phaseNew && phase != phaseRunning {
		return ReloadReport{}, ErrNotRunning
	}
	effective, restart := keepFixed(old.config, cfg)
	report := ReloadReport{Changed: changes(old.config, effective), Restart: restart}
	if len(report.Changed) == 0 {
		p.reloaded(effective)
		return p.takeSecret(cfg, report), nil
	}
	next, err := p.newGeneration(effective, old.sinks)
	if err != nil {
		return ReloadReport{}, err
	}
	request := &reloadRequest{next: next, taken: make(chan string, 1)}
	select {
	case p.reloads <- request:
	case <-p.ended:
		return ReloadReport{}, discard(next, ErrNotRunning)
	case <-ctx.Done():
		return ReloadReport{}, discard(next, ctx.Err())
	}
	report = p.takeSecret(cfg, report)
	select {
	case report.Unfinished = <-request.taken:
		return report, nil
	case <-ctx.Done():
		return ReloadReport{}, ctx.Err()
	}
}

// takeSecret applies the client secret, which needs no new generation.
func (p *Pipeline) takeSecret(cfg *config.Config, report ReloadReport) ReloadReport {
	if p.secret.take(cfg) {
		report.Changed = append(report.Changed, "gateway.client_secret changed")
	}
	return report
}

// discard closes a generation that never ran: its sources and publishers.
func discard(g *generation, err error) error {
	_ = g.router.Close() // nothing was in progress
	return err
}

// replace makes the next generation the current one after old, whose router has ended with
// err. Only Run calls it, with no router running.
func (p *Pipeline) replace(beside context.Context, old *generation, request *reloadRequest, err error) {
	next := request.next
	for name, s := range next.sinks {
		if old.sinks[name] != s {
			s.open(beside)
		}
	}
	totals := map[string]router.RouteHealth{}
	for _, h := range p.Health() {
		if slices.ContainsFunc(next.routes, func(r admin.Route) bool { return r.Name == h.Name }) {
			totals[h.Name] = h // those of others end here: one that comes back counts anew
		}
	}
	p.mu.Lock()
	p.generation, p.totals = next, totals
	p.mu.Unlock()
	// The quarantine may still be writing to a sink that goes away; it retries with the
	// current one.
	gone := maps.Clone(old.sinks)
	maps.DeleteFunc(gone, func(name string, s *sink) bool { return next.sinks[name] == s })
	ending, cancel := context.WithTimeout(context.WithoutCancel(beside), budgetOf(old.config).sinks)
	defer cancel()
	if err := closeAll(ending, gone); err != nil {
		p.logger.Warn("an unused sink could not be closed", "error", router.RedactError(err, nil))
	}
	for name := range old.sinks {
		if next.sinks[name] == nil {
			p.sinkMetrics.Forget(name)
		}
	}
	for _, r := range old.routes {
		if _, stays := totals[r.Name]; !stays {
			p.observer.Forget(r.Name) // after its sink, which ends what was unfinished, and that is counted
		}
	}
	if !reflect.DeepEqual(old.config.Endpoints, next.config.Endpoints) {
		p.endpoints.start(beside, next.endpoints)
	}
	p.reloaded(next.config)
	request.taken <- router.RedactError(unfinished(err), nil)
}

// unfinished extracts what err, that of a router's Run, says about unfinished work. A route
// that never ran does not count.
func unfinished(err error) error {
	if closing := (*router.CloseError)(nil); errors.As(err, &closing) {
		return closing
	}
	if refused := (*router.RouteError)(nil); errors.As(err, &refused) {
		return nil
	}
	return err
}

// reloaded records that a configuration was applied.
func (p *Pipeline) reloaded(cfg *config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	changes := admin.Changes(p.loaded.config.Settings(), cfg.Settings())
	p.loaded = configState{admin.ConfigState{LoadedAt: now, Reloads: p.loaded.with(admin.Reload{At: now, Changes: changes})}, cfg}
}

// keepFixed returns the new configuration with those sections of the old one that cannot
// change while the pipeline runs, and the names of those that differ.
func keepFixed(old, cfg *config.Config) (*config.Config, []string) {
	effective := *cfg
	var restart []string
	keep := func(name string, have, want any) {
		from, to := reflect.ValueOf(have).Elem(), reflect.ValueOf(want).Elem()
		files := name == "admin" || old.FilesAt(name) == cfg.FilesAt(name) // the page rereads its own
		if !files || !reflect.DeepEqual(from.Interface(), to.Interface()) {
			restart = append(restart, name)
			effective.KeepSource(old, cfg, name)
		}
		to.Set(from)
	}
	// The client secret is not fixed, see takeSecret.
	effective.Gateway.ClientSecret = old.Gateway.ClientSecret
	keep("gateway", &old.Gateway, &effective.Gateway)
	keep("subscriber", &old.Subscriber, &effective.Subscriber)
	keep("dedup", &old.Dedup, &effective.Dedup)
	keep("ha", &old.HA, &effective.HA)
	keep("devices", &old.Devices, &effective.Devices)
	keep("claim_check", &old.ClaimCheck, &effective.ClaimCheck)
	keep("shutdown", &old.Shutdown, &effective.Shutdown)
	keep("admin", &old.Admin, &effective.Admin)
	keep("journal", &old.Journal, &effective.Journal)
	keep("tracing", &old.Tracing, &effective.Tracing)
	keep("log.format", &old.Log.Format, &effective.Log.Format)
	return &effective, restart
}

// piece is a part of a configuration, with a digest of the files that it names.
type piece struct {
	value any
	files string
}

// sinkOf returns the configuration of a sink, and what is in the files that it names.
func sinkOf(cfg *config.Config, name string) piece {
	return piece{cfg.Sinks[name], cfg.FilesAt("sinks." + name)}
}

// pieces returns what a reload can change, by what it is called in the log.
func pieces(cfg *config.Config) map[string]piece {
	all := map[string]piece{
		"poison": {value: cfg.Poison}, "retry": {value: cfg.Retry}, "publisher": {value: cfg.Publisher}, "endpoints": {value: cfg.Endpoints},
		"log.level": {value: cfg.Log.Level},
	}
	for i, r := range cfg.Routes {
		all[fmt.Sprintf("route %q", r.Name)] = piece{r, cfg.FilesAt(fmt.Sprintf("routes[%d]", i))}
	}
	for name := range cfg.Sinks {
		all[fmt.Sprintf("sink %q", name)] = sinkOf(cfg, name)
	}
	return all
}

func changes(old, cfg *config.Config) []string {
	list := []string{} // never null in the log
	was, is := pieces(old), pieces(cfg)
	for name, piece := range is {
		before, there := was[name]
		delete(was, name)
		switch {
		case !there:
			list = append(list, name+" added")
		case !reflect.DeepEqual(before, piece):
			list = append(list, name+" changed")
		}
	}
	for name := range was {
		list = append(list, name+" removed")
	}
	slices.Sort(list)
	return list
}
