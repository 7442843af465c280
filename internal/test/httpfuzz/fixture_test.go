package httpfuzz

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret = "client-secret-of-the-fuzz-test"
	token  = "access-token-of-the-fuzz-test"
)

// script is a host that answers each connection with the same bytes.
type script struct {
	net.Listener
	answer atomic.Pointer[[]byte]

	mu       sync.Mutex
	requests []*http.Request
}

func newScript(tb testing.TB, answer string) *script {
	tb.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(tb)
	s := &script{Listener: l}
	s.say([]byte(answer))
	var open sync.WaitGroup
	open.Go(func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { s.serve(conn) }) // ends with the connection
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return s
}

func (s *script) say(answer []byte) { s.answer.Store(&answer) }

// serve reads one request, answers, and closes.
func (s *script) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	if _, err := conn.Write(*s.answer.Load()); err != nil {
		return
	}
	// What was not read is not to be reset before the client has the answer.
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	}
}

// take returns the requests since the last call.
func (s *script) take() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.requests
	s.requests = nil
	return taken
}

func (s *script) url() string { return "http://" + s.Addr().String() }

// elsewhere is every host that is not ours. It records what it receives.
type elsewhere struct {
	net.Listener
	mu    sync.Mutex
	heard bytes.Buffer
}

func newElsewhere(tb testing.TB) *elsewhere {
	tb.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(tb)
	e := &elsewhere{Listener: l}
	var open sync.WaitGroup
	open.Go(func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { // ends with the connection
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
				part := make([]byte, 64<<10)
				n, _ := conn.Read(part)
				e.mu.Lock()
				e.heard.Write(part[:n])
				e.mu.Unlock()
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil")
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return e
}

// toldSecrets reports what nobody else may hear.
func (e *elsewhere) toldSecrets() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := bytes.ToLower(e.heard.Bytes())
	e.heard.Reset()
	for _, secret := range []string{"authorization:", "cookie:", token, secret} {
		if bytes.Contains(heard, []byte(secret)) {
			return secret
		}
	}
	return ""
}

// hosts are a service, its token endpoint, a payload host, and everybody else.
type hosts struct {
	service, token, payload *script
	elsewhere               *elsewhere
	transport               *http.Transport
}

const goodToken = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" +
	`{"access_token":"` + token + `","token_type":"Bearer","expires_in":3600}`

func newHosts(tb testing.TB) *hosts {
	tb.Helper()
	h := &hosts{service: newScript(tb, ""), token: newScript(tb, goodToken), payload: newScript(tb, ""), elsewhere: newElsewhere(tb)}
	ours := map[string]bool{h.service.Addr().String(): true, h.token.Addr().String(): true, h.payload.Addr().String(): true}
	var d net.Dialer
	h.transport = &http.Transport{
		DisableKeepAlives: true,
		// Whatever it is called, it is one of ours or it is elsewhere.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !ours[address] {
				address = h.elsewhere.Addr().String()
			}
			return d.DialContext(ctx, network, address)
		},
	}
	tb.Cleanup(h.transport.CloseIdleConnections)
	return h
}

// client is a new client of these hosts, which does not wait.
func (h *hosts) client(t *testing.T) *gateway.Client {
	t.Helper()
	client := testkit.Must(gateway.New(gateway.Config{
		BaseURL: h.service.url(), TokenURL: h.token.url() + "/token", ClientID: "fuzz", ClientSecret: secret,
		Transport: h.transport, MaxPayloadSize: 1 << 20, MaxResponseSize: 1 << 20, MaxEventSize: 1 << 16,
		Retry:        gateway.RetryConfig{MaxAttempts: 2, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond, MaxRetryAfter: time.Millisecond},
		RateLimit:    gateway.RateLimitConfig{Pause: time.Millisecond},
		TokenTimeout: testkit.Patience, RequestTimeout: testkit.Patience,
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// clean checks that no other host received a secret, and that no error contains one.
func (h *hosts) clean(t *testing.T, err error) {
	t.Helper()
	if told := h.elsewhere.toldSecrets(); told != "" {
		t.Errorf("another host received %q", told)
	}
	if err == nil {
		return
	}
	for _, text := range []string{secret, token} {
		if bytes.Contains([]byte(err.Error()), []byte(text)) {
			t.Errorf("the error tells %q: %v", text, err)
		}
	}
}
