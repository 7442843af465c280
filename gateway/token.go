package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

const opToken = "get access token"

// tokenSource caches one access token. At most one token request is in flight, which belongs to the client: each
// caller waits for it as long as its own context lives. A failure is remembered for one backoff step, so that an
// endpoint that is down gets one request per step rather than one per call.
type tokenSource struct {
	// fetch obtains a token. Functions and pointers are here so that printing a Client reveals no credentials.
	fetch   func(ctx context.Context) (*accessToken, error)
	foreign bool // fetch may return a token again that the service refused
	timeout time.Duration
	retry   RetryConfig
	answers *answers

	base   context.Context // ends with the client
	cancel context.CancelFunc
	calls  singleflight.Group // the request in flight

	mu       sync.Mutex
	asking   bool         // a request is in flight
	token    *accessToken // nil if there is none
	refused  *accessToken // the latest token that the service refused
	doubted  bool         // refused has been returned again since, and was not used
	failure  error
	failures int
	notAgain time.Time

	// Replacing a token that is refused for one tenant does not help and must not go on for ever.
	inVain       int       // times in a row that the fresh token was refused as well
	keepsRefused time.Time // until then a refused token is kept
}

type accessToken struct {
	value  string
	header string // the value of the Authorization header
	// A fresh one is requested from renew on, while this one is used until it expires; zero means
	// until the service refuses it.
	renew, expires time.Time
	// accepted is when the latest request was sent that the service has accepted it for, in Unix nanoseconds.
	accepted atomic.Int64
}

func newTokenSource(cfg Config, rt http.RoundTripper, answers *answers) *tokenSource {
	s := &tokenSource{timeout: cfg.TokenTimeout, retry: cfg.Retry, answers: answers}
	s.base, s.cancel = context.WithCancel(context.Background())
	if cfg.TokenSource != nil {
		s.foreign = true
		s.fetch = (&askedSource{source: cfg.TokenSource}).token
	} else {
		s.fetch = newCredentials(cfg, rt).token
	}
	return s
}

