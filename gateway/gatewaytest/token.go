package gatewaytest

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"time"
)

// POST /token: OAuth 2.0 client credentials (RFC 6749, 4.4).
//
// Implements: grant_type=client_credentials in a form body; credentials by HTTP
// Basic (form-urlencoded first, RFC 6749, 2.3.1) or in the form, or only one of
// the two (Config.TokenAuth); expires_in (Config.TokenLifetime). Errors have
// the OAuth shape {"error": …}: 400 invalid_request and unsupported_grant_type,
// 401 invalid_client.
// Ignores scope, because the scope list of the flow is empty.

// All generated secrets begin with one of these prefixes, for a search of logs.
const (
	// SecretPrefix is the prefix of generated client secrets.
	SecretPrefix = "gatewaytest-secret-"
	// TokenPrefix is the prefix of access tokens.
	TokenPrefix = "gatewaytest-token-"
	// SignaturePrefix is the prefix of signatures in payload URIs.
	SignaturePrefix = "gatewaytest-signature-"
)

const tokenPath = "/oauth/token"

type token struct {
	app     *Application
	expires time.Time
}

func (t token) expired(now time.Time) bool { return !now.Before(t.expires) }

func (s *Server) handleToken(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code, description string) {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="token"`)
		}
		w.Header().Set("Cache-Control", "no-store")
		writeJSON(w, status, map[string]string{"error": code, "error_description": description})
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		refuse(http.StatusBadRequest, "invalid_request", "the form cannot be parsed")
		return
	}
	switch r.PostForm.Get("grant_type") {
	case "client_credentials":
	case "":
		refuse(http.StatusBadRequest, "invalid_request", "grant_type is missing")
		return
	default:
		refuse(http.StatusBadRequest, "unsupported_grant_type", "only client_credentials is supported")
		return
	}
	app := s.client(r)
	if app == nil {
		refuse(http.StatusUnauthorized, "invalid_client", "client authentication failed")
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, map[string]any{
		"access_token": s.issue(app), "token_type": "Bearer", "expires_in": int64(s.cfg.TokenLifetime / time.Second),
	})
}

// client returns the application whose credentials the token request presents.
func (s *Server) client(r *http.Request) *Application {
	id, secret, basic := r.BasicAuth()
	if basic {
		if s.cfg.TokenAuth == TokenAuthParams {
			return nil
		}
		id, secret = formDecoded(id), formDecoded(secret)
	} else {
		if s.cfg.TokenAuth == TokenAuthBasic {
			return nil
		}
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	s.mu.Lock()
	app := s.clients[id]
	want := ""
	if app != nil {
		want = app.secret
	}
	s.mu.Unlock()
	if app == nil || subtle.ConstantTimeCompare([]byte(want), []byte(secret)) != 1 {
		return nil
	}
	return app
}

func formDecoded(s string) string {
	if decoded, err := url.QueryUnescape(s); err == nil {
		return decoded
	}
	return s
}

func (s *Server) issue(app *Application) string {
	value := TokenPrefix + randomHex(32)
	now := s.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tokens)%1024 == 1023 { // drop expired tokens, for long-lived programs
		for old, t := range s.tokens {
			if t.expired(now) {
				delete(s.tokens, old)
			}
		}
	}
	s.tokens[value] = token{app: app, expires: now.Add(s.cfg.TokenLifetime)}
	return value
}

// IssueToken returns a valid access token of the application without a token request.
func (s *Server) IssueToken(app *Application) string { return s.issue(app) }

// ExpireTokens invalidates every access token issued so far. Open streams stay open.
func (s *Server) ExpireTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}
