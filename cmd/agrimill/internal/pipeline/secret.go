package pipeline

import (
	"log/slog"
	"sync"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/router"
)

// secret is the gateway's client secret, which may be rotated while the pipeline runs: in
// its file, or by a reload.
type secret struct {
	logger     *slog.Logger
	unreadable ratelog.Line

	mu     sync.Mutex
	from   *config.Config // where it comes from
	latest config.Secret  // the last one that was read
}

// get returns the secret for a token request. If the file cannot be read, for example while
// it is being replaced, the secret stays as it was.
func (s *secret) get() (config.Secret, error) {
	s.mu.Lock()
	from := s.from
	s.mu.Unlock()
	value, err := from.ReadClientSecret()
	if err != nil {
		if suppressed, ok := s.unreadable.Next(); ok {
			s.logger.Warn("the client secret file cannot be read; keeping the current secret",
				"error", router.RedactError(err, nil), ratelog.Field, suppressed)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && from == s.from {
		s.note(value)
	}
	return s.latest, nil
}

// take makes a new configuration the source of the secret, and reports whether the secret
// changed.
func (s *secret) take(from *config.Config) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = from
	return s.note(from.Gateway.ClientSecret)
}

// note is called with s.mu locked.
func (s *secret) note(value config.Secret) bool {
	if value == s.latest {
		return false
	}
	s.latest = value
	s.logger.Info("the client secret changed; it takes effect with the next token request")
	return true
}
