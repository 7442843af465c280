package subscriber_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// secondTenant adds a tenant, and returns what sends a message as it.
func (f *fixture) secondTenant() (tenant string, send func(payload []byte)) {
	tenant = f.server.AddTenant()
	f.server.Authorize(f.server.Application(), tenant)
	types := []string{typeJSON}
	from := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "s2", Tenant: tenant, Send: types})
	f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "r2", Tenant: tenant, Receive: types, Subscribe: types})
	return tenant, func(payload []byte) {
		f.sendRequest(gatewaytest.SendRequest{From: from.ID, MessageType: typeJSON, Payload: payload})
	}
}

var bothOrders = map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered}

// More payloads of one tenant that cannot be downloaded than fit into the window, each with a key
// of its own, leave the others room. When they can be, all of them come, by one reconnect.
func TestPayloadsOfOneTenantLeaveTheOthersRoom(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]gatewaytest.Fault{
		"500":      {Status: 500},
		"404":      {Status: 404},
		"gzip":     {Header: http.Header{"Content-Encoding": {"gzip"}}},
		"hangs":    {Hang: true},
		"1 byte/s": {BytesPerSecond: 1},
	} {
		for orderName, order := range bothOrders {
			t.Run(name+" "+orderName, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, gatewaytest.Config{InlineLimit: 1000})
				_, sendOther := f.secondTenant()
				// Only the first tenant has payloads elsewhere.
				broken := f.server.Inject(gatewaytest.OpPayload, fault)
				cfg := f.config()
				cfg.MaxInFlight, cfg.Order = 10, order
				began := time.Now()
				sub := f.subscriber(cfg)
				var n atomic.Int64
				go ackAll(f.subscribe(sub, typeJSON), &n)
				const bad, good = 30, 25
				for i := range bad {
					e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("bad ", i), Receive: []string{typeJSON}})
					f.send(typeJSON, random(2000), e)
				}
				for range good {
					sendOther([]byte("good"))
				}
				testkit.Eventually(t, "the other tenant's are delivered", func() bool { return n.Load() == good })
				if s := sub.Stats(); s.Left == 0 || s.Stalled > 2*cfg.MaxInFlight {
					t.Errorf("%d are left, and %d wait, want up to %d", s.Left, s.Stalled, 2*cfg.MaxInFlight)
				}
				broken.Lift()
				if name == "1 byte/s" {
					return // they go on at that speed
				}
				f.waitConfirmed(bad + good)
				s := sub.Stats()
				most := 4 + int64(time.Since(began)/(4*time.Second)) // what goes on slowly may be left, too
				if s.Stalled != 0 || s.InFlight != 0 || s.InFlightBytes != 0 || s.Stream.Connects > most {
					t.Errorf("%d set apart, %d in flight with %d bytes, %d connects", s.Stalled, s.InFlight, s.InFlightBytes, s.Stream.Connects)
				}
				if got := n.Load(); got != bad+good {
					t.Errorf("%d deliveries, want %d", got, bad+good)
				}
			})
		}
	}
}

// hung are messages in handlers that hang.
type hung struct {
	mu   sync.Mutex
	over bool
	msgs []*message.Message
	keys map[string][]string // the payloads, by endpoint
}

func (h *hung) take(msg *message.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[string][]string{}
	}
	e := msg.Metadata.Get(gateway.KeyReceivingEndpointID)
	h.keys[e] = append(h.keys[e], string(msg.Payload))
	if h.over {
		msg.Ack()
	} else {
		h.msgs = append(h.msgs, msg)
	}
}

// end lets them ack, and those that come later.
func (h *hung) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	for _, msg := range h.msgs {
		msg.Ack()
	}
}

func (h *hung) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.msgs)
}

// Handlers that hang on many keys of one tenant, more than fit into the window, leave the others
// room; then everything comes, in order.
func TestHangingHandlersOfManyKeysLeaveTheOthersRoom(t *testing.T) {
	t.Parallel()
	for name, order := range bothOrders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			other, sendOther := f.secondTenant()
			cfg := f.config()
			cfg.MaxInFlight, cfg.Order = 20, order
			sub := f.subscriber(cfg)
			messages := f.subscribe(sub, typeJSON)
			var h hung
			var n atomic.Int64
			go func() {
				for msg := range messages {
					if msg.Metadata.Get(gateway.KeyTenantID) == other {
						n.Add(1)
						msg.Ack()
					} else {
						h.take(msg)
					}
				}
			}()
			const keys, each, good = 30, 3, 100
			var endpoints []gateway.Endpoint
			for i := range keys {
				endpoints = append(endpoints, f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("bad ", i), Receive: []string{typeJSON}}))
			}
			for i := range each {
				for k, e := range endpoints {
					f.send(typeJSON, fmt.Append(nil, i), e)
					if k%3 == 0 {
						sendOther([]byte("good"))
					}
				}
			}
			for range good - keys*each/3 {
				sendOther([]byte("good"))
			}
			testkit.Eventually(t, "the other tenant's are delivered", func() bool { return n.Load() == good })
			if got := h.len(); got > 3*cfg.MaxInFlight { // those that hang for a second wait, of which there may be twice as many
				t.Errorf("%d are in handlers", got)
			}
			h.end()
			f.waitConfirmed(keys*each + good)
			if order == subscriber.OrderByKey {
				for e, got := range h.keys {
					if fmt.Sprint(got) != "[0 1 2]" {
						t.Errorf("endpoint %s got %v", e, got)
					}
				}
			}
			if s := sub.Stats(); s.Stalled != 0 || s.InFlight != 0 || s.InFlightBytes != 0 || n.Load() != good {
				t.Errorf("%d set apart, %d in flight with %d bytes, %d copies", s.Stalled, s.InFlight, s.InFlightBytes, n.Load()-good)
			}
		})
	}
}

