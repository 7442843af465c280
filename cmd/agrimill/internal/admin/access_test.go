package admin_test

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
)

const readToken = "a-token-that-may-read"

// safeBuffer is a log that may be read while it is written.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// everything that tells something.
var everything = []string{
	"/metrics", "/api/status", "/api/tenants", "/api/poison", "/api/poison/groups", "/api/trace", "/api/why", "/api/history", "/api/config",
}

// Who may not read gets the page without data, and the probes without reasons.
func TestReadToken(t *testing.T) {
	var log safeBuffer
	source := &plainSource{queue: &memoryQueue{}, snapshot: admin.Snapshot{Checks: []admin.Check{{Name: "sink farm", Message: "barn-7 is down"}}}}
	server := serve(t, admin.Config{
		Token: testToken, ReadToken: readToken, PProf: true, Gatherer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, source)
	for _, path := range everything {
		a := get(t, server, path).want(t, http.StatusUnauthorized)
		if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate is %q", path, a.header.Get("WWW-Authenticate"))
		}
		get(t, server, path, header("X-Forwarded-User", "mallory")).want(t, http.StatusUnauthorized)
		for _, token := range []string{readToken, testToken} {
			if a := get(t, server, path, bearer(token)); a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
				t.Errorf("%s with a token: %d", path, a.status)
			}
		}
	}
	for _, path := range []string{"/", "/page/page.css", "/page/main.js", "/page/favicon.svg", "/healthz"} {
		get(t, server, path).want(t, http.StatusOK)
	}
	if a := get(t, server, "/readyz").want(t, http.StatusServiceUnavailable, `"ready":false`, `"checks":[]`); strings.Contains(a.body, "barn-7") {
		t.Errorf("readyz tells everybody: %s", a.body)
	}
	get(t, server, "/readyz", bearer(readToken)).want(t, http.StatusServiceUnavailable, "barn-7 is down")
	source.snapshot.Error = "unexpected EOF"
	if a := get(t, server, "/healthz").want(t, http.StatusServiceUnavailable); strings.Contains(a.body, "unexpected EOF") {
		t.Errorf("healthz tells everybody: %s", a.body)
	}
	get(t, server, "/healthz", bearer(readToken)).want(t, http.StatusServiceUnavailable, "unexpected EOF")

	// What changes something, or shows what is in a message or in memory, needs the other token.
	for _, path := range []string{"/api/poison/replay", "/api/poison/drop", "/api/poison/stop"} {
		request(t, server, http.MethodPost, path, `{"ids":["1"]}`, asJSON(), bearer(readToken)).want(t, http.StatusForbidden, "may only read")
	}
	for _, path := range []string{"/api/poison/contents?id=1", "/api/contents?id=1", "/debug/pprof/", "/debug/pprof/heap"} {
		get(t, server, path, bearer(readToken)).want(t, http.StatusForbidden, "may only read")
	}

	// Guesses are limited, for both tokens together.
	for range 5 {
		get(t, server, "/api/status", bearer("wrong")).want(t, http.StatusUnauthorized)
	}
	get(t, server, "/api/status", bearer(readToken)).want(t, http.StatusTooManyRequests)
	get(t, server, "/debug/pprof/", bearer(testToken)).want(t, http.StatusTooManyRequests)
	if text := log.String(); strings.Contains(text, readToken) || strings.Contains(text, testToken) || strings.Count(text, "wrong token") != 5 {
		t.Errorf("the log: %s", text)
	}
}

// A read token alone lets nobody replay.
func TestReadTokenAlone(t *testing.T) {
	server := serve(t, admin.Config{ReadToken: readToken}, &plainSource{queue: &memoryQueue{}})
	status := decode[admin.Status](t, get(t, server, "/api/status", bearer(readToken)).want(t, http.StatusOK))
	if status.Replay {
		t.Error("the page offers a replay")
	}
	for _, token := range []string{readToken, ""} {
		request(t, server, http.MethodPost, "/api/poison/replay", `{"ids":["1"]}`, asJSON(), bearer(token)).want(t, http.StatusForbidden, "no token is configured")
	}
}

