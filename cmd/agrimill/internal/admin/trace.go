package admin

import (
	"fmt"
	"net/http"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
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
