package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const opToken = "get access token"

// tokenSource caches one access token. At most one token request is in flight;
// each caller waits for its result as long as the caller's context lives, while
// the request itself belongs to the client. A failure is remembered for one
// backoff step, so that a token endpoint that is down receives one request per step
// rather than one per call.
type tokenSource struct {
	// fetch obtains a token, within the time of its context. It is a function, and
	// tokens are pointers, so that printing a Client reveals no credentials.
	fetch   func(ctx context.Context) (*accessToken, error)
	foreign bool // fetch may return a token again that the service refused
	timeout time.Duration
	retry   RetryConfig
	answers *answers

	base   context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup // the request in flight

	mu       sync.Mutex
	token    *accessToken // nil if there is none
	refused  *accessToken // the latest token that the service refused
	doubted  bool         // refused has been returned again since, and was not used
	current  *tokenFetch
	failure  error
	failures int
	notAgain time.Time
	closed   bool
}

type accessToken struct {
	value  string
	header string    // the value of the Authorization header
	until  time.Time // zero means until the service refuses it
}

// tokenFetch is one request for a token; its fields are written before done closes.
type tokenFetch struct {
	done  chan struct{}
	token *accessToken
	err   error
}

func newTokenSource(cfg Config, rt http.RoundTripper, answers *answers) *tokenSource {
	s := &tokenSource{timeout: cfg.TokenTimeout, retry: cfg.Retry, answers: answers}
	s.base, s.cancel = context.WithCancel(context.Background())
	if cfg.TokenSource != nil {
		s.foreign = true
		s.fetch = (&askedSource{source: cfg.TokenSource, margin: cfg.TokenExpiryMargin}).token
	} else {
		s.fetch = newCredentials(cfg, rt).token
	}
	return s
}

// get returns a cached or a fresh token. It waits at most until ctx ends.
func (s *tokenSource) get(ctx context.Context) (*accessToken, error) {
	s.mu.Lock()
	now := time.Now()
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, ErrClosed
	case s.token != nil && (s.token.until.IsZero() || now.Before(s.token.until)):
		defer s.mu.Unlock()
		return s.token, nil
	case s.current == nil && s.failure != nil && now.Before(s.notAgain):
		defer s.mu.Unlock()
		return nil, s.failure
	}
	f := s.current
	if f == nil {
		f = &tokenFetch{done: make(chan struct{})}
		s.current = f
		s.wg.Add(1)
		// Ends after the token timeout at the latest; close cancels it and waits.
		go s.run(f)
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		if f.err != nil {
			return nil, f.err
		}
		return f.token, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// invalidate drops a token that the service has refused. A token obtained in
// the meantime stays: of many calls that were refused together, only one refreshes.
func (s *tokenSource) invalidate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token != nil && s.token.value == token {
		s.refused, s.doubted = s.token, false
		s.token = nil
	}
}

// again reports whether the service refuses a token that it had refused before and
// that the source returned again.
func (s *tokenSource) again(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.foreign && s.refused != nil && s.refused.value == token
}

func (s *tokenSource) run(f *tokenFetch) {
	defer s.wg.Done()
	ctx, cancel := context.WithTimeout(s.base, s.timeout)
	defer cancel()
	token, err := s.fetch(ctx)
	if s.base.Err() != nil {
		token, err = nil, ErrClosed
	}
	s.mu.Lock()
	if err == nil && !s.acceptsLocked(token) {
		token, err = nil, errSameToken()
	}
	f.token, f.err = token, err
	s.current = nil
	s.failure = err
	if err == nil {
		s.token = token
		if s.refused == nil {
			s.failures = 0
		}
	} else {
		s.notAgain = time.Now().Add(s.retry.backoff(s.failures, 0))
		s.failures = min(s.failures+1, 32)
	}
	s.mu.Unlock()
	s.answers.take(opToken, err, time.Now())
	close(f.done)
}

// acceptsLocked decides about a token that may be the one that was refused last.
// If it is returned again immediately, it is useless. If it is returned again after a
// wait, it is accepted: the service may have been wrong, and as long as the source
// keeps it there is no other.
func (s *tokenSource) acceptsLocked(token *accessToken) bool {
	switch {
	case !s.foreign || s.refused == nil || s.refused.value != token.value:
		s.refused, s.doubted = nil, false
		return true
	case !s.doubted:
		s.doubted = true
		return false
	}
	s.doubted = false
	return true
}

// errSameToken is an outage: the source has not noticed the refusal yet.
func errSameToken() error {
	return &tokenError{reason: "the token source returned a token that the service refused", kind: ErrUnavailable}
}

