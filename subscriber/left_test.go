package subscriber_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// lookup is a resolver that does not know the tenant of one endpoint while it refuses.
type lookup struct {
	endpoint, tenant string
	refuses          atomic.Bool
}

func (l *lookup) TenantOf(endpointID string) (string, bool) {
	if l.refuses.Load() && strings.EqualFold(endpointID, l.endpoint) {
		return "", false
	}
	return l.tenant, true
}

func (l *lookup) Sync(context.Context) error {
	if l.refuses.Load() {
		return errors.New("refused")
	}
	return nil
}

// order acks what comes and records it by endpoint, the first copy of each message.
type order struct {
	mu   sync.Mutex
	seen map[string]bool
	got  map[string][]string
}

func newOrder(messages <-chan *message.Message) *order {
	o := &order{seen: map[string]bool{}, got: map[string][]string{}}
	go func() { // ends with the subscription
		for msg := range messages {
			endpoint := msg.Metadata[gateway.KeyReceivingEndpointID]
			o.mu.Lock()
			if !o.seen[msg.UUID] {
				o.seen[msg.UUID] = true
				o.got[endpoint] = append(o.got[endpoint], string(msg.Payload))
			}
			o.mu.Unlock()
			msg.Ack()
		}
	}()
	return o
}

// check reports whether exactly n messages came of the endpoint, as they were sent.
func (o *order) check(t *testing.T, endpoint string, n int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	got := o.got[endpoint]
	if len(got) != n {
		t.Errorf("%d of %d messages", len(got), n)
	}
	for i, payload := range got {
		if want := strings.Repeat("x", i+1); payload != want {
			t.Fatalf("message %d is number %d", i, len(payload)-1)
		}
	}
}

// Endpoints whose tenant cannot be looked up do not take the backlog from the others. What was
// left because of them comes again, in order.
func TestRefusedLookupLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOfflineGateway(t, nil)
		g.tenantOf = func(int) string { return "" }
		tenants := &lookup{endpoint: offlineID(offlineEndpointID, 0), tenant: offlineID(offlineTenantID, 0)}
		cfg := subscriber.Config{MaxInFlight: 50, Tenants: tenants}
		cfg.Confirm.MaxBacklog = 100
		sub, messages := g.subscribe(cfg)
		got := newOrder(messages)
		tenants.refuses.Store(true)
		const n = 300
		for i := range 2 * n {
			g.message(i, i%2, i, typeJSON, []byte(strings.Repeat("x", i/2+1)))
		}
		time.Sleep(20 * time.Second)
		waits := func() (w subscriber.Waits) {
			for _, w := range sub.Stats().Waits {
				if w.Kind == subscriber.WaitTenant {
					return w
				}
			}
			return w
		}
		if w := waits(); w.Count != 1 || len(w.Longest) != 1 || w.Longest[0].What != "" || w.Longest[0].Count == 0 {
			t.Errorf("the confirmations without a tenant do not wait: %+v", w)
		}
		if s := sub.Stats(); g.unconfirmed() != n || s.PendingConfirmations > 250 || s.Abandoned == 0 {
			t.Errorf("%d are not confirmed, want %d; %d confirmations pending, %d messages left", g.unconfirmed(), n, s.PendingConfirmations, s.Abandoned)
		}
		tenants.refuses.Store(false)
		time.Sleep(2 * time.Minute)
		for e := range 2 {
			got.check(t, offlineID(offlineEndpointID, e), n)
		}
		if s := sub.Stats(); g.unconfirmed() != 0 || s.Rejected != 0 || s.Stream.Connects > 3 || waits().Count != 0 {
			t.Errorf("%d are not confirmed, %d rejected, %d connects, waits %+v", g.unconfirmed(), s.Rejected, s.Stream.Connects, waits())
		}
	})
}

// What became known by other means than a listing is confirmed although the listing fails.
func TestTenantBecomesKnownWhileTheLookupFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{OmitOptionalFields: true})
	tenants := &learned{tenant: f.server.Tenant()}
	cfg := f.config()
	cfg.Tenants = tenants
	sub, messages := f.receive(cfg)
	f.sendN(3)
	f.ackN(messages, 3)
	testkit.Eventually(t, "the lookup fails", func() bool { return sub.Stats().ConfirmFailures > 1 })
	tenants.known.Store(true)
	f.waitConfirmed(3)
}

// learned is a resolver that cannot list tenants.
type learned struct {
	tenant string
	known  atomic.Bool
}

func (l *learned) TenantOf(string) (string, bool) { return l.tenant, l.known.Load() }

func (l *learned) Sync(context.Context) error { return errors.New("refused") }
