package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A 403 is about the request when the operation works for others, and may be
// about everybody when it does not.
func TestForbiddenIsAVerdictOnlyWhileOthersSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var forbidden atomic.Bool
		mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
			if forbidden.Load() {
				fail(http.StatusForbidden, "not yours")(w, r)
			}
		})
		mux.HandleFunc("POST /confirmations", fail(http.StatusForbidden, "not yours"))
		c := offline(t, mux)
		send := func() error { return c.SendMessage(t.Context(), testMessageRequest()) }
		testkit.NoError(t, send())
		forbidden.Store(true)
		wantOnly(t, send(), ErrForbidden)
		// Sending works, which says nothing of confirming.
		err := c.ConfirmMessages(t.Context(), testTenant, []MessageConfirmation{{testMessage, testEndpoint}})
		wantOnly(t, err, ErrForbidden, ErrUnavailable)
		time.Sleep(time.Minute)
		wantOnly(t, send(), ErrForbidden)
		time.Sleep(time.Second)
		wantOnly(t, send(), ErrForbidden, ErrUnavailable)
		forbidden.Store(false)
		testkit.NoError(t, send())
		forbidden.Store(true)
		wantOnly(t, send(), ErrForbidden)
	})
}

// What shows that the service is there is an answer of its own to a call.
func TestLastCall(t *testing.T) {
	s := newService(t)
	var answer atomic.Pointer[http.HandlerFunc]
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
	s.mux.HandleFunc("GET /events", fail(503, "down"))
	s.mux.HandleFunc("GET /payload", fail(503, "down"))
	c := s.client(t, func(c *Config) { c.Retry.MaxAttempts = 1 })
	if got := c.LastCall(); !got.At.IsZero() || got.Err != nil {
		t.Errorf("before the first call: %+v", got)
	}
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		want   error
	}{
		{"success", ok, nil},
		{"refused by the service", fail(400, "no"), nil},
		{"forbidden by the service", fail(403, "no"), nil},
		{"rate limited", fail(429, "slow"), nil},
		{"unauthorized", fail(401, "who"), ErrUnauthorized},
		{"down", fail(503, "down"), ErrUnavailable},
		{"intermediary", page(400), ErrIntermediary},
		{"connection", hangUp, ErrUnavailable},
	} {
		answer.Store(&tt.answer)
		before := time.Now()
		_ = c.SendMessage(t.Context(), testMessageRequest())
		got := c.LastCall()
		if !errors.Is(got.Err, tt.want) || got.At.Before(before) {
			t.Errorf("%s: %+v, want %v", tt.name, got, tt.want)
		}
	}
	last := c.LastCall()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request := testMessageRequest()
	request.Body = func() (io.ReadCloser, error) { return nil, io.ErrUnexpectedEOF }
	request.Size = 7
	for name, err := range map[string]error{
		"stream":          func() error { _, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}); return err }(),
		"payload":         func() error { _, err := c.OpenPayload(t.Context(), s.URL+"/payload", -1); return err }(),
		"given up":        c.SendMessage(ctx, testMessageRequest()),
		"caller's fault":  c.SendMessage(t.Context(), request),
		"invalid request": c.SendMessage(t.Context(), SendMessageRequest{}),
	} {
		if err == nil || c.LastCall() != last {
			t.Errorf("%s counts as a call: %v", name, err)
		}
	}
}

// When everything is refused from one moment on, few requests are taken for bad
// before it shows. And what was on its way while that ended is not one of them.
func TestForbiddenToEverybodyIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		hold := make(chan struct{})
		var forbidden atomic.Bool
		mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("X-Router-Filename") == "slow":
				<-hold
				fail(http.StatusForbidden, "not yours")(w, r)
			case forbidden.Load():
				fail(http.StatusForbidden, "not yours")(w, r)
			}
		})
		c := offline(t, mux)
		send := func() error { return c.SendMessage(t.Context(), testMessageRequest()) }
		slow := make(chan error)
		go func() {
			req := testMessageRequest()
			req.Filename = "slow"
			slow <- c.SendMessage(t.Context(), req)
		}()
		time.Sleep(time.Second)
		testkit.NoError(t, send())
		close(hold)
		wantOnly(t, <-slow, ErrForbidden, ErrUnavailable)

		forbidden.Store(true)
		for range maxForbiddenRow {
			wantOnly(t, send(), ErrForbidden)
		}
		wantOnly(t, send(), ErrForbidden, ErrUnavailable)
		forbidden.Store(false)
		testkit.NoError(t, send())
		forbidden.Store(true)
		wantOnly(t, send(), ErrForbidden)
	})
}

func TestIntermediaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, tokens := http.NewServeMux(), new(atomic.Int64)
		var answer, token atomic.Pointer[http.HandlerFunc]
		set := func(p *atomic.Pointer[http.HandlerFunc], h http.HandlerFunc) { p.Store(&h) }
		mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) { (*token.Load())(w, r) })
		mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
		grant := func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]any{"access_token": tokenNumber(tokens.Add(1)), "expires_in": 1})
		}
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = 1 })
		send := func() error { return c.SendMessage(t.Context(), testMessageRequest()) }
		check := func(total int64, want ...IntermediaryAnswer) {
			t.Helper()
			got := c.Intermediaries()
			if got.Answers != total || len(got.Now) != len(want) {
				t.Fatalf("got %+v, want %d and %+v", got, total, want)
			}
			for i := range want {
				if got.Now[i] != want[i] {
					t.Fatalf("got %+v, want %+v", got.Now[i], want[i])
				}
			}
		}

		set(&token, grant)
		set(&answer, page(404))
		began := time.Now()
		wantIs(t, send(), ErrIntermediary)
		check(1, IntermediaryAnswer{opSend, began, began, 404, "text/html"})
		time.Sleep(2 * time.Second)
		set(&token, page(403))
		second := time.Now()
		wantIs(t, send(), ErrIntermediary, ErrToken)
		check(2, IntermediaryAnswer{opToken, second, second, 403, "text/html"}, IntermediaryAnswer{opSend, began, began, 404, "text/html"})
		time.Sleep(time.Minute)
		set(&token, grant)
		// A broken connection says nothing about who would have answered.
		set(&answer, fail(http.StatusBadGateway, "upstream"))
		wantIs(t, send(), ErrUnavailable)
		check(2, IntermediaryAnswer{opSend, began, began, 404, "text/html"})
		set(&answer, page(200))
		third := time.Now()
		wantIs(t, send(), ErrIntermediary)
		check(3, IntermediaryAnswer{opSend, began, third, 200, "text/html"})
		// Any word of the service's own ends it, success or not.
		set(&answer, fail(http.StatusBadRequest, "no"))
		wantOnly(t, send(), ErrBadRequest)
		check(3)
		set(&answer, fail(http.StatusMethodNotAllowed, "no route matched"))
		wantIs(t, send(), ErrIntermediary)
		check(4, IntermediaryAnswer{opSend, time.Now(), time.Now(), 405, "application/json"})
		set(&answer, func(http.ResponseWriter, *http.Request) {})
		testkit.NoError(t, send())
		check(4)
		// What nobody asks for any more does not count for ever.
		set(&answer, page(404))
		wantIs(t, send(), ErrIntermediary)
		last := time.Now()
		time.Sleep(intermediaryMemory)
		check(5, IntermediaryAnswer{opSend, last, last, 404, "text/html"})
		time.Sleep(time.Second)
		check(5)
		wantIs(t, send(), ErrIntermediary)
		check(6, IntermediaryAnswer{opSend, time.Now(), time.Now(), 404, "text/html"})
		if errors.Is(ErrIntermediary, ErrUnavailable) {
			t.Error("the sentinels are one")
		}
	})
}

// A media type is read whatever its parameters look like; one that cannot be read is unknown.
func TestMediaType(t *testing.T) {
	for value, want := range map[string]string{
		"text/event-stream":                          "text/event-stream",
		"text/event-stream; q":                       "text/event-stream",
		"Text/Event-Stream ;charset=utf-8":           "text/event-stream",
		"text/event-stream; charset=utf-8; charset=": "text/event-stream",
		"text/event-stream;":                         "text/event-stream",
		"text/event-stream; =;;\"":                   "text/event-stream",
		"application/json; a=b; a=c":                 "application/json",
		"":                                           "",
		"; charset=utf-8":                            "",
		"text /event-stream":                         "",
		"text/event-stream text/html":                "",
	} {
		if got := mediaType(http.Header{"Content-Type": {value}}); got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}
