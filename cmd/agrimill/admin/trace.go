package admin

import (
	"fmt"
	"net/http"
)

const (
	defaultTraceLimit = 20
	maxTraceLimit     = 200
	// maxTraceQuery is the longest text to look for.
	maxTraceQuery = 512
)

// serveTrace looks for messages in the journal, one request at a time: each reads all of it.
func (s *Server) serveTrace(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, err := number(query.Get("limit"), defaultTraceLimit, 1, maxTraceLimit)
	if wanted := query.Get("q"); err != nil || len(wanted) > maxTraceQuery {
		writeProblem(w, http.StatusBadRequest, fmt.Sprintf("limit must be a number from 1 to %d, q have at most %d bytes", maxTraceLimit, maxTraceQuery))
		return
	}
	journal := s.source.Journal()
	if journal == nil {
		writeProblem(w, http.StatusNotFound, "there is no journal (journal.max_age is off)")
		return
	}
	select {
	case s.tracing <- struct{}{}:
		defer func() { <-s.tracing }()
	case <-r.Context().Done():
		return
	}
	writeJSON(w, http.StatusOK, journal.Trace(query.Get("q"), limit))
}
