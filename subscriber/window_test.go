package subscriber_test

import (
	"fmt"
	"strconv"
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

// sorted handles messages: those of a bad endpoint by bad, the others are acked and counted.
func sorted(messages <-chan *message.Message, isBad func(endpoint string) bool, bad func(*message.Message)) *atomic.Int64 {
	healthy := new(atomic.Int64)
	go func() {
		for msg := range messages {
			if isBad(msg.Metadata.Get(gateway.KeyReceivingEndpointID)) {
				bad(msg)
				continue
			}
			healthy.Add(1)
			msg.Ack()
		}
	}()
	return healthy
}

// A handler that hangs on one key holds a share of the window only, and when it returns, all of
// the key is delivered, in order.
func TestHangingKeyLeavesTheOthersRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOfflineGateway(t, nil)
		sub, messages := g.subscribe(subscriber.Config{MaxInFlight: 20})
		got := make(chan string, 50)
		hang := make(chan struct{})
		healthy := sorted(messages, func(endpoint string) bool { return endpoint == offlineID(offlineEndpointID, 0) }, func(msg *message.Message) {
			go func() { // ends when it is over
				<-hang
				got <- string(msg.Payload)
				msg.Ack()
			}()
		})
		for i := range 100 {
			g.message(i, i/50, i, typeJSON, []byte(strconv.Itoa(i)))
		}
		time.Sleep(10 * time.Second)
		if s := sub.Stats(); healthy.Load() != 50 || s.InFlight > 10 || s.Stream.Connects != 1 {
			t.Errorf("%d of the other key are delivered, %d in flight, %d connects", healthy.Load(), s.InFlight, s.Stream.Connects)
		}
		close(hang)
		time.Sleep(10 * time.Second)
		if s := sub.Stats(); g.unconfirmed() != 0 || len(got) != 50 || s.Stream.Connects != 2 {
			t.Fatalf("%d are not confirmed, the key got %d, %d connects", g.unconfirmed(), len(got), s.Stream.Connects)
		}
		for i := range 50 {
			if payload := <-got; payload != strconv.Itoa(i) {
				t.Errorf("got %s, want %d", payload, i)
			}
		}
	})
}

// Close gives back what is parked.
func TestCloseWithParkedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Nack = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	sub := f.subscriber(cfg)
	for i := range 20 {
		f.send(typeJSON, []byte("bad"), f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("bad ", i), Receive: []string{typeJSON}}))
	}
	sorted(f.subscribe(sub, typeJSON), func(string) bool { return true }, func(msg *message.Message) { msg.Nack() })
	testkit.Eventually(t, "all are parked", func() bool { return sub.Stats().Parked == 20 })
	f.close(sub)
	if s := sub.Stats(); s.Parked != 0 || s.InFlight != 0 || s.Abandoned != 20 {
		t.Errorf("%d parked, %d in flight, %d abandoned", s.Parked, s.InFlight, s.Abandoned)
	}
	f.ackN(f.subscribe(f.subscriber(f.config()), typeJSON), 20)
	f.waitConfirmed(20)
}

// Stats tells what waits, for what and how long.
func TestStatsTellWhatWaits(t *testing.T) {
	synctest.Test(t, testStatsTellWhatWaits)
}

func testStatsTellWhatWaits(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, InlineLimit: 1000, ChunkSize: 100_000})
	f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 500})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500})
	cfg := f.config()
	cfg.Files = []string{typeFile}
	cfg.ChunkSize = 500
	cfg.Nack = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	sub, messages := f.receive(cfg)
	newEndpoint := func(name string) gateway.Endpoint {
		return f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: name, Receive: []string{typeJSON}})
	}
	f.send(typeJSON, random(600), newEndpoint("chunk"))
	f.next(messages).Ack()
	f.send(typeJSON, []byte("acked"), newEndpoint("acked"))
	f.next(messages).Ack()
	nacked := f.send(typeJSON, []byte("nacked"), newEndpoint("nacked"))
	f.next(messages).Nack()
	f.send(typeFile, random(600), f.receiver)
	f.send(typeJSON, random(2000), newEndpoint("large"))
	hanging := newEndpoint("hanging")
	f.send(typeJSON, []byte("hangs"), hanging)
	defer f.next(messages).Ack()
	var waits map[subscriber.WaitKind]subscriber.Waits
	testkit.Eventually(t, "everything waits", func() bool {
		waits = map[subscriber.WaitKind]subscriber.Waits{}
		for _, w := range sub.Stats().Waits {
			waits[w.Kind] = w
		}
		return len(waits) == len(subscriber.WaitKinds())-1 && waits[subscriber.WaitKey].Count == 3 // no subscription is slow
	})
	keys := map[string]bool{}
	for _, w := range waits[subscriber.WaitKey].Longest {
		keys[w.What] = true
	}
	if !keys[hanging.ID] {
		t.Errorf("no key of the handler that hangs: %v", keys)
	}
	for kind, want := range map[subscriber.WaitKind]string{subscriber.WaitNack: nacked[0], subscriber.WaitTenant: f.server.Tenant()} {
		w := waits[kind].Longest[0]
		if w.What != want || w.Since.IsZero() || w.Until.IsZero() {
			t.Errorf("%s: %+v, want %s", kind, w, want)
		}
	}
}
