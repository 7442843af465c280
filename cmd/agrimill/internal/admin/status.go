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
	writeJSON(w, http.StatusOK, status)
}

func (s *Server) status() Status {
	snapshot := s.source.Snapshot()
	err := s.source.Live()
	if snapshot.Time.IsZero() {
		snapshot.Time = s.config.Now()
	}
	switch {
	case err != nil:
		snapshot.State, snapshot.Error = StateStopped, redact(err)
	case snapshot.State == "":
		snapshot.State = deriveState(snapshot)
	}
	// Lists are never null in JSON.
	if snapshot.Routes == nil {
		snapshot.Routes = []Route{}
	}
	if snapshot.Sinks == nil {
		snapshot.Sinks = []Sink{}
	}
	if snapshot.Verdict.Sentence == "" || err != nil {
		snapshot.Verdict = Judge(snapshot)
	}
	return Status{
		Snapshot: snapshot, Figures: FiguresFrom(snapshot.Subscriber), Browsable: s.source.PoisonStore() != nil, Replay: s.access.token.configured(),
		Metrics: s.config.Gatherer != nil,
	}
}

// deriveState derives the overall state from the parts, while the pipeline runs: routes that are stopped are
// being replaced by a reload.
func deriveState(snapshot Snapshot) State {
	switch {
	case slices.ContainsFunc(snapshot.Routes, func(r Route) bool {
		return r.State == router.StateOutage || r.State == router.StateFailing || r.State == router.StateFailed || r.State == router.StateEnded ||
			r.State == router.StateStarting && r.LastErrorAt.After(r.Since) // in vain so far; an older error is of before a reload
	}),
		slices.ContainsFunc(snapshot.Sinks, func(s Sink) bool { return !s.Up && !s.CheckedAt.IsZero() }),
		snapshot.Subscriber.ConfirmationsFail != "", snapshot.Subscriber.SetAsideNow > 0,
		snapshot.Dedup.Store != "" && !snapshot.Dedup.Up, snapshot.Lease.Error != "",
		snapshot.Gateway.State == GatewayDisconnected, len(snapshot.Gateway.Intermediaries) > 0,
		snapshot.Config.Error != "":
		return StateDegraded
	case slices.ContainsFunc(snapshot.Routes, func(r Route) bool { return r.State == router.StateStarting }),
		snapshot.Gateway.State == GatewayConnecting:
		return StateStarting
	case snapshot.Gateway.State == GatewayStandby:
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
	writeJSON(w, http.StatusOK, TenantList{Tenants: tenants})
}
