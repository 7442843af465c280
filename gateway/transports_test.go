package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// seen is a RoundTripper that remembers what passes it.
type seen struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  []string
}

func (s *seen) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.all = append(s.all, fmt.Sprintf("%s %s %s", r.URL.Path, strings.Fields(r.Header.Get("Authorization") + " none")[0], r.Header.Get("X-Trace")))
	s.mu.Unlock()
	return s.next.RoundTrip(r)
}

func (s *seen) String() string { return strings.Join(s.all, ", ") }

// Every kind of traffic has its own way, and the credentials are on theirs only.
func TestTransportsByKindOfTraffic(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", ok)
	s.mux.HandleFunc("GET /events", streamOf("data: {}\n\n"))
	s.mux.HandleFunc("GET /payload", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "payload") })
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	calls, stream, payloads, token, rest := &seen{next: base}, &seen{next: base}, &seen{next: base}, &seen{next: base}, &seen{next: base}
	use := func(c *Client) {
		t.Helper()
		if err := c.SendMessage(t.Context(), testMessageRequest()); err != nil {
			t.Fatal(err)
		}
		events, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_ = events.Close()
		// The payload is even at the service's own address.
		if got, err := download(t.Context(), c, s.URL+"/payload", 7); err != nil || string(got) != "payload" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	use(s.client(t, func(c *Config) {
		c.Transport = rest
		c.Transports = Transports{Calls: calls, Stream: stream, Payloads: payloads, Token: token}
		c.EditRequest = func(r *http.Request) error { r.Header.Set("X-Trace", "7"); return nil }
	}))
	for _, tt := range []struct {
		kind *seen
		want string
	}{
		{calls, "/messages Bearer 7"}, {stream, "/events Bearer 7"}, {payloads, "/payload none "}, {token, "/token Basic "}, {rest, ""},
	} {
		if got := tt.kind.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	use(s.client(t, func(c *Config) { c.Transport, c.Transports = rest, Transports{Stream: stream} }))
	if got := rest.String(); got != "/token Basic , /messages Bearer , /payload none " || len(stream.all) != 2 {
		t.Errorf("with one of them, the rest takes %q, the stream %q", got, stream)
	}
}

// followRedirects is a RoundTripper that should not be one: it follows redirects.
type followRedirects struct{ http.Client }

func (f *followRedirects) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI = ""
	return f.Do(r)
}

// The token goes to the service only, whatever carries it: the client sends it
// nowhere else, and does not believe what others have followed.
func TestTokenStaysWithTheServiceOverACustomTransport(t *testing.T) {
	var leaked, visits int
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visits++
		if r.Header.Get("Authorization") != "" {
			leaked++
		}
		streamOf("data: {}\n\n")(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	s := newService(t)
	for _, path := range []string{"/messages", "/events", "/payload"} {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+"/x", http.StatusTemporaryRedirect)
		})
	}
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	for name, transport := range map[string]http.RoundTripper{"plain": plain, "follows": &followRedirects{http.Client{Transport: plain}}} {
		t.Run(name, func(t *testing.T) {
			visits = 0
			c := s.client(t, func(c *Config) {
				c.Transports = Transports{Calls: transport, Stream: transport, Payloads: transport}
				c.AllowPrivatePayloadRedirects = name == "plain"
			})
			wantOnly(t, c.SendMessage(t.Context(), testMessageRequest()), ErrRedirect)
			_, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
			wantOnly(t, err, ErrRedirect)
			payload, err := c.OpenPayload(t.Context(), s.URL+"/payload", -1)
			if name == "plain" {
				if err != nil {
					t.Fatal(err)
				}
				_ = payload.Close()
			} else {
				wantOnly(t, err, ErrRedirect)
			}
			if want := map[string]int{"plain": 1, "follows": 3}[name]; visits != want || leaked > 0 {
				t.Errorf("%d requests elsewhere, want %d; %d with the token", visits, want, leaked)
			}
		})
	}
}

func TestEditRequest(t *testing.T) {
	s := newService(t)
	var r record
	var n int
	s.mux.HandleFunc("POST /messages", r.handler(func(w http.ResponseWriter, req *http.Request) {
		if n++; n == 1 {
			fail(503, "once more")(w, req)
		}
	}))
	edits := 0
	var edit func(*http.Request) error
	c := s.client(t, func(c *Config) {
		c.EditRequest = func(r *http.Request) error { edits++; return edit(r) }
	})
	send := func() error { return c.SendMessage(t.Context(), testMessageRequest()) }

	edit = func(r *http.Request) error {
		if r.Header.Get("Authorization") != "" {
			t.Error("the editor sees the token")
		}
		r.Header.Set("X-Trace", fmt.Sprint(edits))
		r.Header.Set("Authorization", "Basic own")
		return nil
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	requests, bodies := r.all()
	for i, q := range requests {
		if q.Header.Get("X-Trace") != fmt.Sprint(i+1) || q.Header.Get("Authorization") != "Bearer token-1" || bodies[i] != "payload" {
			t.Errorf("attempt %d: %v %q", i+1, q.Header, bodies[i])
		}
	}
	if len(requests) != 2 || edits != 2 {
		t.Errorf("%d requests, %d edits; want 2 of each", len(requests), edits)
	}

	own := errors.New("no trace")
	for name, tt := range map[string]struct {
		edit func(*http.Request) error
		want error
		n    int // edits
	}{
		"error":     {func(*http.Request) error { return own }, own, 1},
		"outage":    {func(*http.Request) error { return fmt.Errorf("tracer: %w", ErrUnavailable) }, ErrUnavailable, 3},
		"host":      {func(r *http.Request) error { r.URL.Host = "elsewhere.example"; return nil }, ErrInvalid, 1},
		"path":      {func(r *http.Request) error { r.URL.Path = "/x"; return nil }, ErrInvalid, 1},
		"no URL":    {func(r *http.Request) error { r.URL = nil; return nil }, ErrInvalid, 1},
		"authority": {func(r *http.Request) error { r.Host = "elsewhere.example"; return nil }, ErrInvalid, 1},
		"method":    {func(r *http.Request) error { r.Method = "PUT"; return nil }, ErrInvalid, 1},
		"body":      {func(r *http.Request) error { r.Body = io.NopCloser(strings.NewReader("other!!")); return nil }, ErrInvalid, 1},
		"length":    {func(r *http.Request) error { r.ContentLength = 3; return nil }, ErrInvalid, 1},
		"header":    {func(r *http.Request) error { r.Header = nil; return nil }, ErrInvalid, 1},
	} {
		t.Run(name, func(t *testing.T) {
			edits, edit = 0, tt.edit
			before, _ := r.all()
			err := send()
			after, _ := r.all()
			if !errors.Is(err, tt.want) || edits != tt.n || len(after) != len(before) {
				t.Errorf("got %v after %d edits, and %d requests; want %v after %d, and none", err, edits, len(after)-len(before), tt.want, tt.n)
			}
		})
	}
}
