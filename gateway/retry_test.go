package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What each failure is: worth repeating, and why, and a refusal for good or not.
func TestDecideRetry(t *testing.T) {
	refused := []string{
		"invalid", "partial delivery", "no recipients", "400", "400, wrapped", "403", "404", "413", "download too large",
	}
	unproven := &Error{Op: opSend, StatusCode: 403, ErrorResponse: true, unproven: true}
	status := func(n int) error { return &Error{Op: opTenants, StatusCode: n, ErrorResponse: true} }
	cause := func(err error) error { return &Error{Op: "x", Err: err} }
	tests := []struct {
		name   string
		err    error
		retry  bool
		reason string
	}{
		{"nil", nil, false, "nothing failed"},
		{"canceled", cause(context.Canceled), false, "the caller's context ended"},
		{"deadline", cause(context.DeadlineExceeded), false, "the caller's context ended"},
		{"closed", cause(ErrClosed), false, "the client is closed"},
		{"invalid", cause(invalid("x", "y")), false, "the request is invalid"},
		{"partial delivery", &Error{StatusCode: 400, ErrorResponse: true, routing: ErrPartialDelivery}, false, "the reachable recipients already have the message"},
		{"no recipients", &Error{StatusCode: 400, ErrorResponse: true, routing: ErrNoRecipients}, false, "the service refused the request itself"},
		{"payload expired", &Error{StatusCode: 403, Err: ErrPayloadExpired}, false, "an expired URI stays expired"},
		{"truncated", cause(ErrPayloadTruncated), true, "the next download may be complete"},
		{"wrong size", &Error{StatusCode: 200, Err: ErrPayloadSize}, true, "the next download may be complete"},
		{"download too large", &Error{StatusCode: 200, Err: ErrTooLarge}, false, "the response violates the specification"},
		{"idle", cause(ErrIdle), true, "a new connection may work"},
		{"redirect", cause(ErrRedirect), false, "the redirect would be refused again"},
		{"certificate", cause(transportCause(x509.UnknownAuthorityError{})), false, "a certificate does not change within seconds"},
		{"token refused", cause(tokenRefusal(answerHead{status: 401}, "invalid_client")), false, "the token endpoint refused the credentials"},
		{"token endpoint down", cause(tokenRefusal(answerHead{status: 500}, "")), true, "the token endpoint is down or its answer is invalid"},
		{"400", status(400), false, "the service refused the request itself"},
		{"401", status(401), false, "a fresh token was refused as well"},
		{"403", status(403), false, "the service refused the request itself"},
		{"404", status(404), false, "the service refused the request itself"},
		{"405", status(405), true, "an intermediary answered instead of the service"},
		{"400 without ErrorResponse", &Error{Op: opSend, StatusCode: 400}, true, "an intermediary answered instead of the service"},
		{"200 as a web page", &Error{Op: opSend, StatusCode: 200, Err: errWebPage()}, true, "an intermediary answered instead of the service"},
		{"408", status(408), true, "the service asks for a retry"},
		{"413", status(413), false, "the service refused the request itself"},
		{"425", status(425), true, "the service asks for a retry"},
		{"429", status(429), true, "the rate limit is temporary"},
		{"500", status(500), true, "internal and upstream errors are temporary"},
		{"501", status(501), false, "the service does not support such requests"},
		{"502", status(502), true, "internal and upstream errors are temporary"},
		{"503", status(503), true, "internal and upstream errors are temporary"},
		{"504", status(504), true, "internal and upstream errors are temporary"},
		{"505", status(505), false, "the service does not support such requests"},
		{"599", status(599), true, "internal and upstream errors are temporary"},
		{"304", status(304), false, "the response violates the specification"},
		{"bad response", cause(&ResponseError{Reason: "x"}), false, "the response violates the specification"},
		{"connection closed", cause(transportCause(io.ErrUnexpectedEOF)), true, "the connection failed"},
		{"connection refused", cause(transportCause(&net.OpError{Op: "dial", Err: errors.New("refused")})), true, "the connection failed"},
		{"attempt timeout", cause(&transportError{cause: errAttemptTimeout}), true, "the connection failed"},
		// A deadline below HTTP is not the caller's.
		{"inner deadline", cause(transportCause(context.DeadlineExceeded)), true, "the connection failed"},
		{"name not found", cause(transportCause(&net.DNSError{Err: "no such host", Name: "x"})), true, "the connection failed"},
		{"unknown", errors.New("unknown"), false, "unknown failures are not retried"},
		{"400, wrapped", fmt.Errorf("outer: %w", status(400)), false, "the service refused the request itself"},
		{"403 that nobody else escapes", unproven, false, "the service refused the request itself"},
		{"404 for a message", &Error{Op: opSend, StatusCode: 404, ErrorResponse: true}, true, "an intermediary answered instead of the service"},
		{"token refused with 400", errors.Join(ErrToken, ErrBadRequest), true, "the token endpoint is down or its answer is invalid"},
		{"wrapped", fmt.Errorf("outer: %w", status(503)), true, "internal and upstream errors are temporary"},
	}
	seen := map[string]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			retry, reason := decideRetry(tt.err)
			if retry != tt.retry || reason != tt.reason {
				t.Errorf("got %v, %q", retry, reason)
			}
			if Retryable(tt.err) != tt.retry {
				t.Error("Retryable decides otherwise")
			}
			if got, want := Refused(tt.err), slices.Contains(refused, tt.name); got != want || got && retry {
				t.Errorf("refused: got %v, want %v", got, want)
			}
		})
		seen[tt.reason] = true
	}
	if len(seen) < 19 {
		t.Errorf("only %d branches were tried", len(seen))
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	c := RetryConfig{MaxRetryAfter: 5 * time.Minute}
	tests := []struct {
		value string
		want  time.Duration
	}{
		{"", 0},
		{"0", 0},
		{"7", 7 * time.Second},
		{" 7 ", 7 * time.Second},
		{"300", 5 * time.Minute},
		{"301", 5 * time.Minute},
		{"9223372036", 5 * time.Minute},
		{"99999999999999999999999999", 5 * time.Minute},
		{"-1", 0},
		{"1.5", 0},
		{"soon", 0},
		{"Mon, 04 May 2026 12:00:30 GMT", 30 * time.Second},
		{"Mon, 04 May 2026 11:00:00 GMT", 0},
		{"Mon, 04 May 2099 12:00:00 GMT", 5 * time.Minute},
		{"Monday, 04-May-26 12:00:30 GMT", 30 * time.Second},
	}
	for _, tt := range tests {
		if got := c.retryAfter(http.Header{"Retry-After": {tt.value}}, now); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.value, got, tt.want)
		}
	}
	// The clock of the peer is an hour behind.
	for value, want := range map[string]time.Duration{"Mon, 04 May 2026 11:00:30 GMT": 20 * time.Second, "7": 7 * time.Second} {
		if got := c.retryAfter(http.Header{"Retry-After": {value}, "Date": {"Mon, 04 May 2026 11:00:10 GMT"}}, now); got != want {
			t.Errorf("%q by the clock of the peer: %v, want %v", value, got, want)
		}
	}
	c.MaxRetryAfter = Off
	if got := c.retryAfter(http.Header{"Retry-After": {"7"}}, now); got != 0 {
		t.Errorf("ignored header: %v", got)
	}
}

func TestRetriesFollowTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var at []time.Time
		mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
			at = append(at, time.Now())
			if len(at) == 4 {
				w.Header().Set("Retry-After", "40")
			}
			fail(503, "down")(w, r)
		})
		c := offline(t, mux) // 5 attempts, from 500 ms
		err := c.SendMessage(t.Context(), testMessageRequest())
		wantOnly(t, err, ErrUnavailable)
		if len(at) != 5 || !strings.Contains(err.Error(), "after 5 attempts") {
			t.Fatalf("%d attempts, %v", len(at), err)
		}
		for i, most := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
			if d := at[i+1].Sub(at[i]); d < most/2 || d > most {
				t.Errorf("wait %d: %v", i, d)
			}
		}
		if d := at[4].Sub(at[3]); d != 40*time.Second {
			t.Errorf("wait with Retry-After: %v", d)
		}
	})
}

func TestRetriesAreBoundedByTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var n atomic.Int64
		mux.HandleFunc("POST /messages", inOrder(&n, fail(500, "broken")))
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = UnlimitedAttempts })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := c.SendMessage(ctx, testMessageRequest())
		wantOnly(t, err, context.DeadlineExceeded)
		if time.Since(start) != time.Hour || n.Load() < 100 {
			t.Errorf("%d attempts in %v", n.Load(), time.Since(start))
		}
		testkit.Contains(t, err.Error(), `500 Internal Server Error: "broken"`)
		cancel()
		before := n.Load()
		wantOnly(t, c.SendMessage(ctx, testMessageRequest()), context.DeadlineExceeded)
		if n.Load() != before {
			t.Error("a call was made although the context had ended")
		}
	})
}

func TestAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var n atomic.Int64
		mux.HandleFunc("POST /messages", inOrder(&n, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = 1; c.MinTransferRate = 10 })
		start := time.Now()
		err := c.SendMessage(t.Context(), testMessageRequest())
		// The caller's context lives: this is not its deadline.
		wantOnly(t, err, ErrUnavailable)
		// 7 bytes at 10 bytes a second.
		if d, want := time.Since(start), defaultRequestTimeout+700*time.Millisecond; d != want {
			t.Errorf("took %v, want %v", d, want)
		}
		testkit.Contains(t, err.Error(), "timeout")
	})
}

func TestConnectionFailures(t *testing.T) {
	s := newService(t)
	var n atomic.Int64
	s.mux.HandleFunc("POST /messages", inOrder(&n, hangUp))
	err := s.client(t).SendMessage(t.Context(), testMessageRequest())
	wantOnly(t, err, ErrUnavailable)
	if n.Load() != 3 {
		t.Errorf("%d attempts", n.Load())
	}
	s.mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "garbage with s3cret inside\r\n\r\n")
		_ = conn.Close()
	})
	_, err = s.client(t).ListAuthorizedTenants(t.Context())
	wantOnly(t, err, ErrUnavailable)
}
