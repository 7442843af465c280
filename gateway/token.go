package gateway

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// tokenSource gets access tokens by client credentials and keeps one. At most
// one token request is under way; whoever needs its result waits for it as long
// as his own context lives, while the request itself belongs to the client. A
// failure is remembered for one backoff step, so that a token endpoint that is
// down sees one request per step and not one per call.
type tokenSource struct {
	conf    clientcredentials.Config
	client  *http.Client
	timeout time.Duration
	margin  time.Duration
	retry   RetryConfig

	base   context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup // the request under way

	mu       sync.Mutex
	token    string
	until    time.Time // zero: until the service refuses it
	fetch    *tokenFetch
	failure  error
	failures int
	notAgain time.Time
	closed   bool
}

// tokenFetch is one token request; its fields are written before done closes.
type tokenFetch struct {
	done  chan struct{}
	token string
	err   error
}

func newTokenSource(cfg Config, rt http.RoundTripper) *tokenSource {
	style := oauth2.AuthStyleInHeader
	if cfg.AuthStyle == AuthStyleParams {
		style = oauth2.AuthStyleInParams
	}
	base, cancel := context.WithCancel(context.Background())
	return &tokenSource{
		conf: clientcredentials.Config{
			ClientID:     cfg.ClientID,
			ClientSecret: cfg.ClientSecret,
			TokenURL:     cfg.TokenURL,
			Scopes:       cfg.Scopes,
			AuthStyle:    style,
		},
		client: &http.Client{
			Transport: withUserAgent(rt, cfg.UserAgent),
			// A redirected token request would carry the secret elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return ErrRedirect },
		},
		timeout: cfg.TokenTimeout,
		margin:  cfg.TokenExpiryMargin,
		retry:   cfg.Retry,
		base:    base,
		cancel:  cancel,
	}
}

