package memnet_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/memnet"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Requests that follow each other at once do not end their connection, which may be one of TLS: the server ends the read that waits
// beside a handler by a deadline that is past, while the next request comes.
func TestRequestsFollowEachOther(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*httptest.Server){"plain": (*httptest.Server).Start, "TLS": (*httptest.Server).StartTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network := memnet.New()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			}))
			_ = server.Listener.Close()
			server.Listener = testkit.Must(network.Listen("127.0.0.1:0"))(t)
			start(server)
			defer server.Close()
			dials := 0
			transport := &http.Transport{
				TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig,
				DialContext: func(ctx context.Context, protocol, address string) (net.Conn, error) {
					dials++
					return network.Dial(ctx, protocol, address)
				},
			}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for range 5_000 {
				resp := testkit.Must(client.Post(server.URL, "text/plain", strings.NewReader("x")))(t)
				testkit.Must(io.ReadAll(resp.Body))(t)
				testkit.NoError(t, resp.Body.Close())
			}
			if dials != 1 {
				t.Errorf("%d connections, want one", dials)
			}
		})
	}
}
