package subscriber

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// heard remembers when the gateway last answered.
type heard struct{ at atomic.Pointer[time.Time] }

// note takes the outcome of a request: with any status, somebody has answered.
func (h *heard) note(err error) {
	var e *gateway.Error
	if err == nil || errors.As(err, &e) && e.StatusCode != 0 && !errors.Is(err, gateway.ErrToken) {
		h.mark()
	}
}

// mark says that it was now.
func (h *heard) mark() {
	now := time.Now()
	h.at.Store(&now)
}

// maxOutage bounds what somebody who cannot serve may ask for: nobody knows when an outage ends.
const maxOutage = time.Minute

// retryAfter returns how long whoever answered asked to be left alone; zero if it did not.
func retryAfter(err error) time.Duration {
	e, answered := errors.AsType[*gateway.Error](err)
	switch {
	case !answered:
		return 0
	case errors.Is(err, gateway.ErrRateLimited):
		return e.RetryAfter
	}
	return min(e.RetryAfter, maxOutage)
}

// last returns when; zero before the first answer.
func (h *heard) last() time.Time {
	if at := h.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// lastHeard returns when the gateway last answered a request, or sent anything on the stream; zero
// if it never did.
func (s *Subscriber) lastHeard() time.Time {
	at := s.confirmer.heard.last()
	s.mu.Lock()
	stream := s.loop.stream
	s.mu.Unlock()
	if stream != nil {
		at = later(at, stream.LastHeard())
	}
	return at
}

// ask asks the gateway for something, so that its answer is heard. What it answers does not matter.
// Without an access token nothing was asked, which says nothing against the gateway.
func (s *Subscriber) ask(ctx context.Context) {
	_, err := s.cfg.Client.ListAuthorizedTenants(gateway.SingleAttempt(lease.Guard(ctx)))
	s.confirmer.heard.note(err)
	if errors.Is(err, gateway.ErrToken) {
		s.confirmer.heard.mark()
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
