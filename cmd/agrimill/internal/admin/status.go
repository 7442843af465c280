package admin

import (
	"net/http"
	"slices"

	"github.com/agrimill/agrimill/router"
)

func redact(err error) string { return router.RedactError(err, nil) }

func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	status := s.status()
	status.Selected = selected(s.source, selection(r.URL.Query()))
	respond(w, r, status)
}

func (s *Server) status() Status {
	snapshot := s.source.Snapshot()
	if snapshot.Time.IsZero() {
		snapshot.Time = s.config.Now()
	}
	if snapshot.Verdict.Sentence == "" {
		snapshot.Verdict = Judge(snapshot)
	}
	if snapshot.State == "" {
		snapshot.State = deriveState(snapshot)
	}
	// Lists are never null in JSON.
	if snapshot.Routes == nil {
		snapshot.Routes = []Route{}
	}
	if snapshot.Sinks == nil {
		snapshot.Sinks = []Sink{}
	}
	return Status{
		Snapshot: snapshot, Figures: FiguresFrom(snapshot.Subscriber), Browsable: s.source.PoisonStore() != nil, Replay: s.access.token.configured(),
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

func (s *Server) serveTenants(w http.ResponseWriter, r *http.Request) {
	tenants, err := s.source.Tenants(r.Context())
	if err != nil {
		writeProblem(w, http.StatusBadGateway, redact(err))
		return
	}
	if tenants == nil {
		tenants = []Tenant{}
	}
	respond(w, r, TenantList{Tenants: tenants})
}