// close cancels the request in flight and waits for it.
func (s *tokenSource) close() {
	s.mu.Lock()
	s.closed = true
	s.token, s.refused = nil, nil
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// newAccessToken checks the result of a token source; asked is when it was requested.
// wrong is what is wrong with it.
func newAccessToken(t *oauth2.Token, asked time.Time, margin time.Duration) (token *accessToken, wrong string) {
	if t == nil || !validToken(t.AccessToken) {
		return nil, "has no usable access_token"
	}
	if t.TokenType != "" && !strings.EqualFold(t.TokenType, "Bearer") {
		return nil, "has a token that is not of type Bearer"
	}
	token = &accessToken{value: t.AccessToken, header: "Bearer " + t.AccessToken}
	// No expiry, or one in the past, does not limit the lifetime: the token is
	// used until the service refuses it.
	if life := t.Expiry.Sub(asked); !t.Expiry.IsZero() && life > 0 {
		token.until = t.Expiry.Add(-min(margin, life/2))
	}
	return token, ""
}

// credentials obtains tokens with client credentials.
type credentials struct {
	conf   clientcredentials.Config
	secret func() (Secret, error) // nil if conf contains it
	client *http.Client
	margin time.Duration
}

func newCredentials(cfg Config, rt http.RoundTripper) *credentials {
	style := oauth2.AuthStyleInHeader
	if cfg.AuthStyle == AuthStyleParams {
		style = oauth2.AuthStyleInParams
	}
	return &credentials{
		conf: clientcredentials.Config{
			ClientID:     cfg.ClientID,
			ClientSecret: string(cfg.ClientSecret),
			TokenURL:     cfg.TokenURL,
			Scopes:       cfg.Scopes,
			AuthStyle:    style,
		},
		secret: cfg.ClientSecretFunc,
		client: &http.Client{
			Transport: withUserAgent(rt, cfg.UserAgent),
			// A redirected token request would carry the secret elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return ErrRedirect },
		},
		margin: cfg.TokenExpiryMargin,
	}
}

// token makes one token request.
func (c *credentials) token(ctx context.Context) (*accessToken, error) {
	// The response head contains what the library's errors do not.
	seen := &answerHead{next: c.client.Transport}
	client := *c.client
	client.Transport = seen
	conf := c.conf
	if c.secret != nil {
		secret, err := c.secret()
		if err != nil {
			return nil, &tokenError{reason: "the client secret cannot be read", kind: ErrUnavailable, cause: err}
		}
		conf.ClientSecret = string(secret)
	}
	asked := time.Now()
	t, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, &client))
	if err != nil {
		return nil, tokenFailure(ctx, seen, err)
	}
	token, wrong := newAccessToken(t, asked, c.margin)
	if token == nil {
		return nil, &tokenError{status: seen.status, reason: "the response " + wrong, kind: ErrUnavailable, bad: true}
	}
	return token, nil
}

// validToken rejects characters that are not allowed in a header.
func validToken(token string) bool {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return token != ""
}

// tokenError describes why there is no token. It contains nothing of the token
// endpoint's response except the status and the error code of RFC 6749.
type tokenError struct {
	status       int
	media        string // media type of the response
	reason       string
	kind         error // ErrUnavailable or ErrUnauthorized
	bad          bool  // the response is not a token response
	intermediary bool  // nor does it come from the token endpoint
	cause        error
}

func (e *tokenError) Error() string {
	s := "no access token: " + e.reason
	if e.status != 0 {
		s += " (status " + strconv.Itoa(e.status)
		if e.media != "" {
			s += ", " + e.media
		}
		s += ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *tokenError) Unwrap() error { return e.cause }

func (e *tokenError) Is(target error) bool {
	return target == ErrToken || target == e.kind || (e.bad && target == ErrBadResponse) ||
		(e.intermediary && target == ErrIntermediary)
}

func tokenFailure(ctx context.Context, seen *answerHead, err error) error {
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused):
		// Never wrapped: it contains the body, which may contain secrets.
		return tokenRefusal(seen, refused.ErrorCode)
	case ctx.Err() != nil:
		return &tokenError{reason: "the token endpoint did not answer in time", kind: ErrUnavailable}
	case seen.encoding != nil:
		return &tokenError{status: seen.status, reason: "the response of the token endpoint cannot be read", kind: ErrUnavailable, bad: true, cause: seen.encoding}
	case seen.status == 0, errors.Is(err, ErrRedirect):
		return &tokenError{status: seen.status, reason: "the token request failed", kind: ErrUnavailable, cause: transportCause(err)}
	case isWebPage(seen.media):
		return &tokenError{status: seen.status, media: seen.media, reason: "a web page was returned instead of a token response", kind: ErrUnavailable, bad: true, intermediary: true}
	}
	return &tokenError{status: seen.status, reason: "the response of the token endpoint is not a token", kind: ErrUnavailable, bad: true}
}

// tokenRefusal interprets an error response of the token endpoint (RFC 6749, 5.2). An
// error code proves that it comes from the endpoint, and so do a 401 and, because not
// every endpoint follows the specification, a 400 in JSON. Any other 4xx may come from
// an intermediary.
func tokenRefusal(seen *answerHead, code string) error {
	e := &tokenError{status: seen.status, media: seen.media, kind: ErrUnavailable, reason: "the token endpoint failed"}
	switch code {
	case "invalid_client", "invalid_grant", "unauthorized_client", "access_denied",
		"invalid_request", "invalid_scope", "unsupported_grant_type":
		e.kind, e.reason = ErrUnauthorized, "the token endpoint refused the request: "+code
	case "temporarily_unavailable", "server_error":
		e.reason = "the token endpoint failed: " + code
	default:
		switch {
		case e.status == http.StatusUnauthorized, e.status == http.StatusBadRequest && seen.media == "application/json":
			e.kind, e.reason = ErrUnauthorized, "the token endpoint refused the credentials"
		case e.status == http.StatusRequestTimeout, e.status == http.StatusTooEarly:
		case e.status >= 400 && e.status <= 499:
			e.reason, e.intermediary = "not answered by the token endpoint", true
		}
	}
	if e.status >= 500 || e.status == http.StatusTooManyRequests {
		e.kind, e.intermediary = ErrUnavailable, false
	}
	return e
}

// answerHead records the response head.
type answerHead struct {
	next     http.RoundTripper
	status   int
	media    string
	encoding error // a Content-Encoding that was not requested
}

func (h *answerHead) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(req)
	if err == nil {
		h.status = resp.StatusCode
		h.media = mediaType(resp.Header)
		h.encoding = checkEncoding(resp.Header)
	}
	return resp, err
}

// withUserAgent sets the User-Agent of every request, and requests an unencoded
// response.
func withUserAgent(next http.RoundTripper, agent string) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", agent)
		req.Header.Set("Accept-Encoding", acceptIdentity)
		return next.RoundTrip(req)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
