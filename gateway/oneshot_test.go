package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

func oneShotRequest(payload string) SendMessageRequest {
	req := testMessageRequest()
	req.Payload = nil
	// Neither a Seeker nor anything else that could be read twice.
	req.Reader, req.Size = io.MultiReader(strings.NewReader(payload)), int64(len(payload))
	return req
}

// What was read is gone: the failure says that, and nothing is repeated.
func TestOneShotBodyIsNotRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    []error
		text    string
	}{
		"outage":      {fail(503, "down"), []error{ErrUnavailable, ErrBodyConsumed}, "503"},
		"rate limit":  {fail(429, "slow"), []error{ErrRateLimited, ErrBodyConsumed}, "429"},
		"connection":  {hangUp, []error{ErrUnavailable, ErrBodyConsumed}, "connection closed"},
		"bad request": {fail(400, "no"), []error{ErrBadRequest}, "400"},
		"web page":    {page(404), []error{ErrIntermediary, ErrUnavailable, ErrBodyConsumed}, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			var n atomic.Int64
			s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
				n.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				tt.handler(w, r)
			})
			err := s.client(t).SendMessage(t.Context(), oneShotRequest("payload"))
			wantOnly(t, err, tt.want...)
			if n.Load() != 1 || Retryable(err) || !strings.Contains(err.Error(), tt.text) ||
				strings.Contains(err.Error(), "not retried") != errors.Is(err, ErrBodyConsumed) {
				t.Errorf("%d requests, %q", n.Load(), err)
			}
		})
	}
}

// A token that expired costs the body, and the next payload goes with a new one.
func TestOneShotBodyMeetsAnExpiredToken(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Authorization") != "Bearer token-2" {
			fail(401, "expired")(w, r)
		}
	})
	c := s.client(t)
	err := c.SendMessage(t.Context(), oneShotRequest("payload"))
	wantOnly(t, err, ErrUnauthorized, ErrBodyConsumed)
	if err := c.SendMessage(t.Context(), oneShotRequest("payload")); err != nil {
		t.Error(err)
	}
}

// A body that nobody has read from is as good as new.
func TestOneShotBodyIsRepeatedUnread(t *testing.T) {
	s := newService(t)
	var r record
	s.mux.HandleFunc("POST /messages", r.handler(ok))
	var dials atomic.Int64
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) < 3 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c := s.client(t, func(c *Config) { c.Transports.Calls = transport })
	if err := c.SendMessage(t.Context(), oneShotRequest("payload")); err != nil {
		t.Fatal(err)
	}
	if _, bodies := r.all(); len(bodies) != 1 || bodies[0] != "payload" || dials.Load() != 3 {
		t.Errorf("bodies %q after %d dials", bodies, dials.Load())
	}
}
