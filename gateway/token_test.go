package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestTokenRequest(t *testing.T) {
	for _, tt := range []struct {
		style AuthStyle
		check func(t *testing.T, r *http.Request, form url.Values)
	}{
		{AuthStyleBasic, func(t *testing.T, r *http.Request, form url.Values) {
			id, secret, ok := r.BasicAuth()
			if !ok || id != url.QueryEscape(testID) || secret != url.QueryEscape(testSecret) {
				t.Errorf("Basic %q %q %v", id, secret, ok)
			}
			if form.Has("client_secret") || form.Has("client_id") {
				t.Error("credentials are in the form as well")
			}
		}},
		{AuthStyleParams, func(t *testing.T, r *http.Request, form url.Values) {
			if form.Get("client_id") != testID || form.Get("client_secret") != testSecret {
				t.Errorf("form %v", form)
			}
			if r.Header.Get("Authorization") != "" {
				t.Error("credentials are in the header as well")
			}
		}},
	} {
		s := newService(t)
		s.token = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			form, err := url.ParseQuery(string(body))
			if err != nil || form.Get("grant_type") != "client_credentials" || form.Get("scope") != "a b" || r.URL.RawQuery != "" ||
				r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.UserAgent() != "agrimill" {
				t.Errorf("form %v, %v, headers %v", form, err, r.Header)
			}
			tt.check(t, r, form)
			writeJSON(w, 200, map[string]any{"access_token": "t", "token_type": "bearer"})
		}
		s.mux.HandleFunc("POST /messages", ok)
		c := s.client(t, func(c *Config) { c.AuthStyle = tt.style; c.Scopes = []string{"a", "b"} })
		testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
	}
}

func TestTokenLifetimes(t *testing.T) {
	tests := []struct {
		name      string
		expiresIn string // JSON; empty: missing
		after     time.Duration
		want      int64
	}{
		{"a number", "3600", 3569 * time.Second, 1},
		{"a number, past", "3600", 3571 * time.Second, 2},
		{"missing", "", 1000 * time.Hour, 1},
		{"zero", "0", 1000 * time.Hour, 1},
		{"negative", "-5", 1000 * time.Hour, 1},
		{"null", "null", 1000 * time.Hour, 1},
		{"string", `"100"`, 69 * time.Second, 1},
		{"string, past", `"100"`, 71 * time.Second, 2},
		{"shorter than the margin", "10", 4 * time.Second, 1},
		{"shorter than the margin, past half", "10", 6 * time.Second, 2},
		{"absurd", "99999999999", time.Hour, 1},
		{"with a fraction of zero", "100.0", 69 * time.Second, 1},
		{"with a fraction of zero, past", "100.0", 71 * time.Second, 2},
		{"with a fraction, past", "100.9", 72 * time.Second, 2},
		{"string with a fraction, past", `"100.0"`, 71 * time.Second, 2},
		{"with an exponent, past", "1e2", 71 * time.Second, 2},
		{"empty", `""`, 1000 * time.Hour, 1},
		{"no number", `"never"`, 1000 * time.Hour, 1},
		{"of another kind", `[100]`, 1000 * time.Hour, 1},
		{"out of range", "1e300", time.Hour, 1},
	}
	for _, tt := range tests {
		testkit.RunBubble(t, tt.name, func(t *testing.T) {
			var n atomic.Int64
			mux := http.NewServeMux()
			mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
				n.Add(1)
				w.Header().Set("Content-Type", "application/json")
				body := `{"access_token":"t"`
				if tt.expiresIn != "" {
					body += `,"expires_in":` + tt.expiresIn
				}
				_, _ = io.WriteString(w, body+"}")
			})
			mux.HandleFunc("POST /messages", ok)
			c := offline(t, mux)
			for range 2 {
				testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
				time.Sleep(tt.after)
			}
			if n.Load() != tt.want {
				t.Errorf("%d token requests, want %d", n.Load(), tt.want)
			}
		})
	}
}

func TestTokenRefreshIsOneForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var n atomic.Int64
		mux := http.NewServeMux()
		mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			<-release
			writeJSON(w, 200, map[string]any{"access_token": "t", "expires_in": 3600})
		})
		mux.HandleFunc("POST /messages", ok)
		c := offline(t, mux)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := c.SendMessage(t.Context(), testMessageRequest()); err != nil {
					t.Error(err)
				}
			})
		}
		// One caller gives up while the others wait on.
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { gaveUp <- c.SendMessage(ctx, testMessageRequest()) }()
		synctest.Wait()
		cancel()
		wantOnly(t, <-gaveUp, context.Canceled)
		close(release)
		wg.Wait()
		if n.Load() != 1 {
			t.Errorf("%d token requests for 51 callers", n.Load())
		}
	})
}

// Of many calls that are refused together because the token has expired, one asks for a new token, from
// the token endpoint or a source of the application's own, and all are repeated once.
func TestRefusedTokenIsReplacedOnce(t *testing.T) {
	for _, own := range []bool{false, true} {
		testkit.RunBubble(t, fmt.Sprint("own source: ", own), func(t *testing.T) {
			mux, requests := offlineMux()
			var good atomic.Value
			good.Store("Bearer token-1")
			var calls, asked atomic.Int64
			gate := make(chan struct{})
			mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 23 {
					close(gate)
				}
				if calls.Load() > 3 {
					<-gate // all with the old token have arrived
				}
				if r.Header.Get("Authorization") != good.Load() {
					fail(401, "token expired")(w, r)
					return
				}
				ok(w, r)
			})
			c := offline(t, mux, func(c *Config) {
				if own {
					source(func() (*oauth2.Token, error) { return givenToken(tokenNumber(asked.Add(1))) })(c)
				}
			})
			send := func() {
				if err := c.SendMessage(t.Context(), testMessageRequest()); err != nil {
					t.Error(err)
				}
			}
			for range 3 {
				send()
			}
			good.Store("Bearer token-2")
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(send)
			}
			wg.Wait()
			if requests.Load()+asked.Load() != 2 || own != (asked.Load() > 0) || calls.Load() != 43 {
				t.Errorf("%d token requests, the source was asked %d times, %d calls; want 2 of one kind, and 43", requests.Load(), asked.Load(), calls.Load())
			}
			if c.Config().TokenSource != nil {
				t.Error("Client.Config gives the token source away")
			}
		})
	}
}

func TestUnauthorizedIsRepeatedOnceWithTheBody(t *testing.T) {
	s := newService(t)
	var (
		r record
		n atomic.Int64
	)
	s.mux.HandleFunc("POST /messages", r.handler(inOrder(&n, fail(401, "expired"), fail(503, "down"), fail(401, "again"), ok)))
	err := s.client(t).SendMessage(t.Context(), testMessageRequest())
	wantOnly(t, err, ErrUnauthorized)
	requests, bodies := r.all()
	if len(requests) != 3 || s.tokens.Load() != 2 {
		t.Fatalf("%d requests and %d token requests, want 3 and 2", len(requests), s.tokens.Load())
	}
	for i, want := range []string{"Bearer token-1", "Bearer token-2", "Bearer token-2"} {
		if requests[i].Header.Get("Authorization") != want || bodies[i] != "payload" || requests[i].ContentLength != 7 {
			t.Errorf("request %d: %q with body %q", i, requests[i].Header.Get("Authorization"), bodies[i])
		}
	}
}