// A subscription that hangs on everything leaves another one alone, whatever the keys; when it
// gets on, it gets what it has not had, and the other one no copies.
func TestHangingSubscriptionLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	for name, order := range bothOrders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			cfg := f.config()
			cfg.MaxInFlight, cfg.Order = 10, order
			sub, release := f.held(cfg)
			bad, good := f.subscribe(sub, typeJSON), f.subscribe(sub, subscriber.AllData)
			release()
			var h hung
			go func() {
				for msg := range bad {
					h.take(msg)
				}
			}()
			var n atomic.Int64
			go ackAll(good, &n)
			const all = 100
			for i := range all {
				e := f.receiver
				if i%2 == 0 {
					e = f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("e", i), Receive: []string{typeJSON}})
				}
				f.send(typeJSON, fmt.Append(nil, i), e)
			}
			testkit.Eventually(t, "the other one gets everything", func() bool { return n.Load() == all })
			if f.confirmed() != 0 {
				t.Error("confirmed")
			}
			h.end()
			f.waitConfirmed(all)
			if n.Load() != all {
				t.Errorf("%d copies", n.Load()-all)
			}
		})
	}
}

// A message in a handler that hangs does not keep the bytes of the window, although it is the
// oldest.
func TestHangingMessageLeavesLargePayloadsRoom(t *testing.T) {
	t.Parallel()
	for name, order := range bothOrders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{InlineLimit: 70_000})
			cfg := f.config()
			cfg.MaxInFlightBytes, cfg.Order = 100_000, order
			sub := f.subscriber(cfg)
			messages := f.subscribe(sub, typeJSON)
			var h hung
			healthy := sorted(messages, func(endpoint string) bool { return endpoint == f.receiver.ID }, h.take)
			f.send(typeJSON, random(60_000), f.receiver)
			testkit.Eventually(t, "it hangs", func() bool { return h.len() == 1 })
			const good = 6
			for i := range good {
				e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("e", i), Receive: []string{typeJSON}})
				f.send(typeJSON, random(60_000+i%2*90_000), e) // embedded, and elsewhere
			}
			testkit.Eventually(t, "all others are delivered", func() bool { return healthy.Load() == good })
			h.end()
			f.waitConfirmed(1 + good)
			if s := sub.Stats(); s.Stalled != 0 || s.InFlightBytes != 0 {
				t.Errorf("%d set apart, %d bytes in flight", s.Stalled, s.InFlightBytes)
			}
		})
	}
}

// Nacked messages that do not fit are left with the service, and requested again once half of
// those that are parked are acked.
func TestNackedMessagesThatDoNotFitComeAgain(t *testing.T) {
	t.Parallel()
	for name, order := range bothOrders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			cfg := f.config()
			cfg.MaxInFlight, cfg.Order = 5, order
			began := time.Now()
			sub := f.subscriber(cfg)
			const bad, good = 20, 30
			most := func() int64 { return 1 + int64(time.Since(began)/(4*time.Second)) } // connects
			endpoints := map[string]bool{}
			for i := range bad {
				e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("bad ", i), Receive: []string{typeJSON}})
				endpoints[e.ID] = true
				f.send(typeJSON, []byte("bad"), e)
			}
			f.sendN(good, f.receiver2)
			var healed atomic.Bool
			healthy := sorted(f.subscribe(sub, typeJSON), func(endpoint string) bool { return endpoints[endpoint] }, func(msg *message.Message) {
				if healed.Load() {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
			testkit.Eventually(t, "some are left", func() bool { return healthy.Load() == good && sub.Stats().Left > 0 })
			<-time.After(quiet)
			if s := sub.Stats(); s.Stream.Connects > most() || s.Parked > 3*cfg.MaxInFlight { // twice the window, and those in it that are nacked now
				t.Errorf("%d connects, %d parked", s.Stream.Connects, s.Parked)
			}
			healed.Store(true)
			f.waitConfirmed(bad + good)
			if s := sub.Stats(); s.Stream.Connects > most() {
				t.Errorf("%d connects in %s", s.Stream.Connects, time.Since(began))
			}
		})
	}
}
