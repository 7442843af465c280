//go:build unix

package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A process without a free file descriptor opens the stream nevertheless: idle connections of other
// calls give theirs back. The client runs in a process of its own, whose limit is low.
func TestIdleConnectionsLeaveTheirDescriptors(t *testing.T) {
	t.Parallel()
	const variable, calls = "GATEWAY_TEST_DESCRIPTORS", 20
	if base := os.Getenv(variable); base != "" {
		openStreamWithoutDescriptors(t, base, calls)
		return
	}
	var together sync.WaitGroup // so that each call has a connection of its own
	together.Add(calls)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"access_token":"t"}`))
	})
	mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) {
		together.Done()
		together.Wait()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"tenants":[]}`))
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	child.Env = append(os.Environ(), variable+"="+s.URL)
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func openStreamWithoutDescriptors(t *testing.T, base string, calls int) {
	var limit syscall.Rlimit
	testkit.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	limit.Cur = 64
	testkit.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	c := testkit.Must(gateway.New(gateway.Config{BaseURL: base, TokenURL: base + "/token", ClientID: "id", ClientSecret: "secret"}))(t)
	defer func() { _ = c.Close() }()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := c.ListAuthorizedTenants(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break // the last one is taken
		}
		defer func() { _ = f.Close() }()
	}
	stream, err := c.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{})
	if err != nil {
		t.Fatalf("got %v, want a stream in place of idle connections", err)
	}
	_ = stream.Close()
}
