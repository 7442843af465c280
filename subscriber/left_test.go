package subscriber_test

import (
	"context"
	"errors"
	"net/http"
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

func (f *fixture) sendNumbered(from, n int, recipient gateway.Endpoint) {
	f.Helper()
	for i := range n {
		f.send(typeJSON, []byte(strings.Repeat("x", from+i+1)), recipient)
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
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
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

// Messages that are left because of the confirmations of their tenant come again in order, also
// when its confirmations are dropped.
func TestLeftMessagesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status, backlog, more int
	}{{500, 100, 50}, {403, 40, 10}} { // a tenant that is refused for good takes long
		status := test.status
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			other := f.server.AddTenant()
			f.server.Authorize(f.server.Application(), other)
			types := []string{typeJSON}
			from := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "s2", Tenant: other, Send: types})
			f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "r2", Tenant: other, Receive: types, Subscribe: types})
			bad := f.server.Tenant()
			failing := f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{
				Status: status, Match: func(r *http.Request) bool { return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), bad) },
			})
			cfg := f.config()
			cfg.Confirm.MaxBacklog, cfg.Confirm.RefusedFor, cfg.MaxInFlight = test.backlog, time.Second, test.backlog/2
			sub := f.subscriber(cfg)
			got := newOrder(f.subscribe(sub, subscriber.AllData))
			sendOther := func() {
				f.sendRequest(gatewaytest.SendRequest{From: from.ID, MessageType: typeJSON, Payload: []byte("x")})
			}
			sent := 0
			send := func() {
				f.sendNumbered(sent, 1, f.receiver)
				sendOther()
				sent++
			}
			testkit.Eventually(t, "messages are left, and more come after that", func() bool {
				for range 4 { // faster than they are refused
					send()
				}
				return sub.Stats().Abandoned >= int64(test.more) && (status == 500 || sub.Stats().Rejected > 0)
			})
			for range test.more {
				send()
			}
			if status == 500 {
				failing.Lift()
			}
			for range test.more {
				send()
			}
			testkit.Eventually(t, "everything has come", func() bool {
				sendOther() // so that it is the tenant alone that is refused
				got.mu.Lock()
				defer got.mu.Unlock()
				return len(got.got[f.receiver.ID]) == sent
			})
			got.check(t, f.receiver.ID, sent)
		})
	}
}
