package gatewaytest_test

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A request that is held when the server stops has no response: a 200 would say that the
// message was accepted.
func TestStopAnswersNothing(t *testing.T) {
	t.Parallel()
	server, caller := start(t, gatewaytest.Config{})
	sender, _ := pairOf(server)
	for name, fault := range map[string]gatewaytest.Fault{
		"hangs":   {Hang: true},
		"delayed": {Delay: time.Hour},
		"stops":   {HangAfter: 1, Status: http.StatusOK, Body: []byte("[]")},
		"drips":   {BytesPerSecond: 1, Status: http.StatusOK, Body: make([]byte, 1000)},
	} {
		for range 20 {
			injection := server.Inject(gatewaytest.OpSendMessage, fault)
			replied := make(chan error, 1)
			req := caller.request(http.MethodPost, "/messages", []byte("{}"), caller.messageHeaders(sender.ID, nil))
			req.Close = true // the server that comes back does not know the connection
			go func() {      // ends when the server stops
				r, err := caller.send(req)
				replied <- errors.Join(err, r.err)
			}()
			testkit.Eventually(t, "the request is held", func() bool { return injection.Hits() > 0 })
			server.Stop()
			if err := <-replied; err == nil {
				t.Errorf("%s: a response was complete", name)
			}
			injection.Lift()
			testkit.NoError(t, server.Restart())
		}
	}
}

// A port that somebody else has for a moment while the server is down is waited for.
func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	server := gatewaytest.New(t, gatewaytest.Config{})
	address := testkit.Must(url.Parse(server.BaseURL()))(t)
	server.Stop()
	if other, err := net.Listen("tcp", address.Host); err == nil { // else somebody has it by chance, which is as good
		freed := time.AfterFunc(100*time.Millisecond, func() { _ = other.Close() })
		defer freed.Stop()
	}
	if err := server.Restart(); err != nil {
		t.Errorf("Restart = %v", err)
	}
}
