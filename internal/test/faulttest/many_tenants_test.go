//go:build faults && !race

package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// 10,000 tenants with one message each, and 50 ms until a request for confirmations is answered: a thousand are
// confirmed in a second at least, although no two of them fit into one request. The race detector would take most of
// the time.
func TestTenThousandTenants(t *testing.T) {
	const tenants, first, roundTrip, perSecond = 10_000, 1000, 50 * time.Millisecond, 1000
	g := gatewaytest.New(t, gatewaytest.Config{})
	types := []string{messageType}
	senders := make([]string, 0, tenants)
	for range tenants {
		tenant := g.AddTenant()
		g.Authorize(g.Application(), tenant)
		senders = append(senders, g.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: types}).ID)
		g.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: types, Subscribe: types})
	}
	client := testkit.Must(gateway.New(g.ClientConfig()))(t)
	t.Cleanup(func() { _ = client.Close() })
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: client}, nil))(t)
	t.Cleanup(func() { _ = sub.Close() })
	messages := testkit.Must(sub.Subscribe(t.Context(), messageType))(t)
	go func() { // ends with the subscription
		for msg := range messages {
			msg.Ack()
		}
	}()
	g.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Delay: roundTrip})
	for _, sender := range senders {
		testkit.Must(g.Send(gatewaytest.SendRequest{From: sender, MessageType: messageType, Payload: []byte("small")}))(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience)
	defer cancel()
	confirmed := func(n int) time.Time {
		if err := g.WaitConfirmed(ctx, n); err != nil {
			t.Fatalf("%v: %d are confirmed", err, sub.Stats().Confirmed)
		}
		return time.Now()
	}
	began := confirmed(first)
	rate := (tenants - first) / confirmed(tenants).Sub(began).Seconds()
	t.Logf("%.0f are confirmed a second, in %d requests", rate, sub.Stats().ConfirmRequests)
	if rate < perSecond {
		t.Errorf("%.0f are confirmed a second, want %d", rate, perSecond)
	}
}