func TestTokenEndpointFailures(t *testing.T) {
	answer := func(status int, media, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const echo = `"error_description":"the secret s3cret&value is wrong"`
	type test struct {
		name    string
		answer  http.HandlerFunc
		targets []error
		retried bool
	}
	tests := []test{
		{"500", answer(500, "text/plain", "s3cret&value"), []error{ErrToken, ErrUnavailable}, true},
		{"503 with a refusal", answer(503, "application/json", `{"error":"invalid_client"}`), []error{ErrToken, ErrUnavailable}, true},
		{"429", answer(429, "application/json", `{}`), []error{ErrToken, ErrUnavailable, ErrRateLimited}, true},
		{"429 with an unknown code", answer(429, "application/json", `{"error":"slow_down"}`), []error{ErrToken, ErrUnavailable, ErrRateLimited}, true},
		{"429 with a refusal", answer(429, "application/json", `{"error":"invalid_client"}`), []error{ErrToken, ErrUnavailable, ErrRateLimited}, true},
		{"429 as a page", answer(429, "text/html", "<html>"), []error{ErrToken, ErrUnavailable, ErrRateLimited}, true},
		{"a scope", answer(400, "application/json", `{"error":"invalid_scope"}`), []error{ErrToken, ErrUnauthorized, ErrTokenRequest}, false},
		{"the grant type", answer(400, "application/json", `{"error":"unsupported_grant_type"}`), []error{ErrToken, ErrUnauthorized, ErrTokenRequest}, false},
		{"the request", answer(400, "application/json", `{"error":"invalid_request"}`), []error{ErrToken, ErrUnauthorized}, false},
		{"503 of a scope", answer(503, "application/json", `{"error":"invalid_scope"}`), []error{ErrToken, ErrUnavailable}, true},
		{"404", answer(404, "text/html", "<html>"), []error{ErrToken, ErrUnavailable, ErrIntermediary}, true},
		{"404 as text", answer(404, "text/plain", "default backend - 404"), []error{ErrToken, ErrUnavailable, ErrIntermediary}, true},
		{"403 as JSON", answer(403, "application/json", `{"message":"Forbidden"}`), []error{ErrToken, ErrUnavailable, ErrIntermediary}, true},
		{"400 as a page", answer(400, "text/html", "<html>"), []error{ErrToken, ErrUnavailable, ErrIntermediary}, true},
		{"403 with a code", answer(403, "application/json", `{"error":"access_denied"}`), []error{ErrToken, ErrUnauthorized}, false},
		{"401 as a page", answer(401, "text/html", "<html>"), []error{ErrToken, ErrUnauthorized}, false},
		{"401", answer(401, "application/json", `{"error":"invalid_client",`+echo+`}`), []error{ErrToken, ErrUnauthorized}, false},
		{"400", answer(400, "application/json", `{`+echo+`}`), []error{ErrToken, ErrUnauthorized}, false},
		{"403 as text", answer(403, "text/plain", testSecret), []error{ErrToken, ErrUnavailable, ErrIntermediary}, true},
		{"slow down", answer(400, "application/json", `{"error":"slow_down"}`), []error{ErrToken, ErrUnavailable, ErrRateLimited}, true},
		{"server error", answer(400, "application/json", `{"error":"server_error"}`), []error{ErrToken, ErrUnavailable}, true},
		{"408", answer(408, "text/html", "<html>"), []error{ErrToken, ErrUnavailable}, true},
		{"425", answer(425, "text/html", "<html>"), []error{ErrToken, ErrUnavailable}, true},
		{"busy", answer(400, "application/json", `{"error":"temporarily_unavailable"}`), []error{ErrToken, ErrUnavailable}, true},
		{"HTML", answer(200, "text/html; charset=utf-8", "<html>s3cret&value"), []error{ErrToken, ErrUnavailable, ErrBadResponse, ErrIntermediary}, true},
		{"garbage", answer(200, "application/json", `{"access_token":`), []error{ErrToken, ErrUnavailable, ErrBadResponse}, true},
		{"wrong type", answer(200, "application/json", `{"access_token":5}`), []error{ErrToken, ErrUnavailable, ErrBadResponse}, true},
		{"nothing", answer(200, "application/json", `{}`), []error{ErrToken, ErrUnavailable, ErrBadResponse}, true},
		{"token that splits a header", answer(200, "application/json", `{"access_token":"a\r\nx: y"}`), []error{ErrToken, ErrUnavailable, ErrBadResponse}, true},
		{"token of another type", answer(200, "application/json", `{"access_token":"token-1","token_type":"mac"}`), []error{ErrToken, ErrUnavailable, ErrBadResponse}, true},
		{"redirect", http.RedirectHandler("https://elsewhere.example/", 307).ServeHTTP, []error{ErrToken, ErrUnavailable, ErrRedirect}, false},
	}
	for _, code := range []string{"invalid_client", "invalid_grant", "unauthorized_client", "access_denied", "invalid_request"} {
		// Whatever the status: a code is the endpoint's word.
		tests = append(tests, test{"200, " + code, answer(200, "application/json", `{"error":"`+code+`"}`), []error{ErrToken, ErrUnauthorized}, false})
	}
	for _, tt := range tests {
		testkit.RunBubble(t, tt.name, func(t *testing.T) {
			mux := http.NewServeMux()
			var n atomic.Int64
			mux.HandleFunc("POST /token", inOrder(&n, tt.answer))
			c := offline(t, mux)
			err := c.SendMessage(t.Context(), testMessageRequest())
			wantOnly(t, err, tt.targets...)
			if limited := errors.Is(err, ErrRateLimited); strings.Contains(err.Error(), "limits the rate") != limited || strings.Contains(err.Error(), "not answered") && limited {
				t.Errorf("%q does not tell the cause", err)
			}
			if Retryable(err) != tt.retried {
				t.Errorf("retryable: %v, want %v", !tt.retried, tt.retried)
			}
			if (n.Load() > 1) != tt.retried {
				t.Errorf("%d token requests", n.Load())
			}
		})
	}
}

func TestTokenEndpointThatIsDown(t *testing.T) {
	s := newService(t)
	err := s.client(t, func(c *Config) { c.TokenURL = "http://" + closedAddress(t) + "/token?key=s3cret" }).
		SendMessage(t.Context(), testMessageRequest())
	wantOnly(t, err, ErrToken, ErrUnavailable)
	testkit.Contains(t, err.Error(), "refused")
}

// While the token endpoint is down, it sees one request per backoff step, however many calls there
// are; the steps begin anew with the next outage.
func TestTokenFailureIsRememberedForOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		var n atomic.Int64
		var up atomic.Bool
		mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1); !up.Load() {
				fail(500, "down")(w, r)
				return
			}
			writeJSON(w, 200, map[string]any{"access_token": "t", "expires_in": 1})
		})
		var sent atomic.Int64
		mux.HandleFunc("POST /messages", inOrder(&sent, fail(401, "expired"), ok))
		c := offline(t, mux, func(c *Config) {
			c.Retry = RetryConfig{MaxAttempts: UnlimitedAttempts, InitialBackoff: time.Second, MaxBackoff: 10 * time.Second}
		})
		up.Store(true)
		testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest())) // that a token was refused is over with the next one
		up.Store(false)
		time.Sleep(time.Second) // the token has expired
		n.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				err := c.SendMessage(ctx, testMessageRequest())
				wantOnly(t, err, context.DeadlineExceeded)
				testkit.Contains(t, err.Error(), "no access token")
			})
		}
		wg.Wait()
		if n.Load() < 10 || n.Load() > 65 { // 5 minutes in steps of 5 to 10 seconds
			t.Errorf("%d token requests in 5 minutes", n.Load())
		}
		// The steps begin anew after a token.
		up.Store(true)
		time.Sleep(10 * time.Second)
		testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
		up.Store(false)
		time.Sleep(time.Second) // the token has expired
		before := n.Load()
		ctx, cancel = context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		wantOnly(t, c.SendMessage(ctx, testMessageRequest()), context.DeadlineExceeded)
		if got := n.Load() - before; got < 2 {
			t.Errorf("%d token requests in the first 4 seconds of an outage, want 2 or 3", got)
		}
	})
}

func TestTokenEndpointThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /token", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = 1 })
		start := time.Now()
		err := c.SendMessage(t.Context(), testMessageRequest())
		wantOnly(t, err, ErrToken, ErrUnavailable)
		if d := time.Since(start); d != defaultTokenTimeout || !strings.Contains(err.Error(), "did not answer in time") {
			t.Errorf("took %v, want %v: %v", d, defaultTokenTimeout, err)
		}
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantOnly(t, c.SendMessage(ctx, testMessageRequest()), context.DeadlineExceeded)
	})
}

// A token that is refused as soon as it is there is replaced, also before the request that brought it is quite over.
func TestTokenThatIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	s := &tokenSource{timeout: time.Minute, answers: &answers{}}
	s.base, s.cancel = context.WithCancel(t.Context())
	s.fetch = func(context.Context) (*accessToken, error) { return &accessToken{value: tokenNumber(n.Add(1))}, nil }
	s.answers.mu.Lock() // holds up the end of the request
	tokens := make(chan *accessToken, 2)
	get := func(refused string) {
		token, err := s.get(t.Context(), refused)
		if err != nil {
			t.Error(err)
		}
		tokens <- token
	}
	go get("")
	testkit.Eventually(t, "the token is there", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.token != nil
	})
	s.invalidate(tokenNumber(1))
	go get(tokenNumber(1))
	testkit.Eventually(t, "another one is asked for", func() bool { return n.Load() == 2 })
	s.answers.mu.Unlock()
	if a, b := <-tokens, <-tokens; a.value == b.value {
		t.Errorf("both got %q", a.value)
	}
}

