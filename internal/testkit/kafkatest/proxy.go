package kafkatest

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
)

// Proxy is a proxy in front of a broker, which must advertise its address.
type Proxy struct{ *faultproxy.Proxy }

// NewProxy starts a proxy without a target, until the test ends.
func NewProxy(tb testing.TB) *Proxy {
	tb.Helper()
	return &Proxy{faultproxy.New(tb)}
}

var errNoTarget = errors.New("the broker is stopped")

// DialBroker dials the broker directly if a client wants to dial the proxy, so that
// an observer is not affected by faults. It is a dial function for kgo.Dialer.
func (p *Proxy) DialBroker(ctx context.Context, network, address string) (net.Conn, error) {
	if address == p.Addr() {
		if address = p.Target(); address == "" {
			return nil, errNoTarget
		}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}
