package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"

	"github.com/agrimill/agrimill/internal/testkit"
)

// sourceFunc is a token source of the application's own.
type sourceFunc func() (*oauth2.Token, error)

func (f sourceFunc) Token() (*oauth2.Token, error) { return f() }

// source makes the configuration one with a token source.
func source(f sourceFunc) func(*Config) {
	return func(c *Config) { c.TokenURL, c.ClientID, c.ClientSecret, c.TokenSource = "", "", "", f }
}

func givenToken(value string) (*oauth2.Token, error) {
	return &oauth2.Token{AccessToken: value, Expiry: time.Now().Add(time.Hour)}, nil
}

// A source that keeps its token although the service refuses it is an outage,
// which ends when it gives another one, and when the service takes it again.
func TestSameTokenAgainIsAnOutage(t *testing.T) {
	for _, end := range []string{"another token", "taken again"} {
		testkit.RunBubble(t, end, func(t *testing.T) {
			mux, _ := offlineMux()
			var valid, given atomic.Value
			valid.Store("token-1")
			given.Store("token-1")
			var calls, asked atomic.Int64
			mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
					fail(401, "revoked")(w, r)
				}
			})
			c := offline(t, mux, source(func() (*oauth2.Token, error) {
				asked.Add(1)
				return &oauth2.Token{AccessToken: given.Load().(string)}, nil
			}))
			send := func() error { return c.SendMessage(t.Context(), testMessageRequest()) }
			testkit.NoError(t, send())
			valid.Store("token-2")
			start := time.Now()
			for time.Since(start) < 10*time.Minute {
				wantOnly(t, send(), ErrToken, ErrUnavailable)
				time.Sleep(time.Second)
			}
			// Steps that grow up to half a minute: a hammered source is asked
			// hundreds of times.
			if asked.Load() > 80 || calls.Load() > 80 {
				t.Errorf("asked %d times, and %d calls with a refused token, in 10 minutes", asked.Load(), calls.Load())
			}
			if end == "another token" {
				given.Store("token-2")
			} else {
				valid.Store("token-1")
			}
			time.Sleep(time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for send() != nil {
				if ctx.Err() != nil {
					t.Fatal("the outage does not end")
				}
			}
			before := asked.Load()
			for range 5 {
				testkit.NoError(t, send())
			}
			if asked.Load() != before {
				t.Errorf("asked %d times after the outage", asked.Load()-before)
			}
		})
	}
}

// A source that hangs is waited for as long as TokenTimeout says, is not asked a
// second time meanwhile, and does not hold Close up.
func TestTokenSourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		mux.HandleFunc("POST /messages", ok)
		release := make(chan struct{})
		var asked atomic.Int64
		c := offline(t, mux, source(func() (*oauth2.Token, error) {
			asked.Add(1)
			<-release
			return givenToken("token-1")
		}), func(c *Config) { c.Retry.MaxAttempts = 1 })
		start := time.Now()
		wantOnly(t, c.SendMessage(t.Context(), testMessageRequest()), ErrToken, ErrUnavailable)
		if d := time.Since(start); d != defaultTokenTimeout {
			t.Errorf("waited %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(time.Minute)
		wantOnly(t, c.SendMessage(ctx, testMessageRequest()), context.DeadlineExceeded)
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		start = time.Now()
		if err := c.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		close(release)
	})
}

func TestTokenSourceFailures(t *testing.T) {
	own := errors.New("the vault is sealed")
	refusal := &oauth2.RetrieveError{
		Response: &http.Response{StatusCode: 401, Header: http.Header{"Content-Type": {"application/json"}}},
		Body:     []byte(`{"secret":"s3cret"}`), ErrorCode: "invalid_client", ErrorDescription: "s3cret",
	}
	for name, tt := range map[string]struct {
		token *oauth2.Token
		err   error
		want  []error
		text  string
	}{
		"own error":     {err: own, want: []error{ErrToken, ErrUnavailable, own}, text: "the vault is sealed"},
		"refused":       {err: fmt.Errorf("oidc: %w", refusal), want: []error{ErrToken, ErrUnauthorized}, text: "invalid_client"},
		"given up":      {err: fmt.Errorf("vault: %w", ErrUnauthorized), want: []error{ErrToken, ErrUnauthorized}},
		"an address":    {err: &url.Error{Op: "Post", URL: "https://auth.example/?s3cret", Err: errors.New("refused")}, want: []error{ErrToken, ErrUnavailable}},
		"its context":   {err: context.Canceled, want: []error{ErrToken, ErrUnavailable}},
		"no token":      {want: []error{ErrToken, ErrUnavailable, ErrBadResponse}},
		"empty token":   {token: &oauth2.Token{}, want: []error{ErrToken, ErrUnavailable, ErrBadResponse}},
		"bad token":     {token: &oauth2.Token{AccessToken: "s3cret\r\nx"}, want: []error{ErrToken, ErrUnavailable, ErrBadResponse}},
		"another type":  {token: &oauth2.Token{AccessToken: "s3cret", TokenType: "MAC"}, want: []error{ErrToken, ErrUnavailable, ErrBadResponse}},
		"expired token": {token: &oauth2.Token{AccessToken: "token-1", Expiry: time.Now().Add(-time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			s.mux.HandleFunc("POST /messages", ok)
			c := s.client(t, source(func() (*oauth2.Token, error) { return tt.token, tt.err }), func(c *Config) { c.Retry.MaxAttempts = 1 })
			err := c.SendMessage(t.Context(), testMessageRequest())
			if tt.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantOnly(t, err, tt.want...)
			testkit.Contains(t, err.Error(), tt.text)
		})
	}
}