// get returns a cached or a fresh token. One that the service has refused to the caller has to be replaced; empty if
// there is none. It waits at most until ctx ends.
func (s *tokenSource) get(ctx context.Context, refused string) (*accessToken, error) {
	s.mu.Lock()
	now := time.Now()
	token, err := s.token, s.failure
	valid := token != nil && token.value != refused && (token.expires.IsZero() || now.Before(token.expires))
	var fetched <-chan singleflight.Result
	switch {
	case s.base.Err() != nil:
		token, valid, err = nil, false, ErrClosed
	case valid && (s.asking || token.expires.IsZero() || now.Before(token.renew)):
	case err == nil || !now.Before(s.notAgain):
		s.asking = true
		// Ends after the token timeout at the latest; close cancels it and waits.
		fetched = s.calls.DoChan("", s.request)
	}
	s.mu.Unlock()
	switch {
	case valid:
		return token, nil
	case fetched == nil:
		return nil, err
	}
	select {
	case result := <-fetched:
		token, _ = result.Val.(*accessToken)
		return token, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// invalidate takes in that the service has refused a token, and reports whether another one may help; first tells that the
// caller's next attempt shows whether it does. A token obtained in the meantime stays. So does one that has just been
// accepted for others, until it is replaced: it may be refused only for the caller's tenant.
func (s *tokenSource) invalidate(token string) (retry, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.token == nil || s.token.value != token:
		return true, false
	case now.Before(s.keepsRefused):
		return false, false
	}
	if first = s.refused != s.token; first {
		s.refused, s.doubted = s.token, false
	}
	if now.Sub(time.Unix(0, s.token.accepted.Load())).Abs() >= recentFor { // the clock may have been set back
		s.token = nil
	}
	return true, first
}

// replaced records whether the service accepts the token that replaces a refused one.
func (s *tokenSource) replaced(accepted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if accepted {
		s.inVain, s.keepsRefused = 0, time.Time{}
		return
	}
	s.keepsRefused = time.Now().Add(s.retry.backoff(s.inVain, 0))
	s.inVain = min(s.inVain+1, 32)
}

// again reports whether the source returned a token that the service had refused before.
func (s *tokenSource) again(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.foreign && s.refused != nil && s.refused.value == token
}

// request obtains a token and takes in what comes of that.
func (s *tokenSource) request() (any, error) {
	if s.base.Err() != nil {
		return nil, ErrClosed
	}
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
	s.asking = false
	s.calls.Forget("") // whoever asks from here on is not content with what this has brought
	s.failure = err
	if err == nil {
		s.token = token
		if s.refused == nil {
			s.failures = 0
		}
	} else {
		now := time.Now()
		asked := time.Duration(0)
		if refused, ok := errors.AsType[*tokenError](err); ok {
			asked = s.retry.retryAfter(refused.header, now)
			refused.notAgain = now.Add(asked)
		}
		s.notAgain = now.Add(s.retry.backoff(s.failures, asked))
		s.failures = min(s.failures+1, 32)
	}
	s.mu.Unlock()
	s.answers.take(opToken, err, time.Now())
	return token, err
}

// acceptsLocked decides about a token that may be the one that was refused last. Returned again immediately, it is useless;
// after a wait it is accepted: the service may have been wrong, and there is no other.
func (s *tokenSource) acceptsLocked(token *accessToken) bool {
	switch {
	case !s.foreign || s.refused == nil || s.refused.value != token.value:
		s.refused = nil
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
	s.cancel()
	_, _, _ = s.calls.Do("", s.request) // another one fails at once, and asks nobody
}

// expiryMargin is how long before its expiry a token is replaced; at most half of its lifetime.
const expiryMargin = 30 * time.Second

// newAccessToken checks the result of a token source, asked at a time; wrong is what is wrong with it.
func newAccessToken(t *oauth2.Token, asked time.Time) (token *accessToken, wrong string) {
	if t == nil || !validToken(t.AccessToken) {
		return nil, "has no usable access_token"
	}
	// Not every endpoint keeps to the names that are registered: BearerToken is seen, too.
	if kind := strings.ToLower(strings.TrimSpace(t.TokenType)); kind != "" && !strings.HasPrefix(kind, "bearer") {
		return nil, "has a token that is not of type Bearer"
	}
	token = &accessToken{value: t.AccessToken, header: "Bearer " + t.AccessToken}
	// No expiry, or one in the past: the token is used until the service refuses it.
	if life := t.Expiry.Sub(asked); !t.Expiry.IsZero() && life > 0 {
		token.renew, token.expires = t.Expiry.Add(-min(expiryMargin, life/2)), t.Expiry
	}
	return token, ""
}

// credentials obtains tokens with client credentials (RFC 6749, 4.4).
type credentials struct {
	cfg    Config
	client *http.Client
}

func newCredentials(cfg Config, rt http.RoundTripper) *credentials {
	return &credentials{cfg: cfg, client: &http.Client{
		Transport: rt,
		// A redirected token request would carry the secret elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return ErrRedirect },
	}}
}

// request returns a token request.
func (c *credentials) request(ctx context.Context) (*http.Request, error) {
	secret, err := c.cfg.ClientSecret, error(nil)
	if c.cfg.ClientSecretFunc != nil {
		secret, err = c.cfg.ClientSecretFunc()
	}
	if err != nil {
		return nil, &tokenError{reason: "the client secret cannot be read", kind: ErrUnavailable, cause: err}
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if scopes := strings.Join(c.cfg.Scopes, " "); scopes != "" {
		form.Set("scope", scopes)
	}
	if c.cfg.AuthStyle == AuthStyleParams {
		form.Set("client_id", c.cfg.ClientID)
		if secret != "" {
			form.Set("client_secret", string(secret))
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, &tokenError{reason: "the address of the token endpoint is invalid", kind: ErrUnavailable}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	req.Header.Set("Accept-Encoding", acceptIdentity)
	if c.cfg.AuthStyle != AuthStyleParams {
		req.SetBasicAuth(url.QueryEscape(c.cfg.ClientID), url.QueryEscape(string(secret)))
	}
	return req, nil
}

// maxTokenAnswer is the largest response of a token endpoint, in bytes.
const maxTokenAnswer = 1 << 20

// token makes one token request.
func (c *credentials) token(ctx context.Context) (*accessToken, error) {
	req, err := c.request(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	seen := answerHead{}
	resp, err := c.client.Do(req)
	if resp != nil {
		seen = headOf(resp)
	}
	var body []byte
	if err == nil {
		defer func() { _ = resp.Body.Close() }() // it has been read
		if encoding := checkEncoding(resp.Header); encoding != nil {
			return nil, &tokenError{status: seen.status, reason: "the response of the token endpoint cannot be read", kind: ErrUnavailable, bad: true, cause: encoding}
		}
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, &tokenError{reason: "the token endpoint did not answer in time", kind: ErrUnavailable}
	case err != nil:
		return nil, &tokenError{status: seen.status, reason: "the token request failed", kind: ErrUnavailable, cause: transportCause(err)}
	}
	answer := parseTokenAnswer(seen.media, body)
	switch code, _ := answer.peek("error"); {
	case seen.status < 200 || seen.status > 299 || code != "":
		return nil, tokenRefusal(seen, code)
	case answer == nil && isWebPage(seen.media):
		return nil, &tokenError{status: seen.status, media: seen.media, reason: "a web page was returned instead of a token response", kind: ErrUnavailable, bad: true, intermediary: true}
	case answer == nil:
		return nil, &tokenError{status: seen.status, reason: "the response of the token endpoint is not a token", kind: ErrUnavailable, bad: true}
	}
	token, wrong := newAccessToken(answer.token(asked), asked)
	if token == nil {
		return nil, &tokenError{status: seen.status, reason: "the response " + wrong, kind: ErrUnavailable, bad: true}
	}
	return token, nil
}

// parseTokenAnswer returns the fields of a response, whose body is JSON or, with some endpoints, a
// form; nil if it is neither.
func parseTokenAnswer(media string, body []byte) object {
	if o, ok := parseObject(body); ok {
		return o
	}
	if media != "application/x-www-form-urlencoded" && media != "text/plain" {
		return nil
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil
	}
	o := object{}
	for key := range values {
		o[key], _ = json.Marshal(values.Get(key)) // a string always has a JSON form
	}
	return o
}

// token returns the token in a response. A lifetime that is no number is unknown.
func (o object) token(asked time.Time) *oauth2.Token {
	t := &oauth2.Token{}
	t.AccessToken, _ = o.peek("access_token")
	if o.has("token_type") {
		var ok bool
		if t.TokenType, ok = o.peek("token_type"); !ok {
			t.TokenType = "of another kind"
		}
	}
	life := o["expires_in"]
	if s, ok := o.peek("expires_in"); ok {
		life = json.RawMessage(s)
	}
	var seconds float64
	if json.Unmarshal(life, &seconds) == nil && seconds > 0 {
		const century = 100 * 365 * 24 * 3600 // beyond it, a Duration overflows at some point
		t.Expiry = asked.Add(time.Duration(min(seconds, century) * float64(time.Second)))
	}
	return t
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
// endpoint's response except the status, the error code of RFC 6749, and when to ask again.
type tokenError struct {
	status       int
	media        string      // media type of the response
	header       http.Header // its Retry-After and Date
	notAgain     time.Time   // what that says
	reason       string
	kind         error // ErrUnavailable or ErrUnauthorized
	detail       error // ErrRateLimited, ErrTokenRequest or nil
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
	return target == ErrToken || target == e.kind || (e.detail != nil && target == e.detail) || (e.bad && target == ErrBadResponse) ||
		(e.intermediary && target == ErrIntermediary)
}

// tokenRefusal interprets an error response of the token endpoint (RFC 6749, 5.2). An error code proves that it comes from
// the endpoint, and so do a 401 and, with endpoints that do not follow the specification, a 400 in JSON. Any other 4xx may
// come from an intermediary.
func tokenRefusal(seen answerHead, code string) error {
	e := &tokenError{status: seen.status, media: seen.media, header: seen.header, kind: ErrUnavailable, reason: "the token endpoint failed"}
	if e.status == http.StatusTooManyRequests || code == "slow_down" {
		e.detail, e.reason = ErrRateLimited, "the token endpoint limits the rate of requests"
		return e
	}
	switch code {
	case "invalid_client", "invalid_grant", "unauthorized_client", "access_denied", "invalid_request":
		e.kind, e.reason = ErrUnauthorized, "the token endpoint refused the request: "+code
	case "invalid_scope", "unsupported_grant_type":
		e.kind, e.detail, e.reason = ErrUnauthorized, ErrTokenRequest, "the token endpoint refused the request: "+code
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
	if e.status >= 500 {
		e.kind, e.detail = ErrUnavailable, nil
	}
	return e
}

// answerHead is what errors tell of a response.
type answerHead struct {
	status int
	media  string
	header http.Header
}

func headOf(resp *http.Response) answerHead {
	return answerHead{resp.StatusCode, mediaType(resp.Header), http.Header{"Retry-After": resp.Header["Retry-After"], "Date": resp.Header["Date"]}}
}
