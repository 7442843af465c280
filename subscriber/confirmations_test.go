package subscriber_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

func TestConfirmationsAreBatchedByCount(t *testing.T) {
	synctest.Test(t, testConfirmationsAreBatchedByCount)
}

func testConfirmationsAreBatchedByCount(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.Order = subscriber.Unordered
	cfg.Confirm.MaxBatch = 10
	cfg.Confirm.MaxAge = time.Hour // age must play no part
	var reported atomic.Int64
	cfg.Hooks.Confirmed = func(tenant string, confirmations []gateway.MessageConfirmation) {
		if tenant != f.server.Tenant() || len(confirmations) != 10 {
			t.Errorf("%d confirmations of tenant %s reported", len(confirmations), tenant)
		}
		reported.Add(int64(len(confirmations)))
	}
	_, messages := f.receive(cfg)
	f.sendN(100)
	f.ackN(messages, 100)
	f.waitConfirmed(100)
	if got := f.server.Stats(gatewaytest.OpConfirm).Requests; got != 10 {
		t.Errorf("%d requests for 100 confirmations in batches of 10", got)
	}
	testkit.Eventually(f, "the hook saw all", func() bool { return reported.Load() == 100 })
}

func TestLostConfirmationAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Times: 1})
	sub := f.subscriber(f.config())
	f.sendN(1)
	f.ackN(f.subscribe(sub, subscriber.AllData), 1)
	testkit.Eventually(f, "confirmed twice", func() bool {
		l := f.server.Ledger()
		return len(l) == 1 && len(l[0].Confirmations) == 2
	})
	testkit.Eventually(f, "nothing pending", func() bool { return sub.Stats().PendingConfirmations == 0 })
}

func TestIntakePausesWhenTheBacklogIsFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	outage := f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
	cfg := f.config()
	cfg.Confirm.MaxBacklog = 10
	cfg.MaxInFlight = 20 // what may be open already when the backlog becomes full
	_, messages := f.receive(cfg)
	f.sendN(200)
	acked := len(f.ackN(messages, 10)) // their confirmations may wait
	for stalled := false; !stalled; {
		select {
		case msg := <-messages:
			msg.Ack()
			acked++
		case <-time.After(quiet):
			stalled = true
		}
	}
	// What had been opened before the backlog was full still passes.
	if acked > 30 {
		t.Errorf("%d messages passed, want the 10 whose confirmations may wait and at most 20 that were open", acked)
	}
	if n := f.confirmed(); n != 0 {
		t.Errorf("%d confirmed during the outage", n)
	}
	outage.Lift()
	f.ackN(messages, 200-acked)
	f.waitConfirmed(200)
}

func TestBadConfirmationsAreBisected(t *testing.T) { synctest.Test(t, testBadConfirmationsAreBisected) }

func testBadConfirmationsAreBisected(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, StrictConfirmations: true})
	cfg := f.config()
	cfg.Confirm.MaxBatch = 64
	cfg.Confirm.MaxAge = time.Hour
	cfg.Order = subscriber.Unordered
	var mu sync.Mutex
	rejected := map[string]bool{}
	cfg.Hooks.ConfirmationRejected = func(tenant string, c gateway.MessageConfirmation, err error) {
		mu.Lock()
		defer mu.Unlock()
		if !errors.Is(err, gateway.ErrBadRequest) || tenant != f.server.Tenant() {
			t.Errorf("rejected %v of tenant %s with %v", c, tenant, err)
		}
		rejected[c.MessageID] = true
	}
	sub, messages := f.receive(cfg)
	testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
	// One event that the service does not know, among 63 that it does.
	unknown := "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a001"
	f.sendN(30)
	f.server.EmitRaw(f.server.Application(), []byte(`event: MESSAGE_RECEIVED
data: {"event_type":"MESSAGE_RECEIVED","id":"`+unknown+`","app_message_id":"a","message_type":"`+typeJSON+`","sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":"`+f.receiver.ID+`","tenant_id":"`+f.server.Tenant()+`"}

`))
	f.sendN(33)
	f.ackN(messages, 64)
	f.waitConfirmed(63)
	testkit.Eventually(f, "the bad one is reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(rejected) > 0
	})
	mu.Lock()
	defer mu.Unlock()
	if len(rejected) != 1 || !rejected[unknown] || sub.Stats().Rejected != 1 {
		t.Errorf("rejected %v, want only %s", rejected, unknown)
	}
	// 1 + 2·log2(64): both halves of every level.
	if got := f.server.Stats(gatewaytest.OpConfirm).Requests; got > 13 {
		t.Errorf("%d requests to find one bad confirmation of 64, want at most 13", got)
	}
}

func TestForbiddenTenantIsDroppedAndOthersGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	tenant := f.server.AddTenant()
	f.server.Authorize(f.server.Application(), tenant)
	from := f.server.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: []string{typeJSON}})
	f.server.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: []string{typeJSON}, Subscribe: []string{typeJSON}})
	cfg := f.config()
	cfg.Confirm.RefusedFor = 100 * time.Millisecond
	sub, messages := f.receive(cfg)
	f.sendRequest(gatewaytest.SendRequest{From: from.ID, MessageType: typeJSON, Payload: []byte("x")})
	msg := f.next(messages)
	f.server.Revoke(f.server.Application(), tenant, gateway.ScopeEndpointsManage)
	msg.Ack()
	f.sendN(5)
	f.ackN(messages, 5)
	f.waitConfirmed(5)
	testkit.Eventually(f, "the revoked tenant's is reported", func() bool { return sub.Stats().Rejected == 1 })
}

func TestTenantIsLookedUpWhenTheEventDoesNotTell(t *testing.T) {
	t.Parallel()
	for name, directory := range map[string]bool{"lookup": false, "directory": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			f.server.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 2})
			cfg := f.config()
			if directory {
				cfg.Tenants = newDirectory(t, f.client)
			}
			sub, messages := f.receive(cfg)
			testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
			emit := func(id, endpoint string) {
				f.server.EmitRaw(f.server.Application(), []byte(`event: MESSAGE_RECEIVED
data: {"event_type":"MESSAGE_RECEIVED","id":"`+id+`","app_message_id":"a","message_type":"`+typeJSON+`","sent_at":"2026-01-01T00:00:00Z","payload":"eA==","receiving_endpoint_id":"`+endpoint+`"}

`))
			}
			emit("6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a001", f.receiver.ID)
			emit("6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1a002", "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1afff")
			f.ackN(messages, 2)
			testkit.Eventually(f, "one confirmed, one of an unknown endpoint dropped", func() bool {
				s := sub.Stats()
				return s.Confirmed == 1 && s.Rejected == 1 && s.PendingConfirmations == 0
			})
		})
	}
}
