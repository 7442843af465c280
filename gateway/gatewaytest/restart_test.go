package gatewaytest_test

import (
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// A port that somebody else has for a moment while the server is down is waited for.
func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	server := gatewaytest.New(t, gatewaytest.Config{})
	address, err := url.Parse(server.BaseURL())
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if other, err := net.Listen("tcp", address.Host); err == nil { // else somebody has it by chance, which is as good
		freed := time.AfterFunc(100*time.Millisecond, func() { _ = other.Close() })
		defer freed.Stop()
	}
	if err := server.Restart(); err != nil {
		t.Errorf("Restart = %v", err)
	}
}
