package admin

import (
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
)

const (
	defaultTraceLimit = 20
	maxTraceLimit     = 10_000
	// maxTraceQuery is the longest text to look for.
	maxTraceQuery = 512
)

// serveTrace looks for messages in the journal, one request at a time: each reads all of it.
func (s *Server) serveTrace(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, err := number(query.Get("limit"), defaultTraceLimit, 1, maxTraceLimit)
	only := journal.Only{Tenant: query.Get("tenant"), Endpoint: query.Get("endpoint")}
	if err != nil {
		writeProblem(w, http.StatusBadRequest, fmt.Sprintf("limit must be a number from 1 to %d", maxTraceLimit))
		return
	}
	known := s.source.Journal()
	if known == nil {
		writeProblem(w, http.StatusNotFound, "there is no journal (journal.max_age is off)")
		return
	}
	select {
	case s.tracing <- struct{}{}:
		defer func() { <-s.tracing }()
	case <-r.Context().Done():
		return
	}
	respond(w, r, known.Trace(query.Get("q"), only, limit))
}

// serveWhy finds out why messages of a type do not arrive from a tenant.
func (s *Server) serveWhy(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	q := why.Question{Tenant: query.Get("tenant"), Type: query.Get("type"), From: query.Get("from")}
	if q.Type == "" {
		writeProblem(w, http.StatusBadRequest, "type is missing: the message type that does not arrive")
		return
	}
	if q.Tenant == "" {
		tenants, err := s.source.Tenants(r.Context())
		switch {
		case err != nil:
			writeProblem(w, http.StatusBadGateway, redact(err))
			return
		case len(tenants) != 1:
			writeProblem(w, http.StatusBadRequest, fmt.Sprintf("tenant is missing: %d tenants have authorized the application; agrimill tenants lists their IDs", len(tenants)))
			return
		}
		q.Tenant = tenants[0].ID
	}
	if id, err := uuid.Parse(q.Tenant); err != nil || len(q.Tenant) != len(id.String()) {
		writeProblem(w, http.StatusBadRequest, "tenant must be the ID (UUID) of a tenant")
		return
	}
	respond(w, r, s.source.Why(q))
}