// While a request for the next token hangs, calls that have one cost nothing, however many there are.
func TestCallsWhileATokenIsRenewed(t *testing.T) {
	s := &tokenSource{timeout: time.Minute, answers: &answers{}}
	s.base, s.cancel = context.WithCancel(t.Context())
	s.fetch = func(ctx context.Context) (*accessToken, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	now := time.Now()
	s.token = &accessToken{value: "t", renew: now.Add(-time.Second), expires: now.Add(time.Hour)}
	allocations := testing.AllocsPerRun(100, func() {
		if token, err := s.get(t.Context(), ""); err != nil || token != s.token {
			t.Error(token, err)
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations, want none", allocations)
	}
	s.close()
}

func TestCloseEndsATokenRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /token", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = 1 })
		done := make(chan error, 1)
		go func() { done <- c.SendMessage(t.Context(), testMessageRequest()) }()
		synctest.Wait()
		testkit.NoError(t, c.Close())
		wantOnly(t, <-done, ErrClosed)
	})
}

// What is read of a token response, and what one bad part of it costs: want is the header that is
// sent, or else reason is what the error says.
func TestTokenAnswers(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	for _, tt := range []struct{ name, media, body, want, reason string }{
		{"no type", "application/json", `{"access_token":"t"}`, "Bearer t", ""},
		{"null for the type", "application/json", `{"access_token":"t","token_type":null}`, "Bearer t", ""},
		{"empty type", "application/json", `{"access_token":"t","token_type":""}`, "Bearer t", ""},
		{"lower case", "application/json", `{"access_token":"t","token_type":"bearer"}`, "Bearer t", ""},
		{"upper case", "application/json", `{"access_token":"t","token_type":"BEARER"}`, "Bearer t", ""},
		{"BearerToken", "application/json", `{"access_token":"t","token_type":"BearerToken"}`, "Bearer t", ""},
		{"with a space", "application/json", `{"access_token":"t","token_type":" Bearer Token "}`, "Bearer t", ""},
		{"unknown fields", "application/json", `{"access_token":"t","scope":["a"],"x":{}}`, "Bearer t", ""},
		{"null for the error", "application/json", `{"access_token":"t","error":null}`, "Bearer t", ""},
		{"empty error", "application/json", `{"access_token":"t","error":""}`, "Bearer t", ""},
		{"JSON of another media type", "text/plain; charset=utf-8", `{"access_token":"t"}`, "Bearer t", ""},
		{"JSON without a media type", "", `{"access_token":"t"}`, "Bearer t", ""},
		{"with a byte order mark", "application/json", "\ufeff" + `{"access_token":"t"}`, "Bearer t", ""},
		{"a form", form, "access_token=t%2B&token_type=bearer&expires_in=3600.0", "Bearer t+", ""},
		{"a form as text", "text/plain", "access_token=t&token_type=bearer", "Bearer t", ""},

		{"longer than a megabyte", "application/json", `{"x":"` + strings.Repeat("x", maxTokenAnswer) + `","access_token":"s3cret"}`, "", "the response of the token endpoint is not a token (status 200)"},
		{"another type", "application/json", `{"access_token":"s3cret","token_type":"DPoP"}`, "", "the response has a token that is not of type Bearer (status 200)"},
		{"a type of another kind", "application/json", `{"access_token":"s3cret","token_type":7}`, "", "the response has a token that is not of type Bearer (status 200)"},
		{"no token", "application/json", `{"token_type":"Bearer"}`, "", "the response has no usable access_token (status 200)"},
		{"null for the token", "application/json", `{"access_token":null}`, "", "the response has no usable access_token (status 200)"},
		{"an empty token", "application/json", `{"access_token":""}`, "", "the response has no usable access_token (status 200)"},
		{"a space in the token", "application/json", `{"access_token":"s3 cret"}`, "", "the response has no usable access_token (status 200)"},
		{"a token beyond ASCII", "application/json", `{"access_token":"s3crét"}`, "", "the response has no usable access_token (status 200)"},
		{"a token of another kind", "application/json", `{"access_token":{"s3cret":1}}`, "", "the response has no usable access_token (status 200)"},
		{"a list", "application/json", `["s3cret"]`, "", "the response of the token endpoint is not a token (status 200)"},
		{"nothing", "application/json", "", "", "the response of the token endpoint is not a token (status 200)"},
		{"a form under the wrong media type", "application/json", "access_token=s3cret", "", "the response of the token endpoint is not a token (status 200)"},
	} {
		testkit.RunBubble(t, tt.name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.media)
				_, _ = io.WriteString(w, tt.body)
			})
			var got string
			mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
				got = r.Header.Get("Authorization")
				ok(w, r)
			})
			err := offline(t, mux).SendMessage(t.Context(), testMessageRequest())
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("got header %q, %v, want %q", got, err, tt.want)
			}
			if err != nil && !strings.HasSuffix(err.Error(), "no access token: "+tt.reason) {
				t.Errorf("got %v, want %s", err, tt.reason)
			}
		})
	}
}

