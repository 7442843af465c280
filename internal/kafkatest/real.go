package kafkatest

import (
	"context"
	"testing"

	"github.com/agrimill/agrimill/internal/kafkatest/broker"
)

// Real is a real Apache Kafka broker behind a proxy.
type Real struct {
	// Proxy is between the clients and the broker, SecureAddr aside.
	Proxy *Proxy

	tb     testing.TB
	broker *broker.Broker
}

// StartReal starts a real broker and stops it when the test ends. Dir and
// Advertise of config are set by it.
func StartReal(tb testing.TB, config broker.Config) *Real {
	tb.Helper()
	r := &Real{tb: tb, Proxy: NewProxy(tb)}
	config.Dir = tb.TempDir()
	config.Advertise = r.Proxy.Addr()
	b, err := broker.Start(context.Background(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Kill) // nobody needs what it has not written yet
	r.broker = b
	r.Proxy.SetTarget(b.Addr())
	return r
}

// Addr returns the address for clients. It stays.
func (r *Real) Addr() string { return r.Proxy.Addr() }

// SecureAddr returns the address of the listener for the users of the
// configuration.
func (r *Real) SecureAddr() string { return r.broker.SecureAddr() }

// Stop stops the broker cleanly.
func (r *Real) Stop() { r.broker.Stop() }

// Kill kills the broker.
func (r *Real) Kill() { r.broker.Kill() }

// Restart starts the broker again, with what it has stored.
func (r *Real) Restart() {
	r.tb.Helper()
	if err := r.broker.Restart(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
}
