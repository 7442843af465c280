package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/memnet"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	testTenant    = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
	testEndpoint  = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
	testRecipient = "550e8400-e29b-41d4-a716-446655440000"
	testContext   = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
	testMessage   = "9b2d9c14-3a58-4c0e-8f63-2f1e0c3f7a11"
	testSecret    = "s3cret&value"
	testID        = "client id"
)

// service is a small service for tests: a token endpoint and what the test puts
// on mux. It gives the tokens token-1, token-2 and so on.
type service struct {
	*httptest.Server
	mux    *http.ServeMux
	tokens atomic.Int64
	// token replaces the token endpoint when it is not nil.
	token http.HandlerFunc
}

func newService(t testing.TB) *service {
	t.Helper()
	s := &service{mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		n := s.tokens.Add(1)
		if s.token != nil {
			s.token(w, r)
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"access_token": tokenNumber(n), "token_type": "Bearer", "expires_in": 3600})
	})
	s.Server = httptest.NewServer(s.mux)
	t.Cleanup(s.Close)
	return s
}

func tokenNumber(n int64) string { return "token-" + string(rune('0'+n)) }

func (s *service) config() Config {
	return Config{
		BaseURL: s.URL, TokenURL: s.URL + "/token", ClientID: testID, ClientSecret: testSecret,
		Retry:     RetryConfig{MaxAttempts: 3, InitialBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond},
		RateLimit: RateLimitConfig{Pause: time.Millisecond, MinRate: 1000},
	}
}

func (s *service) client(t testing.TB, change ...func(*Config)) *Client {
	t.Helper()
	cfg := s.config()
	for _, f := range change {
		f(&cfg)
	}
	return newTestClient(t, cfg)
}

func newTestClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c := testkit.Must(New(cfg))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(status int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, status, ErrorResponse{Message: message})
	}
}

// inOrder answers the n-th request with the n-th handler, the last one for all
// that follow.
func inOrder(count *atomic.Int64, handlers ...http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := int(count.Add(1))
		handlers[min(n, len(handlers))-1](w, r)
	}
}

func ok(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusOK)
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func testMessageRequest() SendMessageRequest {
	return SendMessageRequest{
		TenantID: testTenant, EndpointID: testEndpoint, MessageType: "iso:11783:-10:taskdata:zip",
		IsPublish: true, Payload: []byte("payload"),
	}
}

func testPutRequest() PutEndpointRequest {
	return PutEndpointRequest{
		Name: "Hof Müller", ApplicationID: testEndpoint, SoftwareVersionID: testContext,
		Capabilities:  []EndpointCapability{{MessageType: "img:png", Direction: DirectionSendReceive}},
		Subscriptions: []EndpointSubscription{{MessageType: "img:png"}},
		EndpointType:  EndpointTypeCloudSoftware,
	}
}

func testEndpointAnswer() map[string]any {
	return map[string]any{
		"id": testEndpoint, "external_id": "farm:1", "endpoint_type": "cloud_software", "tenant_id": testTenant,
		"application_id": testEndpoint, "software_version_id": testContext,
		"capabilities": []any{map[string]any{"message_type": "img:png", "direction": "SEND"}},
	}
}

// inProcess is a transport that calls a handler directly, without a network, so
// that a test in a synctest bubble is never blocked on one. Bodies of answers
// made with stream follow the request's context.
type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	r := req.Clone(req.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// offline is a client without a network and the defaults of the retry policy.
func offline(t testing.TB, mux *http.ServeMux, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{
		BaseURL: "https://gateway.example", TokenURL: "https://auth.example/token",
		ClientID: testID, ClientSecret: testSecret, Transport: inProcess{mux},
	}
	for _, f := range change {
		f(&cfg)
	}
	return newTestClient(t, cfg)
}

// piping is a client of a service behind TLS on pipes, with the defaults of the configuration.
func piping(t testing.TB, mux *http.ServeMux, http2 bool) *Client {
	t.Helper()
	network := memnet.New()
	l, err := network.Listen("127.0.0.1:443") // the certificate's address
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	server.Listener, server.EnableHTTP2 = l, http2
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	transport := &http.Transport{
		DialContext: network.Dial, ForceAttemptHTTP2: http2,
		TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return newTestClient(t, Config{
		BaseURL: server.URL, TokenURL: server.URL + "/token", ClientID: testID, ClientSecret: testSecret, Transport: transport,
	})
}

func offlineMux() (*http.ServeMux, *atomic.Int64) {
	mux, n := http.NewServeMux(), new(atomic.Int64)
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"access_token": tokenNumber(n.Add(1)), "expires_in": 3600})
	})
	return mux, n
}

func wantIs(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error %v does not match %q", err, target)
		}
	}
	for _, s := range []string{testSecret, "s3cret", "token-1", "token-2", "signature"} {
		if err != nil && strings.Contains(err.Error(), s) {
			t.Fatalf("error %q holds %q", err, s)
		}
	}
}

var allSentinels = []error{
	ErrInvalid, ErrNoRecipients, ErrPartialDelivery, ErrBadRequest, ErrUnauthorized, ErrForbidden, ErrNotFound,
	ErrTooLarge, ErrRateLimited, ErrUnavailable, ErrIntermediary, ErrToken, ErrTokenRequest, ErrBadResponse, ErrContentEncoding, ErrRedirect, ErrCertificate, ErrIdle,
	ErrEventTooLarge, ErrPayloadExpired, ErrPayloadTruncated, ErrPayloadSize, ErrClosed,
	context.Canceled, context.DeadlineExceeded,
}

// wantOnly checks that err matches these sentinels and no other.
func wantOnly(t *testing.T, err error, targets ...error) {
	t.Helper()
	wantIs(t, err, targets...)
	for _, s := range allSentinels {
		if errors.Is(err, s) && !slices.Contains(targets, s) {
			t.Fatalf("error %v also matches %q", err, s)
		}
	}
}

// record keeps what requests looked like.
type record struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (r *record) handler(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, req)
		r.bodies = append(r.bodies, string(body))
		r.mu.Unlock()
		next(w, req)
	}
}

func (r *record) all() ([]*http.Request, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*http.Request(nil), r.requests...), append([]string(nil), r.bodies...)
}

// closedAddress is an address on which nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// bytesBody returns a body for a payload in memory.
func bytesBody(p []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}

// roundTripper is a network of one function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