// A token is used until it expires while another one is requested, even if that fails, and a failed
// request is repeated after the backoff; a call waits only for the first token after that.
func TestTokenIsUsedWhileItIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		var n atomic.Int64
		mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
			switch number := n.Add(1); number {
			case 2:
				time.Sleep(20 * time.Second)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			case 3:
				time.Sleep(20 * time.Second)
				fallthrough
			default:
				writeJSON(w, 200, map[string]any{"access_token": tokenNumber(number), "expires_in": 3600})
			}
		})
		var used string
		mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
			used = r.Header.Get("Authorization")
			ok(w, r)
		})
		c := offline(t, mux, func(c *Config) {
			c.Retry = RetryConfig{InitialBackoff: 4 * time.Second, MaxBackoff: 4 * time.Second} // waits 2 to 4 s
		})
		start := time.Now()
		for _, step := range []struct {
			at, until time.Duration
			token     int64
			requests  int64
			what      string
		}{
			{0, 0, 1, 1, "the first call"},
			{3571 * time.Second, 3571 * time.Second, 1, 2, "the second request begins"},
			{3580 * time.Second, 3580 * time.Second, 1, 2, "it is under way"},
			{3592 * time.Second, 3592 * time.Second, 1, 2, "it has failed"},
			{3597 * time.Second, 3597 * time.Second, 1, 3, "the third one begins"},
			{3601 * time.Second, 3617 * time.Second, 3, 3, "the token has expired"},
		} {
			time.Sleep(step.at - time.Since(start))
			if err := c.SendMessage(t.Context(), testMessageRequest()); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			ended := time.Since(start)
			synctest.Wait() // a token is renewed beside the call
			if ended != step.until || used != "Bearer "+tokenNumber(step.token) || n.Load() != step.requests {
				t.Errorf("%s: sent after %v with %q and %d token requests, want after %v with token %d and %d requests",
					step.what, ended, used, n.Load(), step.until, step.token, step.requests)
			}
		}
	})
}

// A 401 for some tenants, while the token serves the others, does not have it replaced without end;
// and a token that has expired early is replaced.
func TestTenantsThatAreRefusedKeepTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, tokens := offlineMux()
		var revoked atomic.Int64 // up to this number
		var refused atomic.Int64 // calls for the other tenant
		mux.HandleFunc("GET /tenants/{id}/endpoints", func(w http.ResponseWriter, r *http.Request) {
			for n := range revoked.Load() {
				if r.Header.Get("Authorization") == "Bearer "+tokenNumber(n+1) {
					fail(401, "token expired")(w, r)
					return
				}
			}
			if r.PathValue("id") != testTenant {
				refused.Add(1)
				fail(401, "not authorized")(w, r)
				return
			}
			writeJSON(w, 200, map[string]any{"endpoints": []any{}})
		})
		c := offline(t, mux)
		list := func(tenant string) error { _, err := c.ListTenantEndpoints(t.Context(), tenant); return err }
		for range 400 { // 40 s, twenty tenants every two seconds
			wantOnly(t, list(testContext), ErrUnauthorized)
			if err := list(testTenant); err != nil {
				t.Fatalf("got %v for the tenant that is authorized", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := tokens.Load(); n > 12 {
			t.Errorf("%d token requests in 40 s, want at most 12", n)
		}
		if got, want := refused.Load(), 400+tokens.Load()-1; got != want {
			t.Errorf("%d requests for the tenant that is not authorized, want %d: only a fresh token is tried", got, want)
		}
		revoked.Store(tokens.Load())
		time.Sleep(c.Config().Retry.MaxBackoff)
		if err := list(testTenant); err != nil {
			t.Fatalf("the token that was revoked is still used: %v", err)
		}
		if n := tokens.Load(); n != revoked.Load()+1 {
			t.Errorf("%d token requests, want one more than %d", n, revoked.Load())
		}
		// A token that was replaced with success begins the backoff again.
		wantOnly(t, list(testContext), ErrUnauthorized)
		revoked.Store(tokens.Load())
		time.Sleep(c.Config().Retry.InitialBackoff)
		if err := list(testTenant); err != nil {
			t.Errorf("got %v after one refusal and one step", err)
		}
	})
}

