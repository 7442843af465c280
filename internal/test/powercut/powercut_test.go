//go:build powercut

package powercut

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

var (
	cuts = flag.Int("cuts", 5, "how often the power is cut")
	seed = flag.Uint64("seed", 1, "of when it is")
)

const (
	interval    = 300 * time.Millisecond
	messageType = "app:test:json"
)

// world is a gateway with traffic, agrimill, and a machine with a broker.
type world struct {
	*testing.T
	machine *machine
	server  *gatewaytest.Server
	durable router.Durable
	store   *router.MemoryStore
	stop    func(hard bool)
	sink    *nats.Sink
}

func (w *world) config() nats.Config {
	return nats.Config{URL: w.machine.url(), Synced: sinks.Synced(interval), PublishTimeout: 2 * time.Second}
}

// run starts agrimill.
func (w *world) run() {
	w.Helper()
	client := testkit.Must(gateway.New(w.server.ClientConfig()))(w)
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: client, Confirm: subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond}}, nil))(w)
	w.sink = testkit.Must(nats.New(w.config(), nil))(w)
	r := testkit.Must(router.New(router.Config{Poison: w.sink, Dedup: router.DedupSettings{Store: outlives{w.store}}, CloseTimeout: 3 * time.Second}, nil))(w)
	testkit.NoError(w, r.Add(router.Route{Name: "farm", From: sub, Topic: subscriber.AllData, To: w.sink, Durable: w.durable}))
	var done sync.WaitGroup
	done.Go(func() { _ = r.Run(w.Context()) })
	<-r.Running()
	w.stop = func(hard bool) {
		if hard {
			_ = client.Close() // nothing is confirmed any longer
		}
		_ = r.Close()
		done.Wait()
		_ = client.Close()
	}
}

// outlives is a store that a Router does not close.
type outlives struct{ router.DedupStore }

// stored returns how often each message is in the stream.
func (w *world) stored() map[string]int {
	w.Helper()
	conn := testkit.Must(w.config().Connection().Connect("look"))(w)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(w)
	stream := testkit.Must(js.Stream(w.Context(), nats.DefaultStream))(w)
	found := make(map[string]int)
	last := stream.CachedInfo().State.LastSeq
	for seq := stream.CachedInfo().State.FirstSeq; seq <= last && seq > 0; seq++ {
		if msg, err := stream.GetMsg(w.Context(), seq); err == nil {
			found[msg.Header.Get(gateway.KeyMessageID)]++
		}
	}
	return found
}

// confirmed returns the IDs of the messages that are, or those that are not.
func (w *world) confirmed(is bool) (ids []string) {
	for _, e := range w.server.Ledger() {
		if e.Confirmed() == is {
			ids = append(ids, e.MessageID)
		}
	}
	return ids
}

// play cuts the power, and returns how many messages were confirmed although they were lost.
func play(t *testing.T, binary string, durable router.Durable) (early, sent, copies int) {
	random := rand.New(rand.NewPCG(*seed, 1))
	w := &world{T: t, machine: newMachine(t, binary, interval.String()), server: gatewaytest.New(t, gatewaytest.Config{}), durable: durable}
	store := testkit.Must(router.NewMemoryStore(router.MemoryStoreConfig{}))(t)
	w.store = store
	sender := w.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	w.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType}})
	first, err := nats.New(w.config(), nil) // makes the stream
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	w.machine.writeBack()
	w.run()
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for cut := range *cuts {
		for end := time.Now().Add(time.Duration(200+random.IntN(1500)) * time.Millisecond); time.Now().Before(end); sent++ {
			<-pause.C
			testkit.Must(w.server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte("{}")}))(t)
		}
		w.machine.kill()
		together := random.IntN(3) == 0
		if together {
			w.stop(true)
		}
		confirmed := w.confirmed(true)
		w.machine.lose()
		w.machine.start()
		found := w.stored()
		lost := 0
		for _, id := range confirmed {
			if found[id] == 0 {
				lost++
			}
		}
		early += lost
		t.Logf("cut %d: %d sent, %d confirmed, %d stored, %d confirmed and lost, agrimill killed: %t", cut, sent, len(confirmed), len(found), lost, together)
		if together {
			w.run()
		}
	}
	testkit.Eventually(t, "all are confirmed", func() bool { return len(w.confirmed(false)) == 0 })
	w.stop(false)
	found := w.stored()
	for _, id := range w.confirmed(true) {
		if found[id] == 0 && durable == router.DurableSynced {
			t.Errorf("message %s is lost", id)
		}
		copies += max(0, found[id]-1)
	}
	return early, sent, copies
}

// With durable: synced, nothing is confirmed that a power cut takes away, and nothing is lost.
func TestPowerCuts(t *testing.T) {
	early, sent, copies := play(t, build(t), router.DurableSynced)
	t.Logf("%d cuts, %d messages, %d confirmed early, %d copies", *cuts, sent, early, copies)
	if early > 0 {
		t.Errorf("%d of %d were confirmed, and the power cut took them away", early, sent)
	}
}

// Without it some are: the cuts do take away what was acknowledged.
func TestPowerCutsWithoutSync(t *testing.T) {
	early, sent, _ := play(t, build(t), router.DurableAcknowledged)
	t.Logf("%d cuts, %d messages, %d confirmed and lost", *cuts, sent, early)
	if early == 0 {
		t.Error("the power cuts took nothing away that was confirmed")
	}
}
