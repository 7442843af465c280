package admin

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
)

const (
	defaultTraceLimit = 20
	maxTraceLimit     = 10_000
	// MaxTraceQuery is the longest text to look for, in bytes.
	MaxTraceQuery = 512
)

// trace looks for messages in the journal, one request at a time: each reads all of it.
func (s *Server) trace(r *http.Request) (any, error) {
	query := r.URL.Query()
	limit, err := number(query.Get("limit"), defaultTraceLimit, 1, maxTraceLimit)
	only := journal.Only{Tenant: query.Get("tenant"), Endpoint: query.Get("endpoint")}
	if err != nil {
		return nil, badRequest("limit must be a number from 1 to %d", maxTraceLimit)
	}
	known := s.source.Journal()
	if known == nil {
		return nil, problem{status: http.StatusNotFound, Text: "there is no journal (journal.max_age is off)"}
	}
	if err := s.tracing.Acquire(r.Context(), 1); err != nil {
		return nil, err // to nobody
	}
	defer s.tracing.Release(1)
	return known.Trace(query.Get("q"), only, limit), nil
}

func (s *Server) why(r *http.Request) (any, error) {
	query := r.URL.Query()
	q := why.Question{Tenant: query.Get("tenant"), Type: query.Get("type"), From: query.Get("from")}
	if q.Type == "" {
		return nil, badRequest("type is missing: the message type that does not arrive")
	}
	if q.Tenant == "" {
		tenants, err := s.source.Tenants(r.Context())
		switch {
		case err != nil:
			return nil, err
		case len(tenants) != 1:
			return nil, badRequest("tenant is missing: %d tenants have authorized the application; agrimill tenants lists their IDs", len(tenants))
		}
		q.Tenant = tenants[0].ID
	}
	if id, err := uuid.Parse(q.Tenant); err != nil || len(q.Tenant) != len(id.String()) {
		return nil, badRequest("tenant must be the ID (UUID) of a tenant")
	}
	return s.source.Why(q), nil
}