// get returns a token, from memory or from the token endpoint. It waits until
// ctx ends at most.
func (s *tokenSource) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	now := time.Now()
	switch {
	case s.closed:
		s.mu.Unlock()
		return "", ErrClosed
	case s.token != "" && (s.until.IsZero() || now.Before(s.until)):
		defer s.mu.Unlock()
		return s.token, nil
	case s.fetch == nil && s.failure != nil && now.Before(s.notAgain):
		defer s.mu.Unlock()
		return "", s.failure
	}
	f := s.fetch
	if f == nil {
		f = &tokenFetch{done: make(chan struct{})}
		s.fetch = f
		s.wg.Add(1)
		// Ends by itself after the token timeout; close cancels it and waits.
		go s.run(f)
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.token, f.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// invalidate drops a token that the service has refused. A token that came in
// the meantime stays: of many calls that were refused together, one refreshes.
func (s *tokenSource) invalidate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

func (s *tokenSource) run(f *tokenFetch) {
	defer s.wg.Done()
	token, until, err := s.request()
	s.mu.Lock()
	f.token, f.err = token, err
	s.fetch = nil
	s.failure = err
	if err == nil {
		s.token, s.until, s.failures = token, until, 0
	} else {
		s.notAgain = time.Now().Add(s.retry.backoff(s.failures, 0))
		s.failures = min(s.failures+1, 32)
	}
	s.mu.Unlock()
	close(f.done)
}

// close ends the request under way and waits for it.
func (s *tokenSource) close() {
	s.mu.Lock()
	s.closed = true
	s.token = ""
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// request makes one token request.
func (s *tokenSource) request() (token string, until time.Time, err error) {
	ctx, cancel := context.WithTimeout(s.base, s.timeout)
	defer cancel()
	// The head of the answer tells what the library's errors do not.
	seen := &answerHead{next: s.client.Transport}
	client := *s.client
	client.Transport = seen
	asked := time.Now()
	t, err := s.conf.Token(context.WithValue(ctx, oauth2.HTTPClient, &client))
	if err != nil {
		return "", time.Time{}, s.tokenFailure(ctx, seen, err)
	}
	if !validToken(t.AccessToken) {
		return "", time.Time{}, &tokenError{status: seen.status, reason: "the answer holds no usable access_token", kind: ErrUnavailable, bad: true}
	}
	if t.TokenType != "" && !strings.EqualFold(t.TokenType, "Bearer") {
		return "", time.Time{}, &tokenError{status: seen.status, reason: "the answer holds a token that is not of type Bearer", kind: ErrUnavailable, bad: true}
	}
	// No expiry, zero or less says nothing about the lifetime: the token is
	// used until the service refuses it.
	if life := t.Expiry.Sub(asked); !t.Expiry.IsZero() && life > 0 {
		until = t.Expiry.Add(-min(s.margin, life/2))
	}
	return t.AccessToken, until, nil
}

// validToken refuses what could not stand in a header.
func validToken(token string) bool {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return token != ""
}

// tokenError says why there is no token. It holds nothing that the token
// endpoint answered but the status and the error code of RFC 6749.
type tokenError struct {
	status int
	reason string
	kind   error // ErrUnavailable or ErrUnauthorized
	bad    bool  // the answer is not a token answer
	cause  error
}

func (e *tokenError) Error() string {
	s := "no access token: " + e.reason
	if e.status != 0 {
		s += " (status " + strconv.Itoa(e.status) + ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *tokenError) Unwrap() error { return e.cause }

func (e *tokenError) Is(target error) bool {
	return target == ErrToken || target == e.kind || (e.bad && target == ErrBadResponse)
}

func (s *tokenSource) tokenFailure(ctx context.Context, seen *answerHead, err error) error {
	var refused *oauth2.RetrieveError
	switch {
	case s.base.Err() != nil:
		return ErrClosed
	case errors.As(err, &refused):
		// Never wrapped: it carries the body, and with it perhaps secrets.
		return tokenRefusal(seen.status, refused.ErrorCode)
	case ctx.Err() != nil:
		return &tokenError{reason: "the token endpoint did not answer in time", kind: ErrUnavailable}
	case seen.status == 0, errors.Is(err, ErrRedirect):
		return &tokenError{status: seen.status, reason: "the token request failed", kind: ErrUnavailable, cause: transportCause(err)}
	case seen.media == "text/html":
		return &tokenError{status: seen.status, reason: "the token endpoint answered with a web page", kind: ErrUnavailable, bad: true}
	}
	return &tokenError{status: seen.status, reason: "the answer of the token endpoint is not a token", kind: ErrUnavailable, bad: true}
}

// tokenRefusal reads an error answer of the token endpoint (RFC 6749, 5.2).
func tokenRefusal(status int, code string) error {
	e := &tokenError{status: status, kind: ErrUnavailable, reason: "the token endpoint failed"}
	switch code {
	case "invalid_client", "invalid_grant", "unauthorized_client", "access_denied",
		"invalid_request", "invalid_scope", "unsupported_grant_type":
		e.kind, e.reason = ErrUnauthorized, "the token endpoint refused the request: "+code
	case "temporarily_unavailable", "server_error":
		e.reason = "the token endpoint failed: " + code
	default:
		switch status {
		case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
			e.kind, e.reason = ErrUnauthorized, "the token endpoint refused the credentials"
		}
	}
	if status >= 500 || status == http.StatusTooManyRequests {
		e.kind = ErrUnavailable
	}
	return e
}

// answerHead remembers status and media type of the answer.
type answerHead struct {
	next   http.RoundTripper
	status int
	media  string
}

func (h *answerHead) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(req)
	if err == nil {
		h.status = resp.StatusCode
		if media, _, merr := mime.ParseMediaType(resp.Header.Get("Content-Type")); merr == nil {
			h.media = media
		}
	}
	return resp, err
}

// withUserAgent sets the User-Agent of every request.
func withUserAgent(next http.RoundTripper, agent string) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", agent)
		return next.RoundTrip(req)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
