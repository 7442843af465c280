package subscriber_test

import (
	"fmt"
	"net/http"
	"strconv"
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

var bothOrders = map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered}

// twoTenants has one tenant for the endpoint 0, and another one for all others.
func twoTenants(endpoint int) string { return offlineID(offlineTenantID, min(endpoint, 1)) }

// More payloads of one tenant that cannot be downloaded than fit into the window, each with a key
// of its own, leave the others room. When they can be, all of them come, by one reconnect.
func TestPayloadsOfOneTenantLeaveTheOthersRoom(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]http.HandlerFunc{
		"500":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"404":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"gzip":     func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") },
		"hangs":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"1 byte/s": nil,
	} {
		for orderName, order := range bothOrders {
			t.Run(name+" "+orderName, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var healed atomic.Bool
					g := newOfflineGateway(t, func(w http.ResponseWriter, r *http.Request, _ offlinePayload) {
						switch {
						case healed.Load():
							_, _ = w.Write(random(2000))
						case fault != nil:
							fault(w, r)
						}
						for fault == nil && r.Context().Err() == nil {
							_, _ = w.Write([]byte("x"))
							_ = http.NewResponseController(w).Flush()
							select {
							case <-time.After(time.Second):
							case <-r.Context().Done():
							}
						}
					})
					g.tenantOf = twoTenants
					cfg := subscriber.Config{MaxInFlight: 10, Order: order}
					sub, messages := g.subscribe(cfg)
					var n atomic.Int64
					go ackAll(messages, &n)
					const bad, good = 30, 25
					for i := range bad + good {
						if i < bad {
							g.message(i, 1+i, i, typeJSON, nil)
						} else {
							g.message(i, 0, i, typeJSON, []byte("good"))
						}
					}
					watchWaiting(t, 10*time.Second, cfg.MaxInFlight, func() int { return sub.Stats().Stalled })
					if s := sub.Stats(); n.Load() != good || s.Abandoned == 0 {
						t.Errorf("%d of the other tenant are delivered, want %d; %d were left", n.Load(), good, s.Abandoned)
					}
					if fault == nil {
						return // they go on at that speed
					}
					healed.Store(true)
					time.Sleep(2 * time.Minute)
					s := sub.Stats()
					if s.Stalled != 0 || s.InFlight != 0 || s.InFlightBytes != 0 || s.Stream.Connects > 4 || g.unconfirmed() != 0 {
						t.Errorf("%d set apart, %d in flight with %d bytes, %d connects, %d not confirmed", s.Stalled, s.InFlight, s.InFlightBytes, s.Stream.Connects, g.unconfirmed())
					}
					if got := n.Load(); got != bad+good {
						t.Errorf("%d deliveries, want %d", got, bad+good)
					}
				})
			})
		}
	}
}

// watchWaiting wants what waits to be twice the window at most, for a time. Messages are taken while fewer wait, and those in the
// window may come to wait after that: all above it is left within two reviews.
func watchWaiting(t *testing.T, d time.Duration, window int, waiting func() int) {
	t.Helper()
	above := 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
		n := waiting()
		if above++; n <= 2*window {
			above = 0
		}
		if n >= 3*window || above > 5 {
			t.Fatalf("%d wait in a window of %d, above twice of it for %d times 100 ms", n, window, above)
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
			synctest.Test(t, func(t *testing.T) {
				g := newOfflineGateway(t, nil)
				g.tenantOf = twoTenants
				cfg := subscriber.Config{MaxInFlight: 20, Order: order}
				sub, messages := g.subscribe(cfg)
				var h hung
				healthy := sorted(messages, func(endpoint string) bool { return endpoint != offlineID(offlineEndpointID, 0) }, h.take)
				const keys, each, good = 30, 3, 100
				n := 0
				send := func(endpoint int, payload string) {
					g.message(n, endpoint, n, typeJSON, []byte(payload))
					n++
				}
				for i := range each {
					for k := range keys {
						send(1+k, strconv.Itoa(i))
						if k%3 == 0 {
							send(0, "good")
						}
					}
				}
				for range good - keys*each/3 {
					send(0, "good")
				}
				time.Sleep(20 * time.Second)
				if got := h.len(); healthy.Load() != good || got > 30 {
					t.Errorf("%d of the other tenant are delivered, want %d, and %d are in handlers", healthy.Load(), good, got)
				}
				h.end()
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if order == subscriber.OrderByKey {
					for e, got := range h.keys {
						if fmt.Sprint(got) != "[0 1 2]" {
							t.Errorf("endpoint %s got %v", e, got)
						}
					}
				}
				if s := sub.Stats(); g.unconfirmed() != 0 || s.Stalled != 0 || s.InFlight != 0 || s.InFlightBytes != 0 || healthy.Load() != good {
					t.Errorf("%d are not confirmed, %d set apart, %d in flight with %d bytes, %d copies", g.unconfirmed(), s.Stalled, s.InFlight, s.InFlightBytes, healthy.Load()-good)
				}
			})
		})
	}
}

// A subscription that hangs on everything leaves another one alone, whatever the keys; when it
// gets on, it gets what it has not had, and the other one no copies.
func TestHangingSubscriptionLeavesTheOthersAlone(t *testing.T) {
	for name, order := range bothOrders {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true})
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
	for name, order := range bothOrders {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{InMemory: true, InlineLimit: 70_000})
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
			synctest.Test(t, func(t *testing.T) {
				g := newOfflineGateway(t, nil)
				cfg := subscriber.Config{MaxInFlight: 5, Order: order}
				sub, messages := g.subscribe(cfg)
				var healed atomic.Bool
				healthy := sorted(messages, func(endpoint string) bool { return endpoint != offlineID(offlineEndpointID, 0) }, func(msg *message.Message) {
					if healed.Load() {
						msg.Ack()
					} else {
						msg.Nack()
					}
				})
				const bad, good = 20, 30
				for i := range bad + good {
					g.message(i, max(0, bad-i), i, typeJSON, []byte("x"))
				}
				parked := func() int { return sub.Stats().Parked }
				watchWaiting(t, 2*time.Second, cfg.MaxInFlight, parked)
				if s := sub.Stats(); healthy.Load() != good || s.Left == 0 || s.Stream.Connects != 1 {
					t.Errorf("%d of the other key are delivered, want %d; %d are left, %d connects", healthy.Load(), good, s.Left, s.Stream.Connects)
				}
				watchWaiting(t, 18*time.Second, cfg.MaxInFlight, parked)
				healed.Store(true)
				time.Sleep(2 * time.Minute)
				if s := sub.Stats(); g.unconfirmed() != 0 || s.Stream.Connects > 3 {
					t.Errorf("%d are not confirmed, %d connects", g.unconfirmed(), s.Stream.Connects)
				}
			})
		})
	}
}
