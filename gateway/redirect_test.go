package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestCallsAreNotRedirectedElsewhere(t *testing.T) {
	var reached atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		t.Errorf("%s %s reached another host with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, op := range operations() {
			s := newService(t)
			var n atomic.Int64
			s.mux.HandleFunc(op.pattern, inOrder(&n, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", other.URL+r.URL.Path)
				w.WriteHeader(status)
			}))
			err := op.call(t.Context(), s.client(t))
			wantOnly(t, err, ErrRedirect)
			if n.Load() != 1 {
				t.Errorf("%s with %d was tried %d times", op.name, status, n.Load())
			}
		}
	}
	if reached.Load() != 0 {
		t.Errorf("%d requests reached another host", reached.Load())
	}
}

func TestCallsAreRedirectedWithinTheService(t *testing.T) {
	s := newService(t)
	var r record
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/v2/messages", 307) })
	s.mux.HandleFunc("POST /v2/messages", r.handler(ok))
	testkit.NoError(t, s.client(t).SendMessage(t.Context(), testMessageRequest()))
	requests, bodies := r.all()
	if bodies[0] != "payload" || requests[0].Header.Get("Authorization") != "Bearer token-1" || requests[0].Header.Get("X-Router-Tenant-Id") != testTenant {
		t.Errorf("got %q with %v", bodies[0], requests[0].Header)
	}
}

// A POST that a redirect turns into a GET is answered 200 and delivers nothing.
func TestRedirectMustKeepTheMethod(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", 302) })
	s.mux.HandleFunc("GET /login", func(http.ResponseWriter, *http.Request) { t.Error("followed") })
	wantOnly(t, s.client(t).SendMessage(t.Context(), testMessageRequest()), ErrRedirect)
}

// A redirect that leads nowhere says so, and is not asked for again.
func TestRedirectWithoutAnAddress(t *testing.T) {
	for _, location := range []string{"", "http://%zz/", "http://user:secret@elsewhere.example/"} {
		s := newService(t)
		var n atomic.Int64
		s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.Header()["Location"] = []string{location}
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		err := s.client(t).SendMessage(t.Context(), testMessageRequest())
		wantOnly(t, err, ErrRedirect)
		if n.Load() != 1 || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %d requests: %v", location, n.Load(), err)
		}
	}
}

func TestRedirectLoopEnds(t *testing.T) {
	s := newService(t)
	var n atomic.Int64
	s.mux.HandleFunc("GET /tenants", inOrder(&n, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/tenants", 307) }))
	_, err := s.client(t).ListAuthorizedTenants(t.Context())
	wantOnly(t, err, ErrRedirect)
	if n.Load() != 6 {
		t.Errorf("%d requests", n.Load())
	}
}

func TestPrivateAddresses(t *testing.T) {
	for _, a := range []string{
		"127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "0.1.2.3",
		"100.64.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::",
	} {
		if !isPrivateAddress(netip.MustParseAddr(a)) {
			t.Errorf("%s counts as public", a)
		}
	}
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"} {
		if isPrivateAddress(netip.MustParseAddr(a)) {
			t.Errorf("%s counts as private", a)
		}
	}
	if refusePrivate("tcp", "nonsense", nil) == nil || refusePrivate("tcp", "127.0.0.1:80", nil) == nil || refusePrivate("tcp", "[2606:4700::1]:80", nil) != nil {
		t.Error("refusePrivate decides otherwise")
	}
}

func TestTLS(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"access_token": "t", "expires_in": 60})
	})
	mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("protocol %s", r.Proto)
		}
		writeJSON(w, 200, map[string]any{"tenants": []any{}})
	})
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	cfg := Config{BaseURL: server.URL, TokenURL: server.URL + "/token", ClientID: "a", ClientSecret: "b"}

	// An authority that nobody knows: unavailable, and not retried.
	_, err := newTestClient(t, cfg).ListAuthorizedTenants(t.Context())
	wantIs(t, err, ErrCertificate, ErrUnavailable)
	if Retryable(err) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}

	cfg.TLS = &tls.Config{RootCAs: roots}
	testkit.Must(newTestClient(t, cfg).ListAuthorizedTenants(t.Context()))(t)

	// A certificate for another name.
	cfg.TLS = &tls.Config{RootCAs: roots, ServerName: "other.example.org"}
	_, err = newTestClient(t, cfg).ListAuthorizedTenants(t.Context())
	wantIs(t, err, ErrCertificate, ErrUnavailable)

	cfg.TLS = &tls.Config{InsecureSkipVerify: true}
	_, err = New(cfg)
	wantIs(t, err, ErrInvalid)
}

// The rule holds for the address that is dialled: a name cannot hide it.
func TestRedirectedConnectionsSeeTheDialledAddress(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("reached") }))
	defer server.Close()
	c := newTestClient(t, testConfig())
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))(t)
	resp, err := c.payload.redirected.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	wantIs(t, err, ErrRedirect)
}