// A tenant for which the service refuses the token has the calls of the others neither wait for another
// token nor fail without one.
func TestTenantThatIsRefusedHoldsNoOtherUp(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"the token endpoint is down":    func(*Config) {},
		"the source has no other token": source(func() (*oauth2.Token, error) { return givenToken("token-1") }),
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			mux := http.NewServeMux()
			var asked atomic.Int64
			mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) > 1 {
					time.Sleep(25 * time.Second)
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				writeJSON(w, 200, map[string]any{"access_token": "token-1", "expires_in": 3600})
			})
			mux.HandleFunc("GET /tenants/{id}/endpoints", func(w http.ResponseWriter, r *http.Request) {
				if r.PathValue("id") != testTenant {
					fail(401, "not authorized")(w, r)
					return
				}
				writeJSON(w, 200, map[string]any{"endpoints": []any{}})
			})
			c := offline(t, mux, change)
			list := func(tenant string) error { _, err := c.ListTenantEndpoints(t.Context(), tenant); return err }
			testkit.NoError(t, list(testTenant))
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if err := list(testContext); err == nil {
						t.Error("the tenant that is not authorized is served")
					}
				})
			}
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				if began, err := time.Now(), list(testTenant); err != nil || time.Since(began) > 0 {
					t.Fatalf("got %v after %v for the tenant that is authorized", err, time.Since(began))
				}
			}
			wg.Wait()
		})
	}
}

// A peer is left alone for as long as it asks, be it the service or the token endpoint, and a caller that makes
// one attempt gets to know how long that is.
func TestPeerSaysWhenToAskAgain(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for _, peer := range []string{"POST /messages", "POST /token"} {
			testkit.RunBubble(t, fmt.Sprint(peer, status), func(t *testing.T) {
				mux := http.NewServeMux()
				start := time.Now()
				var asked []time.Duration
				answer := func(pattern string, good http.HandlerFunc) {
					mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
						if pattern != peer {
							good(w, r)
							return
						}
						if asked = append(asked, time.Since(start)); len(asked) > 1 {
							good(w, r)
							return
						}
						w.Header().Set("Retry-After", "90")
						fail(status, "not now")(w, r)
					})
				}
				answer("POST /messages", ok)
				answer("POST /token", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, map[string]any{"access_token": "t"}) })
				c := offline(t, mux)
				err := c.SendMessage(SingleAttempt(t.Context()), testMessageRequest())
				if e, ok := errors.AsType[*Error](err); !ok || e.RetryAfter != 90*time.Second {
					t.Errorf("%v, want 90 seconds in RetryAfter", err)
				}
				if peer == "POST /token" { // the service is asked again when its caller wants
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					err := c.SendMessage(ctx, testMessageRequest())
					if e, ok := errors.AsType[*Error](err); !ok || e.RetryAfter != 90*time.Second {
						t.Errorf("%v, want 90 seconds in RetryAfter", err)
					}
					testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
					if len(asked) != 2 || asked[1] < 90*time.Second || asked[1] > 2*time.Minute {
						t.Errorf("asked after %v, want twice, the second time after 90 seconds", asked)
					}
				}
			})
		}
	}
}

// A token that the service does not accept any more is replaced, also if the clock was set back since it did.
func TestRefusedTokenIsReplacedAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	s := &tokenSource{token: &accessToken{value: "old"}}
	s.token.accepted.Store(time.Now().Add(2 * time.Hour).UnixNano())
	if retry, _ := s.invalidate("old"); !retry || s.token != nil {
		t.Errorf("retry is %v, and the token is kept: %v", retry, s.token != nil)
	}
}
