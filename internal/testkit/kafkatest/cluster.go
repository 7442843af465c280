package kafkatest

import (
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Cluster is an in-process cluster of one broker, behind a proxy. Stopped, it keeps its data.
type Cluster struct {
	// Proxy is between the clients and the broker.
	Proxy *Proxy

	tb      testing.TB
	options []kfake.Opt
	fake    *kfake.Cluster // nil while stopped
	target  string
}

// Start starts a cluster and stops it when the test ends.
func Start(tb testing.TB, options ...kfake.Opt) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, Proxy: NewProxy(tb)}
	c.options = append([]kfake.Opt{
		kfake.NumBrokers(1),
		kfake.DefaultNumPartitions(1),
		kfake.DataDir(tb.TempDir()),
		// The broker advertises the address on which it believes it is listening.
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			listener, err := net.Listen(network, "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			c.target = listener.Addr().String()
			return behind{Listener: listener, addr: c.Proxy.ListenAddr()}, nil
		}),
	}, options...)
	c.Restart()
	tb.Cleanup(c.Stop)
	return c
}

// Fake returns the underlying cluster, for its faults, until Restart.
func (c *Cluster) Fake() *kfake.Cluster { return c.fake }

// Addr returns the address for clients. It does not change.
func (c *Cluster) Addr() string { return c.Proxy.Addr() }

// Stop stops the broker and closes its connections. Its data is kept.
func (c *Cluster) Stop() {
	c.tb.Helper()
	if c.fake == nil {
		return
	}
	c.Proxy.SetTarget("")
	c.fake.Close()
	c.fake = nil
	c.Proxy.Cut()
}

// Restart starts the broker again.
func (c *Cluster) Restart() {
	c.tb.Helper()
	if c.fake != nil {
		return
	}
	fake, err := kfake.NewCluster(c.options...)
	if err != nil {
		c.tb.Fatalf("start Kafka in the process: %v", err)
	}
	c.fake = fake
	c.Proxy.SetTarget(c.target)
}

// behind is a listener behind a proxy.
type behind struct {
	net.Listener
	addr net.Addr
}

// Addr returns the proxy's address.
func (b behind) Addr() net.Addr { return b.addr }
