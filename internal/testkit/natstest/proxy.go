package natstest

import (
	"net"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
)

// Proxy is a proxy in front of a server that injects faults.
type Proxy struct{ *faultproxy.Proxy }

// NewProxy starts a proxy for an address (host:port, or a URL of Server), until the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{faultproxy.New(tb)}
	p.SetTarget(strings.TrimPrefix(target, "nats://"))
	return p
}

// NewLine is NewProxy for a server of [Bubble]. Connect with natsgo.InProcessServer.
func NewLine(tb testing.TB, s *Server) *Proxy {
	return &Proxy{faultproxy.InMemory(tb, s.InProcessConn)}
}

// InProcessConn implements natsgo.InProcessConnProvider.
func (p *Proxy) InProcessConn() (net.Conn, error) { return p.Connect(), nil }

// URL returns the address of the proxy as a NATS URL.
func (p *Proxy) URL() string { return "nats://" + p.Addr() }
