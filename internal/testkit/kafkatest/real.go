package kafkatest

import (
	"context"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
)

// Real is a real Apache Kafka broker behind a proxy.
type Real struct {
	*broker.Broker
	// Proxy is between the clients and the broker, except for SecureAddr.
	Proxy *Proxy

	tb testing.TB
}

// StartReal starts a real broker, with its own Dir and Advertise, until the test ends.
func StartReal(tb testing.TB, config broker.Config) *Real {
	tb.Helper()
	r := &Real{tb: tb, Proxy: NewProxy(tb)}
	config.Dir = tb.TempDir()
	config.Advertise = r.Proxy.Addr()
	b := testkit.Must(broker.Start(context.Background(), config))(tb)
	tb.Cleanup(b.Kill) // unwritten data is not needed
	r.Broker = b
	r.Proxy.SetTarget(b.Addr())
	return r
}

// Addr returns the address for clients. It does not change.
func (r *Real) Addr() string { return r.Proxy.Addr() }

// Restart starts the broker again with its data.
func (r *Real) Restart() {
	r.tb.Helper()
	if err := r.Broker.Restart(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
}