// The header of a proxy is believed from the proxies alone, and if there is one of it.
func TestUserHeader(t *testing.T) {
	user := header("X-Forwarded-User", "anna")
	for name, test := range map[string]struct {
		proxies []string
		want    int
	}{
		"loopback by default": {nil, http.StatusOK},
		"the address":         {[]string{"10.0.0.7", "127.0.0.1"}, http.StatusOK},
		"the network":         {[]string{"127.0.0.0/8"}, http.StatusOK},
		"mapped":              {[]string{"::ffff:127.0.0.1"}, http.StatusOK},
		"another":             {[]string{"10.0.0.0/8", "::1"}, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, admin.Config{UserHeader: "x-forwarded-user", Proxies: test.proxies}, &plainSource{})
			get(t, server, "/api/status", user).want(t, test.want)
		})
	}
	var log safeBuffer
	queue := &memoryQueue{}
	queue.add("1", nil)
	server := serve(t, admin.Config{UserHeader: "X-Forwarded-User", Token: testToken, Logger: slog.New(slog.NewTextHandler(&log, nil))}, &plainSource{queue: queue})
	get(t, server, "/api/status").want(t, http.StatusUnauthorized)
	get(t, server, "/api/status", header("X-Forwarded-User", "")).want(t, http.StatusUnauthorized)
	get(t, server, "/api/status", user, func(r *http.Request) { r.Header.Add("X-Forwarded-User", "mallory") }).want(t, http.StatusUnauthorized)
	get(t, server, "/api/status", bearer(testToken)).want(t, http.StatusOK)
	drop := func(changes ...change) answer {
		return request(t, server, http.MethodPost, "/api/poison/drop", `{"ids":["1"]}`, append(changes, asJSON())...)
	}
	drop(user).want(t, http.StatusUnauthorized)
	drop(user, bearer(testToken)).want(t, http.StatusAccepted, `"drop"`)
	if job := ended(t, server, bearer(testToken)); job.Dropped != 1 {
		t.Errorf("%+v", job)
	}
	testkit.Contains(t, log.String(), `msg="admin: poisoned messages dropped" user=anna remote=127.0.0.1:`)
}

// A certificate that is renewed is shown without a restart; one that does not fit is not.
func TestCertificateIsRenewed(t *testing.T) {
	dir := t.TempDir()
	first, second := testkit.NewCertificate(t), testkit.NewCertificate(t)
	first.Write(t, dir)
	var now atomic.Int64
	var log safeBuffer
	server := serve(t, admin.Config{
		TLS:    admin.TLS{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")},
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return time.Unix(now.Load(), 0) },
	}, &plainSource{})
	trusts := func(c testkit.Certificate) error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c.Client()}}
		response, err := client.Do(testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+server.Addr()+"/healthz", nil))(t))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	write := func(name string, data []byte) {
		t.Helper()
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		now.Add(1)
	}
	testkit.NoError(t, trusts(first))
	if err := trusts(second); err == nil {
		t.Error("the test would not see another certificate")
	}
	write("cert.pem", second.Cert) // and not yet the key
	for range 3 {
		if err := trusts(first); err != nil {
			t.Errorf("while the files do not match: %v", err)
		}
		now.Add(1)
	}
	if n := strings.Count(log.String(), "the new certificate cannot be used"); n != 1 {
		t.Errorf("%d lines in the log, want 1: %s", n, log.String())
	}
	write("key.pem", second.Key)
	if err := trusts(second); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	testkit.NoError(t, os.Remove(filepath.Join(dir, "key.pem")))
	now.Add(1)
	if err := trusts(second); err != nil {
		t.Errorf("without a key: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "the certificate is renewed") || !strings.Contains(text, "tls=true") || strings.Contains(text, "PRIVATE") {
		t.Errorf("the log: %s", text)
	}

	// Nobody gets an answer without TLS.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}}
	response := testkit.Must(client.Do(testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr()+"/api/status", nil))(t)))(t)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("over HTTP: %s", response.Status)
	}
}
