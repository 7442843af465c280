package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
)

// A connection that died silently (no data, no end, no reset) is replaced, over
// HTTP/1.1 and HTTP/2, for each kind of traffic.
func TestDeadConnectionIsReplaced(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			var other atomic.Int64
			s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
				streamOf(": hello\n\n")(w, r)
				<-r.Context().Done()
			})
			s.mux.HandleFunc("POST /messages", ok)
			s.mux.HandleFunc("GET /payload", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "payload") })
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != protocol {
					other.Add(1)
				}
				s.mux.ServeHTTP(w, r)
			}))
			server.EnableHTTP2 = protocol == "HTTP/2.0"
			server.StartTLS()
			t.Cleanup(func() {
				server.CloseClientConnections()
				server.Close()
			})
			proxy := faultproxy.New(t)
			proxy.SetTarget(server.Listener.Addr().String())
			base := "https://" + proxy.Addr()
			const patience = 300 * time.Millisecond
			c := newTestClient(t, Config{
				BaseURL: base, TokenURL: base + "/token", ClientID: testID, ClientSecret: testSecret,
				TLS:   server.Client().Transport.(*http.Transport).TLSClientConfig,
				Retry: RetryConfig{MaxAttempts: 1, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
				// Each shorter than it takes to find out, so that an attempt that
				// times out meets the dead connection again.
				RequestTimeout: patience, StreamConnectTimeout: patience, StreamIdleTimeout: patience, TokenTimeout: patience,
				PingInterval: 2 * patience,
			})
			uses := map[string]func() error{
				"calls": func() error { return c.SendMessage(t.Context(), testMessageRequest()) },
				"token": func() error {
					refused := tokenNumber(s.tokens.Load())
					c.tokens.invalidate(refused)
					_, err := c.tokens.get(t.Context(), refused)
					return err
				},
				"payloads": func() error {
					got, err := download(t.Context(), c, base+"/payload", 7)
					if err == nil && string(got) != "payload" {
						t.Errorf("got %q", got)
					}
					return err
				},
				"stream": func() error {
					stream, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
					if err != nil {
						return err
					}
					defer func() { _ = stream.Close() }()
					if _, err = stream.Next(); errors.Is(err, ErrIdle) {
						return nil
					}
					return err
				},
			}
			// Attempts may fail on a busy machine, too, but not for ever.
			succeed := func(what string) {
				t.Helper()
				for name, use := range uses {
					ctx := testkit.Context(t)
					for err := use(); err != nil; err = use() {
						if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrIdle) {
							t.Fatalf("%s: %v", name, err)
						}
						if ctx.Err() != nil {
							t.Fatalf("%s: %s: %v", name, what, err)
						}
					}
				}
			}
			succeed("nothing gets through")
			proxy.Freeze()
			succeed("the dead connection is used again and again")
			if other.Load() > 0 {
				t.Errorf("%d requests did not use %s", other.Load(), protocol)
			}
			proxy.Cut()
		})
	}
}

// A request that waits on a connection that is found dead fails before its
// own time is over.
func TestLostPingEndsTheStream(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		streamOf("event: NEW\ndata: {}\n\n")(w, r)
		<-r.Context().Done()
	})
	server := httptest.NewUnstartedServer(s.mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	proxy := faultproxy.New(t)
	proxy.SetTarget(server.Listener.Addr().String())
	c := newTestClient(t, Config{
		BaseURL: "https://" + proxy.Addr(), TokenURL: server.URL + "/token", ClientID: testID, ClientSecret: testSecret,
		TLS: server.Client().Transport.(*http.Transport).TLSClientConfig, PingInterval: 100 * time.Millisecond, StreamIdleTimeout: Off,
	})
	var stream *EventStream
	testkit.EventuallyNil(t, func() (err error) { // on a busy machine a ping may be lost before
		if stream, err = c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}); err == nil {
			t.Cleanup(func() { _ = stream.Close() })
			_, err = stream.Next()
		}
		return err
	})
	proxy.Freeze()
	_, err := stream.Next()
	wantOnly(t, err, ErrUnavailable)
	if strings.Contains(err.Error(), "http2") {
		t.Errorf("got %v", err)
	}
}
