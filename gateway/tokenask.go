package gateway

import (
	"context"
	"errors"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// askedSource calls an [oauth2.TokenSource], which cannot be interrupted: no second call is made before one returns.
type askedSource struct {
	source oauth2.TokenSource
	calls  singleflight.Group
}

// askedToken is the result of one call.
type askedToken struct {
	token *oauth2.Token
	asked time.Time
}

// token returns the source's token, within the time of ctx.
func (s *askedSource) token(ctx context.Context) (*accessToken, error) {
	call := s.calls.DoChan("", func() (any, error) {
		asked := time.Now()
		token, err := s.source.Token()
		return askedToken{token, asked}, err
	})
	select {
	case result := <-call:
		if result.Err != nil {
			return nil, sourceFailure(result.Err)
		}
		given := result.Val.(askedToken)
		token, wrong := newAccessToken(given.token, given.asked)
		if token == nil {
			return nil, &tokenError{reason: "the result of the token source " + wrong, kind: ErrUnavailable, bad: true}
		}
		return token, nil
	case <-ctx.Done():
		return nil, &tokenError{reason: "the token source did not answer in time", kind: ErrUnavailable}
	}
}

// sourceFailure returns why a token source provided no token. The errors of package
// oauth2 about token responses are not included, because they quote them.
func sourceFailure(err error) error {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		seen := answerHead{}
		if refused.Response != nil {
			seen = headOf(refused.Response)
		}
		return tokenRefusal(seen, refused.ErrorCode)
	}
	if has[*url.Error](err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = transportCause(err)
	}
	e := &tokenError{reason: "the token source failed", kind: ErrUnavailable, cause: err}
	if errors.Is(err, ErrUnauthorized) {
		e.kind = ErrUnauthorized
	}
	return e
}
