package pipeline

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/router"
)

// ReloadReport says what a reload has done.
type ReloadReport struct {
	// Changed lists what is different now, e.g. `route "farm" changed`. Empty: the
	// configuration is the one that runs, and nothing was done.
	Changed []string `json:"changed"`
	// Restart lists the sections of the new file that differ and need a restart.
	// They stay as they were.
	Restart []string `json:"restart"`
	// Unfinished says which messages the old routes could not finish in time, or
	// what else did not end. They come again. Empty: everything was finished.
	Unfinished string `json:"unfinished,omitempty"`
}

// reloadRequest is a generation on its way to Run.
type reloadRequest struct {
	next  *generation
	taken chan string // gets ReloadReport.Unfinished once the generation has taken over
}

// configState is what the status tells about the configuration.
type configState struct {
	at      time.Time
	failure string // why the newest one was not taken over
}

// Reload takes over another configuration: routes, filters, topics, sinks, the
// place of the poison queue, retries and endpoints. What cannot be changed while the
// pipeline runs stays as it is and is reported. The routes that run are
// drained first, see the package's documentation, so it takes up to
// config.Shutdown.Timeout.
//
// An error matches [ErrConfig] when the configuration cannot work, [ErrNotRunning]
// before Run and after it has begun to end. Nothing has changed then. When ctx ends
// before the new routes run, the error is that of ctx, and they may run soon or not.
//
// The pipeline keeps cfg and does not change it; it must not be changed.
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

// ReloadFailed has the status tell that a new configuration was refused, for one
// that could not even be read.
func (p *Pipeline) ReloadFailed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded.failure = router.RedactError(err, nil)
}

func (p *Pipeline) reload(ctx context.Context, cfg *config.Config) (ReloadReport, error) {
	p.mu.Lock()
	old, phase := p.generation, p.phase
	p.mu.Unlock()
	if phase != phaseRunning {
		return ReloadReport{}, ErrNotRunning
	}
	effective, restart := keepFixed(old.config, cfg)
	report := ReloadReport{Changed: changes(old.config, effective), Restart: restart}
	if len(report.Changed) == 0 {
		p.reloaded()
		return report, nil
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
	select {
	case report.Unfinished = <-request.taken:
		return report, nil
	case <-ctx.Done():
		return ReloadReport{}, ctx.Err()
	}
}

// discard gives up a generation that never ran: its sources and publishers.
func discard(g *generation, err error) error {
	_ = g.router.Close() // nothing was under way
	return err
}

// replace has the next generation take over from old, whose router has ended with
// err. It is called by Run only, with no router running.
func (p *Pipeline) replace(beside context.Context, old *generation, request *reloadRequest, err error) {
	next := request.next
	for name, s := range next.sinks {
		if old.sinks[name] != s {
			s.open(beside)
		}
	}
	p.mu.Lock()
	p.generation = next
	p.mu.Unlock()
	// The quarantine may still be writing into a sink that goes away; it tries
	// again, with the one that is there now.
	gone := maps.Clone(old.sinks)
	maps.DeleteFunc(gone, func(name string, s *sink) bool { return next.sinks[name] == s })
	ending, cancel := context.WithTimeout(context.WithoutCancel(beside), budgetOf(old.config).sinks)
	defer cancel()
	if err := closeAll(ending, gone); err != nil {
		p.logger.Warn("a sink that is no longer used could not be closed", "error", router.RedactError(err, nil))
	}
	for name := range old.sinks {
		if next.sinks[name] == nil {
			p.sinkMetrics.Forget(name)
		}
	}
	if !reflect.DeepEqual(old.config.Endpoints, next.config.Endpoints) {
		p.endpoints.start(beside, next.endpoints)
	}
	p.reloaded()
	request.taken <- router.RedactError(err, nil)
}

// reloaded notes that a configuration was taken over.
func (p *Pipeline) reloaded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded = configState{at: time.Now()}
}

// keepFixed returns the new configuration with the sections of the old one that
// cannot be changed while the pipeline runs, and the names of those that differ.
func keepFixed(old, cfg *config.Config) (*config.Config, []string) {
	effective := *cfg
	var restart []string
	keep := func(name string, have, want any) {
		from, to := reflect.ValueOf(have).Elem(), reflect.ValueOf(want).Elem()
		if !reflect.DeepEqual(from.Interface(), to.Interface()) {
			restart = append(restart, name)
		}
		to.Set(from)
	}
	keep("gateway", &old.Gateway, &effective.Gateway)
	keep("subscriber", &old.Subscriber, &effective.Subscriber)
	keep("dedup", &old.Dedup, &effective.Dedup)
	keep("claim_check", &old.ClaimCheck, &effective.ClaimCheck)
	keep("shutdown", &old.Shutdown, &effective.Shutdown)
	keep("admin", &old.Admin, &effective.Admin)
	keep("tracing", &old.Tracing, &effective.Tracing)
	keep("log.format", &old.Log.Format, &effective.Log.Format)
	return &effective, restart
}

// changes lists how two configurations differ, in the order in which people look
// for it.
func changes(old, cfg *config.Config) []string {
	var list []string
	oldRoutes, routes := map[string]any{}, map[string]any{}
	for _, r := range old.Routes {
		oldRoutes[r.Name] = r
	}
	for _, r := range cfg.Routes {
		routes[r.Name] = r
	}
	list = append(list, differences("route", oldRoutes, routes)...)
	oldSinks, sinks := map[string]any{}, map[string]any{}
	for name, s := range old.Sinks {
		oldSinks[name] = s
	}
	for name, s := range cfg.Sinks {
		sinks[name] = s
	}
	list = append(list, differences("sink", oldSinks, sinks)...)
	for _, section := range []struct {
		name      string
		old, next any
	}{
		{"poison", old.Poison, cfg.Poison}, {"retry", old.Retry, cfg.Retry}, {"publisher", old.Publisher, cfg.Publisher},
		{"endpoints", old.Endpoints, cfg.Endpoints}, {"log.level", old.Log.Level, cfg.Log.Level},
	} {
		if !reflect.DeepEqual(section.old, section.next) {
			list = append(list, section.name+" changed")
		}
	}
	return list
}

// differences lists what of a kind was added, removed and changed.
func differences(kind string, old, next map[string]any) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(next)) {
		before, there := old[name]
		switch {
		case !there:
			list = append(list, fmt.Sprintf("%s %q added", kind, name))
		case !reflect.DeepEqual(before, next[name]):
			list = append(list, fmt.Sprintf("%s %q changed", kind, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, there := next[name]; !there {
			list = append(list, fmt.Sprintf("%s %q removed", kind, name))
		}
	}
	return list
}

// reusable returns a sink if its configuration is still the same, else nil.
func reusable(s *sink, cfg config.Sink) *sink {
	if s == nil || !reflect.DeepEqual(s.config, cfg) {
		return nil
	}
	return s
}
