package admin

import (
	"cmp"
	"fmt"
	"net/http"
)

// serveHealth reports the health of the process: a restart helps only if the pipeline has
// ended, not if something else is down.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why := s.source.Snapshot().Error; why != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		if !s.tells(r) {
			_, _ = fmt.Fprintln(w, "the pipeline stopped")
			return
		}
		_, _ = fmt.Fprintf(w, "the pipeline stopped: %s\n", why)
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
