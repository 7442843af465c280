package gateway

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

// askedSource calls an [oauth2.TokenSource], which cannot be interrupted: a call that
// hangs is waited for as long as there is time, and no second call is made
// before it returns.
type askedSource struct {
	source oauth2.TokenSource

	mu     sync.Mutex
	asking *askedToken
}

// askedToken is the result of one call; its fields are written before done is closed.
type askedToken struct {
	asked time.Time
	done  chan struct{}
	token *oauth2.Token
	err   error
}

// token returns the source's token, within the time of ctx.
func (s *askedSource) token(ctx context.Context) (*accessToken, error) {
	s.mu.Lock()
	a := s.asking
	if a == nil {
		a = &askedToken{asked: time.Now(), done: make(chan struct{})}
		s.asking = a
		go s.ask(a) // ends when the source returns; it cannot be interrupted
	}
	s.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, &tokenError{reason: "the token source did not answer in time", kind: ErrUnavailable}
	}
	if a.err != nil {
		return nil, sourceFailure(a.err)
	}
	token, wrong := newAccessToken(a.token, a.asked)
	if token == nil {
		return nil, &tokenError{reason: "the result of the token source " + wrong, kind: ErrUnavailable, bad: true}
	}
	return token, nil
}

func (s *askedSource) ask(a *askedToken) {
	a.token, a.err = s.source.Token()
	s.mu.Lock()
	s.asking = nil
	s.mu.Unlock()
	close(a.done)
}

// sourceFailure returns why a token source provided no token. The errors of package
// oauth2 about token responses are not included, because they quote them.
func sourceFailure(err error) error {
	var refused *oauth2.RetrieveError
	var request *url.Error
	switch {
	case errors.As(err, &refused):
		seen := answerHead{}
		if refused.Response != nil {
			seen.status, seen.media = refused.Response.StatusCode, mediaType(refused.Response.Header)
		}
		return tokenRefusal(seen, refused.ErrorCode)
	case errors.As(err, &request), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = transportCause(err)
	}
	e := &tokenError{reason: "the token source failed", kind: ErrUnavailable, cause: err}
	if errors.Is(err, ErrUnauthorized) {
		e.kind = ErrUnauthorized
	}
	return e
}
