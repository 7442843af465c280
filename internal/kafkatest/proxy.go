package kafkatest

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/agrimill/agrimill/internal/faultproxy"
)

// Proxy is a proxy in front of a broker, for faults on the way. The broker has
// to tell its clients the proxy's address.
type Proxy struct{ *faultproxy.Proxy }

// NewProxy starts a proxy without target: connections are closed at once. It is
// closed when the test ends.
func NewProxy(tb testing.TB) *Proxy {
	tb.Helper()
	return &Proxy{faultproxy.New(tb)}
}

var errNoTarget = errors.New("the broker is stopped")

// DialBroker dials the broker itself where its clients mean the proxy, so that
// an observer does not see the faults on the way. It is a kgo.Dialer's function.
func (p *Proxy) DialBroker(ctx context.Context, network, address string) (net.Conn, error) {
	if address == p.Addr() {
		if address = p.Target(); address == "" {
			return nil, errNoTarget
		}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}
