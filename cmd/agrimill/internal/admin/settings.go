package admin

import (
	"net/http"
	"time"
)

// Settings is the response to GET /api/config: the configuration that is running.
type Settings struct {
	// LoadedAt is when it was applied. Lines are those of the file as it was then.
	LoadedAt time.Time `json:"loaded_at"`
	// Error is why the file as it is now was not applied; empty if it was.
	Error    string    `json:"error,omitempty"`
	Settings []Setting `json:"settings"`
}

// Setting is one value of a configuration, as it may be shown.
type Setting struct {
	// Path is the key, e.g. routes[1].to.sink.
	Path string `json:"path"`
	// Value is the value in effect. Secrets and what comes from the environment are not in it, nor users, passwords and
	// queries of addresses.
	Value any `json:"value"`
	// Source is where it was set, as FILE:LINE; empty for a default.
	Source string `json:"source,omitempty"`
	// File is the file that a secret was read from.
	File string `json:"file,omitempty"`
	// Environment says that an environment variable sets it.
	Environment bool `json:"environment,omitempty"`
	// Restart says that the section has another value in the file by now, which takes effect after a restart.
	Restart bool `json:"restart,omitempty"`
}

// serveConfig returns the configuration that is running.
func (s *Server) serveConfig(w http.ResponseWriter, _ *http.Request) {
	settings := Settings{Settings: s.source.Settings()}
	if settings.Settings == nil {
		settings.Settings = []Setting{}
	}
	state := s.source.Snapshot().Config
	settings.LoadedAt, settings.Error = state.LoadedAt, state.Error
	writeJSON(w, http.StatusOK, settings)
}
