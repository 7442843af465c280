package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// seen is a RoundTripper that remembers what passes it.
type seen struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  []string
}

func (s *seen) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.all = append(s.all, r.URL.Path+" "+strings.Fields(r.Header.Get("Authorization") + " none")[0])
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
		testkit.NoError(t, c.SendMessage(t.Context(), testMessageRequest()))
		events := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
		_ = events.Close()
		// The payload is even at the service's own address.
		if got, err := download(t.Context(), c, s.URL+"/payload", 7); err != nil || string(got) != "payload" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	use(s.client(t, func(c *Config) {
		c.Transport = rest
		c.Transports = Transports{Calls: calls, Stream: stream, Payloads: payloads, Token: token}
	}))
	for _, tt := range []struct {
		kind *seen
		want string
	}{
		{calls, "/messages Bearer"}, {stream, "/events Bearer"}, {payloads, "/payload none"}, {token, "/token Basic"}, {rest, ""},
	} {
		if got := tt.kind.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	use(s.client(t, func(c *Config) { c.Transport, c.Transports = rest, Transports{Stream: stream} }))
	if got := rest.String(); got != "/token Basic, /messages Bearer, /payload none" || len(stream.all) != 2 {
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
