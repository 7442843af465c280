package subscriber_test

import (
	"sync/atomic"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestDirectoryIsKeptCurrent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InMemory: true}) // nobody takes its port while it is stopped
	directory := gateway.NewDirectory(f.client)
	cfg := f.config()
	cfg.Tenants = directory
	var connects, events atomic.Int64
	cfg.Hooks.Connected = func() { connects.Add(1) }
	cfg.Hooks.Event = func(gateway.Event) { events.Add(1) }
	_, messages := f.receive(cfg)
	testkit.Eventually(f, "the directory is filled after the connect", func() bool {
		tenant, ok := directory.TenantOf(f.receiver.ID)
		return ok && tenant == f.server.Tenant()
	})
	// By events, while the stream is open.
	added := f.server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeJSON}})
	testkit.Eventually(f, "a new endpoint is known", func() bool { _, ok := directory.TenantOf(added.ID); return ok })
	f.server.DeleteEndpointByUser(added.ID)
	testkit.Eventually(f, "a deleted endpoint is gone", func() bool { _, ok := directory.TenantOf(added.ID); return !ok })
	// By synchronisation, after the stream was down.
	f.server.Stop()
	missed := f.server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeJSON}})
	testkit.NoError(t, f.server.Restart())
	testkit.Eventually(f, "what happened meanwhile is known", func() bool { _, ok := directory.TenantOf(missed.ID); return ok })
	f.sendN(1)
	f.ackN(messages, 1)
	f.waitConfirmed(1)
	if connects.Load() < 2 || events.Load() == 0 {
		t.Errorf("hooks saw %d connects and %d events", connects.Load(), events.Load())
	}
}
