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
	"github.com/agrimill/agrimill/internal/msgctx"
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

// As many keys as fit into the window, each with a message that is nacked, keep no place there.
func TestNackedKeysLeaveTheOthersRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOfflineGateway(t, nil)
		sub, messages := g.subscribe(subscriber.Config{MaxInFlight: 10})
		var healed atomic.Bool
		good := offlineID(offlineEndpointID, 10)
		healthy := sorted(messages, func(endpoint string) bool { return endpoint != good }, func(msg *message.Message) {
			if healed.Load() {
				msg.Ack()
			} else {
				msg.Nack()
			}
		})
		for i := range 60 {
			g.message(i, min(i, 10), i, typeJSON, []byte("x"))
		}
		time.Sleep(time.Second)
		if healthy.Load() != 50 {
			t.Errorf("%d of the other key are delivered, want 50", healthy.Load())
		}
		healed.Store(true)
		time.Sleep(10 * time.Second)
		if s := sub.Stats(); g.unconfirmed() != 0 || s.Parked != 0 || s.InFlight != 0 || s.InFlightBytes != 0 || s.Stream.Connects != 1 {
			t.Errorf("%d are not confirmed, %d parked, %d in flight with %d bytes, %d connects", g.unconfirmed(), s.Parked, s.InFlight, s.InFlightBytes, s.Stream.Connects)
		}
	})
}

// Of nacked messages at most twice the window waits here. The others are left with the service, and come again.
func TestParkedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			cfg := f.config()
			cfg.MaxInFlight = 5
			cfg.Order = order
			sub := f.subscriber(cfg)
			for i := range 20 {
				e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("bad ", i), Receive: []string{typeJSON}})
				f.send(typeJSON, []byte("bad"), e)
			}
			var healed atomic.Bool
			sorted(f.subscribe(sub, typeJSON), func(string) bool { return true }, func(msg *message.Message) {
				if healed.Load() {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
			testkit.Eventually(t, "some are left", func() bool { return sub.Stats().Abandoned >= 10 })
			if s := sub.Stats(); s.Parked > 10 || s.InFlight > 10 {
				t.Errorf("%d parked, %d in flight", s.Parked, s.InFlight)
			}
			healed.Store(true)
			f.server.CutStreams()
			f.waitConfirmed(20)
		})
	}
}

// A nacked message that is the oldest does not keep payloads above the limit of bytes waiting.
func TestNackedMessageLeavesLargePayloadsRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 100})
	cfg := f.config()
	cfg.MaxInFlightBytes = 100_000
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, typeJSON)
	f.send(typeJSON, []byte("bad"), f.receiver)
	healthy := sorted(messages, func(endpoint string) bool { return endpoint == f.receiver.ID }, func(msg *message.Message) { msg.Nack() })
	testkit.Eventually(t, "it is nacked", func() bool { return sub.Stats().Nacked > 0 })
	for i := range 4 {
		e := f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("e", i), Receive: []string{typeJSON}})
		f.send(typeJSON, random(150_000), e)
	}
	f.send(typeJSON, random(1000), f.receiver2)
	testkit.Eventually(t, "all others are delivered", func() bool { return healthy.Load() == 5 })
}

// A subscription that nacks everything shuts the key for itself only, and costs the others no
// copies.
func TestNackingSubscriptionLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlight = 5
	sub, release := f.held(cfg)
	bad, end := subscribeUntil(t, sub, typeJSON)
	good := f.subscribe(sub, subscriber.AllData)
	release()
	go func() {
		for msg := range bad {
			msg.Nack()
		}
	}()
	var n atomic.Int64
	go ackAll(good, &n)
	f.sendN(50, f.receiver)
	testkit.Eventually(t, "the other one gets everything", func() bool { return n.Load() >= 50 })
	if f.confirmed() != 0 {
		t.Error("confirmed")
	}
	f.server.CutStreams() // what it left comes again, for nobody else
	testkit.Eventually(t, "connected", func() bool { return sub.Stats().Stream.Connects >= 2 })
	end()
	f.server.CutStreams()
	f.waitConfirmed(50)
	if n.Load() != 50 {
		t.Errorf("%d copies", n.Load()-50)
	}
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

// What a handler put off is told when its subscription ends; what it only nacked is not.
func TestStatsTellWhatWasPutOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Nack = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	sub := f.subscriber(cfg)
	for i := range 20 {
		f.send(typeJSON, []byte("later"), f.server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint("later ", i), Receive: []string{typeJSON}}))
	}
	n := 0
	sorted(f.subscribe(sub, typeJSON), func(string) bool { return true }, func(msg *message.Message) {
		if n++; n <= 7 {
			msgctx.NackOf(msg.Context()).After(time.Hour)
		}
		msg.Nack()
	})
	testkit.Eventually(t, "all are parked", func() bool { return sub.Stats().Parked == 20 })
	f.close(sub)
	if n := sub.Stats().NotRedelivered; n != 7 {
		t.Errorf("%d were put off, want 7", n)
	}
}

// Stats tells what waits, for what and how long.
func TestStatsTellWhatWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{InlineLimit: 1000, ChunkSize: 100_000})
	f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 500})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500})
	cfg := f.config()
	cfg.Files = []string{typeFile}
	cfg.ChunkSize = 500
	cfg.Nack = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
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
