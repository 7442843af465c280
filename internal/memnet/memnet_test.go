package memnet_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/memnet"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Requests that follow each other at once do not end their connection: the server ends the read that waits beside a handler by a
// deadline that is past, while the next request comes.
func TestRequestsFollowEachOther(t *testing.T) {
	t.Parallel()
	network := memnet.New()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	_ = server.Listener.Close()
	server.Listener = testkit.Must(network.Listen("127.0.0.1:0"))(t)
	server.Start()
	defer server.Close()
	transport := &http.Transport{DialContext: network.Dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 20_000 {
		resp := testkit.Must(client.Post(server.URL, "text/plain", strings.NewReader("x")))(t)
		testkit.Must(io.ReadAll(resp.Body))(t)
		testkit.NoError(t, resp.Body.Close())
	}
}
