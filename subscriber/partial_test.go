package subscriber_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// The notice of a payload that is gone waits for a quarantine that is down, also in a full window.
func TestNoticeOfAGonePayloadWaits(t *testing.T) {
	synctest.Test(t, testNoticeOfAGonePayloadWaits)
}

func testNoticeOfAGonePayloadWaits(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, InlineLimit: 10})
	f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 404})
	store := &shelf{}
	store.set(shelfDown)
	cfg := f.config()
	cfg.MaxInFlight, cfg.Payload.RefreshEvery = 1, 50*time.Millisecond
	cfg.Quarantine = subscriber.QuarantineConfig{
		Publisher: store, Retry: subscriber.Backoff{Initial: 2 * time.Millisecond, Max: 10 * time.Millisecond},
	}
	sub := f.subscriber(cfg)
	f.subscribe(sub, subscriber.AllData)
	const gone = 5
	for range gone {
		f.send(typeJSON, random(100))
	}
	testkit.Eventually(f, "all are set aside", func() bool { return sub.Stats().SetAside >= gone && sub.Stats().QuarantineFailures > 0 })
	store.set(nil)
	testkit.Eventually(f, "there is a notice of each", func() bool { return len(store.all()) >= gone })
	seen := map[string]bool{}
	for _, msg := range store.all() {
		seen[msg.Metadata[subscriber.KeyQuarantineMessageIDs]] = true
	}
	if len(seen) != gone || len(store.all()) != gone || f.confirmed() != 0 {
		t.Errorf("%d notices of %d messages, %d confirmed", len(store.all()), len(seen), f.confirmed())
	}
	f.close(sub)
}

// A payload that is gone is set aside, with a notice in the quarantine, and costs one
// reconnect only.
func TestGonePayloadIsSetAside(t *testing.T) {
	synctest.Test(t, testGonePayloadIsSetAside)
}

func testGonePayloadIsSetAside(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, InlineLimit: 10})
	f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 404})
	quarantine := &shelf{}
	cfg := f.config()
	cfg.Payload.RefreshEvery = 50 * time.Millisecond
	cfg.Quarantine.Publisher = quarantine
	sub, messages := f.receive(cfg)
	f.send(typeJSON, random(100))
	f.send(typeJSON, []byte("next"))
	if msg := f.next(messages); string(msg.Payload) != "next" {
		t.Fatalf("got %q", msg.Payload)
	} else {
		msg.Ack()
	}
	f.waitConfirmed(1)
	stats := sub.Stats()
	if stats.SetAside != 1 || stats.Stream.Connects != 2 {
		t.Errorf("set aside %d, connects %d; want 1, and 2", stats.SetAside, stats.Stream.Connects)
	}
	testkit.Eventually(f, "there is a notice", func() bool { return len(quarantine.all()) == 1 })
	if record := quarantine.all()[0]; record.Metadata[subscriber.KeyQuarantineClass] != subscriber.QuarantinePayloadGone || len(record.Payload) > 0 {
		t.Errorf("%v", record.Metadata)
	}
	// It comes again with each connection, and is set aside again without another one.
	for range 3 {
		testkit.Eventually(f, "the reconnects for it are over", func() bool {
			state := sub.Stats().Stream
			return state.Connected && f.server.Streams() == 1 && time.Since(state.Since) > 10*cfg.Payload.RefreshEvery
		})
		before := sub.Stats()
		f.server.CutStreams()
		testkit.Eventually(f, "set aside again", func() bool { return sub.Stats().SetAside > before.SetAside })
		if got, want := sub.Stats().Stream.Connects, before.Stream.Connects+1; got != want {
			t.Errorf("%d connects, want %d", got, want)
		}
	}
	if n := len(quarantine.all()); n != 1 {
		t.Errorf("%d notices", n)
	}
}

// A tenant whose confirmations fail keeps neither the confirmations nor the messages of
// others waiting, whatever its backlog, and no request has those of both.
func TestTenantThatFailsLeavesTheOthersAlone(t *testing.T) {
	for name, fault := range map[string]gatewaytest.Fault{"500": {Status: 500}, "hangs": {Hang: true}, "403": {Status: 403}, "404": {Status: 404}, "lost": {DropAnswer: true}} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true, StrictConfirmations: true})
			other := f.server.AddTenant()
			f.server.Authorize(f.server.Application(), other)
			types := []string{typeJSON}
			from := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "s2", Tenant: other, Send: types})
			f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "r2", Tenant: other, Receive: types, Subscribe: types})
			bad := f.server.Tenant()
			fault.Match = func(r *http.Request) bool { return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), bad) }
			cfg := f.config()
			cfg.Confirm.MaxBacklog, cfg.MaxInFlight = 100, 50
			cfg.Order = subscriber.Unordered
			sub, messages := f.receive(cfg)
			sendOther := func() {
				f.sendRequest(gatewaytest.SendRequest{From: from.ID, MessageType: typeJSON, Payload: []byte("x")})
			}
			sendOther()
			f.ackN(messages, 1)
			f.waitConfirmed(1)
			failing := f.server.Inject(gatewaytest.OpConfirm, fault)
			go func() {
				for msg := range messages {
					msg.Ack()
				}
			}()
			const n = 300
			for range n {
				f.sendN(1)
				sendOther()
			}
			f.waitConfirmed(1 + n)
			failing.Lift()
			f.waitConfirmed(1 + 2*n)
			if got := sub.Stats().Rejected; got != 0 {
				t.Errorf("%d rejected", got)
			}
		})
	}
}
