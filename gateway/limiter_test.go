package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestNoLimitBeforeTheFirst429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		mux.HandleFunc("POST /messages", ok)
		c := offline(t, mux)
		start := time.Now()
		for range 500 {
			testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
		}
		if time.Since(start) != 0 || c.RateLimit() != (RateLimitState{}) {
			t.Errorf("took %v, state %+v", time.Since(start), c.RateLimit())
		}
	})
}

// A storm of calls against a service that allows 20 requests a second: all get
// through, the service sees few refusals, and other operations are slowed down
// with them.
func TestLimiterLearnsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const allowed, calls = 20, 500
		mux, _ := offlineMux()
		var (
			mu                sync.Mutex
			window            time.Time
			inWindow          int
			served, rejected  int
			rejectedAfterward int
		)
		start := time.Now()
		handler := func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); now.Sub(window) >= time.Second {
				window, inWindow = now, 0
			}
			inWindow++
			if inWindow > allowed {
				rejected++
				if time.Since(start) > 10*time.Second {
					rejectedAfterward++
				}
				fail(429, "rate limit exceeded")(w, r)
				return
			}
			served++
			ok(w, r)
		}
		mux.HandleFunc("POST /messages", handler)
		mux.HandleFunc("POST /confirmations", handler)
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = UnlimitedAttempts })
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					err = c.SendMessage(t.Context(), testMessageRequest())
				} else {
					err = c.ConfirmMessages(t.Context(), testTenant, []MessageConfirmation{{testMessage, testEndpoint}})
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if s := c.RateLimit(); !s.Limited || s.Rate <= 0 || s.PausedUntil.IsZero() || s.Rejected == 0 || !s.LastRejected.Equal(start) {
			t.Errorf("state in the storm: %+v", s)
		}
		wg.Wait()
		took := time.Since(start)
		if served != calls {
			t.Errorf("%d served", served)
		}
		// They take 25 s at best; the first burst is refused, after that refusals are rare.
		if took > 5*time.Minute || rejectedAfterward > calls/5 {
			t.Errorf("took %v, %d rejected, of them %d after the beginning", took, rejected, rejectedAfterward)
		}
		t.Logf("%d requests in %v, %d rejected, %d after the beginning", calls, took, rejected, rejectedAfterward)
		time.Sleep(time.Hour)
		if s := c.RateLimit(); s.Limited || s.Rate != 0 || !s.PausedUntil.IsZero() {
			t.Errorf("state after an hour: %+v", s)
		}
	})
}

func TestRetryAfterPausesTheWholeClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var n atomic.Int64
		mux.HandleFunc("POST /messages", inOrder(&n, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "100000")
			fail(429, "rate limit exceeded")(w, r)
		}, ok))
		mux.HandleFunc("DELETE /endpoints/{id}", ok)
		c := offline(t, mux)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.SendMessage(t.Context(), testMessageRequest()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		// Another operation waits as well, and gives up with its context.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantOnly(t, c.DeleteEndpoint(ctx, testTenant, "farm:1"), context.DeadlineExceeded)
		wg.Wait()
		// Capped at 5 minutes.
		if d := time.Since(start); d < 5*time.Minute || d > 5*time.Minute+10*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// The limit outlasts what it is for. LastWaited tells whether it still delays anything.
func TestLimitThatDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var n atomic.Int64
		mux.HandleFunc("POST /messages", inOrder(&n, fail(429, "rate limit exceeded"), ok))
		c := offline(t, mux)
		var sent sync.WaitGroup
		for range 2 { // the second one waits for the limit
			sent.Go(func() { _ = c.SendMessage(t.Context(), testMessageRequest()) })
			synctest.Wait()
		}
		time.Sleep(time.Millisecond)
		if s := c.RateLimit(); !s.Limited || s.LastWaited != time.Now() {
			t.Errorf("a request waits, and the state is %+v", s)
		}
		sent.Wait()
		waited := time.Now()
		for range 3 {
			time.Sleep(5 * time.Second)
			testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
			if s := c.RateLimit(); !s.Limited || s.LastWaited.After(waited) {
				t.Errorf("nothing has waited since %s, and the state is %+v", waited, s)
			}
		}
	})
}

func TestLimiterSpacesRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &limiter{cfg: RateLimitConfig{MinRate: 2, Growth: 1e-9, Pause: time.Second}}
		started := testkit.Must(l.wait(t.Context()))(t)
		l.reject(started, "", 0)
		var at []time.Duration
		begin := time.Now()
		for range 4 {
			testkit.Must(l.wait(t.Context()))(t)
			at = append(at, time.Since(begin))
		}
		if at[0] < 500*time.Millisecond || at[0] > time.Second {
			t.Errorf("pause of %v", at[0])
		}
		for i := 1; i < len(at); i++ {
			if d := at[i] - at[i-1]; d < 499*time.Millisecond || d > 501*time.Millisecond {
				t.Errorf("request %d after %v, want 500ms", i, d)
			}
		}
		// A late 429 of a request from before the cut does not cut again.
		before := l.state().Rate
		l.reject(started, "", 0)
		if after := l.state().Rate; after != before {
			t.Errorf("rate %v became %v", before, after)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// clockContext is a context whose Err says that its time is over, which nobody was told yet: its
// process was stopped, say.
type clockContext struct {
	context.Context
	over atomic.Bool
}

func (c *clockContext) Err() error {
	if c.over.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// What a call waits for may take longer than its time: it sends nothing then.
func TestNothingIsSentAfterTheContext(t *testing.T) {
	put := func(ctx context.Context, c *Client) error {
		_, _, err := c.PutEndpoint(ctx, testTenant, "farm:1", testPutRequest())
		return err
	}
	confirm := func(ctx context.Context, c *Client) error {
		return c.ConfirmMessages(SingleAttempt(ctx), testTenant, []MessageConfirmation{{testMessage, testEndpoint}})
	}
	open := func(ctx context.Context, c *Client) error {
		stream, err := c.ReceiveEvents(ctx, ReceiveEventsRequest{})
		if err == nil {
			_ = stream.Close()
		}
		return err
	}
	for name, call := range map[string]func(context.Context, *Client) error{"put": put, "confirm": confirm, "open": open} {
		for _, waits := range []string{"token", "limit", "retry"} {
			if waits == "retry" && name != "put" {
				continue // there is none
			}
			testkit.RunBubble(t, name+" "+waits, func(t *testing.T) {
				ctx := &clockContext{Context: t.Context()}
				mux := http.NewServeMux()
				mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
					ctx.over.Store(waits == "token")
					writeJSON(w, http.StatusOK, map[string]any{"access_token": tokenNumber(1), "expires_in": 3600})
				})
				mux.HandleFunc("POST /messages", func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", "5")
					writeJSON(w, http.StatusTooManyRequests, ErrorResponse{Message: "slower"})
				})
				var asked atomic.Int64
				mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
					asked.Add(1)
					writeJSON(w, http.StatusServiceUnavailable, ErrorResponse{Message: "not now"})
				})
				c := offline(t, mux)
				if waits == "limit" {
					_ = c.SendMessage(SingleAttempt(t.Context()), testMessageRequest())
				}
				want := int64(0)
				if waits == "retry" {
					want = 1
				}
				done := make(chan error)
				go func() { done <- call(ctx, c) }()
				synctest.Wait()
				ctx.over.Store(true)
				testkit.ErrorIs(t, <-done, context.Canceled)
				if got := asked.Load(); got != want {
					t.Errorf("%d requests, want %d", got, want)
				}
			})
		}
	}
}
