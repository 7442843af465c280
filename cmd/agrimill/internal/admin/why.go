package admin

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
)

// serveWhy finds out why messages of a type do not arrive from a tenant.
func (s *Server) serveWhy(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	q := why.Question{Tenant: query.Get("tenant"), Type: query.Get("type"), From: query.Get("from")}
	problem := ""
	switch id, err := uuid.Parse(q.Tenant); {
	case err != nil || len(q.Tenant) != len(id.String()):
		problem = "tenant must be the ID (UUID) of a tenant"
	case q.Type == "":
		problem = "type is missing: the message type that does not arrive"
	}
	if problem != "" {
		writeProblem(w, http.StatusBadRequest, problem)
		return
	}
	writeJSON(w, http.StatusOK, s.source.Why(q))
}
