package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"github.com/agrimill/agrimill/router"
)

func redact(err error) string { return router.RedactError(err, nil) }

func (s *Server) statusOf(r *http.Request) (any, error) {
	status := s.status()
	status.Selected = selected(s.source, selection(r.URL.Query()))
	return status, nil
}

func (s *Server) status() Status {
	snapshot := s.source.Snapshot()
	if snapshot.State == "" {
		snapshot.State = deriveState(snapshot)
	}
	// Lists are never null in JSON.
	snapshot.Routes, snapshot.Sinks = append([]Route{}, snapshot.Routes...), append([]Sink{}, snapshot.Sinks...)
	return Status{
		Snapshot: snapshot, Figures: FiguresFrom(snapshot.Subscriber), Browsable: s.source.PoisonStore() != nil, Replay: s.access.writes(),
		Metrics: s.config.Gatherer != nil, Job: s.jobs.now(),
	}
}

// deriveState is the verdict in a word, while the pipeline runs.
func deriveState(s Snapshot) State {
	isStarting := func(p Problem) bool { return p.Stage == StageStarting }
	switch starting := slices.ContainsFunc(s.Verdict.Problems, isStarting); {
	case !s.moves(), starting && !slices.ContainsFunc(s.Verdict.Problems, func(p Problem) bool { return !isStarting(p) }):
		return StateStarting
	case len(s.Verdict.Problems) > 0:
		return StateDegraded
	case s.Gateway.State == GatewayStandby:
		return StateStandby
	}
	return StateRunning
}

func (s *Server) tenants(r *http.Request) (any, error) {
	tenants, err := s.source.Tenants(r.Context())
	return TenantList{Tenants: append([]Tenant{}, tenants...)}, err // never null in JSON
}

// serveHealth reports the health of the process: a restart helps only if the pipeline has
// ended, not if something else is down.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why := s.source.Snapshot().Error; why != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		text := "the pipeline stopped"
		if s.tells(r) {
			text += ": " + why
		}
		_, _ = fmt.Fprintln(w, text)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// serveReadiness responds with the verdict and the checks of the last look, as far as they count.
func (s *Server) serveReadiness(w http.ResponseWriter, r *http.Request) {
	status := s.status()
	result := Readiness{Ready: status.Verdict.Ready, Checks: []Check{}, CheckedAt: status.CheckedAt}
	if s.tells(r) {
		// Whether it takes messages at all is a check as well.
		own := Check{Name: "pipeline", OK: status.moves(), Message: cmp.Or(status.Error, string(status.State))}
		result.Sentence, result.Checks = status.Verdict.Sentence, append([]Check{own}, status.Verdict.Apply(status.Checks)...)
	}
	code := http.StatusOK
	if !result.Ready {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, result)
}
