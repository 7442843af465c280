package gatewaytest

import "net/http"

func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, path string) {
	s.writeError(w, r, statusError(http.StatusNotFound, "there is no such resource"))
}
