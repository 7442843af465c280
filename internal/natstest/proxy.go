package natstest

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/faultproxy"
)

// Proxy is a proxy in front of a server, for faults on the way.
type Proxy struct{ *faultproxy.Proxy }

// NewProxy starts a proxy to an address (host:port, or a URL of Server). It is
// closed when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{faultproxy.New(tb)}
	p.SetTarget(strings.TrimPrefix(target, "nats://"))
	return p
}

// URL returns the address of the proxy as a NATS URL.
func (p *Proxy) URL() string { return "nats://" + p.Addr() }
