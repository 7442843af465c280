//go:build powercut

package powercut

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

var (
	cuts = flag.Int("cuts", 5, "how often the power is cut")
	seed = flag.Uint64("seed", 1, "of the first round, of when the power is cut; the next rounds have the next ones")
)

const (
	interval    = 300 * time.Millisecond
	perRound    = 20 // cuts; each round has servers of its own
	messageType = "app:test:json"
)

// world is a gateway with traffic, agrimill in a process of its own, and machines with a broker.
type world struct {
	*testing.T
	machines []*machine
	server   *gatewaytest.Server
	config   nats.Config
	agrimill *process
	store    string
	durable  router.Durable
}

// newWorld has as many servers, and the stream on all of them.
func newWorld(t *testing.T, binary string, servers int, durable router.Durable) *world {
	t.Helper()
	w := &world{T: t, machines: newMachines(t, binary, servers), server: gatewaytest.New(t, gatewaytest.Config{}), durable: durable}
	var urls []string
	for _, m := range w.machines {
		urls = append(urls, m.url())
	}
	w.config = nats.Config{Connection: nats.Connection{URL: strings.Join(urls, ",")}, Synced: sinks.Synced(interval), Replicas: servers, PublishTimeout: 2 * time.Second}
	if servers > 1 {
		w.config.Synced = sinks.SyncedReplicas
	}
	w.store = filepath.Join(t.TempDir(), "dedup.db")
	testkit.Eventually(t, "the stream is made", func() bool {
		sink, err := nats.New(w.config, nil)
		if err == nil {
			_ = sink.Close()
		}
		return err == nil
	})
	w.settles()
	for _, m := range w.machines {
		m.kill()
		m.writeBack()
	}
	for _, m := range w.machines {
		m.start()
	}
	w.settles()
	return w
}

// run starts agrimill.
func (w *world) run() {
	w.Helper()
	client := w.server.ClientConfig()
	w.agrimill = start(w.T, setup{
		BaseURL: client.BaseURL, TokenURL: client.TokenURL, ClientID: client.ClientID, Secret: string(client.ClientSecret), ServiceName: client.ServiceName,
		URL: w.config.URL, Synced: w.config.Synced, Replicas: w.config.Replicas,
		Durable: w.durable.String(), Store: w.store,
	})
}

// stream calls f with the stream until it succeeds.
func (w *world) stream(what string, f func(jetstream.Stream) error) {
	w.Helper()
	var err error
	defer func() {
		if err != nil {
			w.Log(err)
		}
	}()
	testkit.Eventually(w.T, what, func() bool {
		err = func() error {
			conn, err := w.config.Connect("look")
			if err != nil {
				return err
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				return err
			}
			stream, err := js.Stream(w.Context(), nats.DefaultStream)
			if err != nil {
				return err
			}
			return f(stream)
		}()
		return err == nil
	})
}

// settles waits until all servers have what one has.
func (w *world) settles() {
	w.Helper()
	w.stream("the servers have the same", func(stream jetstream.Stream) error {
		if len(w.machines) == 1 {
			return nil
		}
		cluster := stream.CachedInfo().Cluster
		if cluster == nil || cluster.Leader == "" || len(cluster.Replicas) != len(w.machines)-1 {
			return fmt.Errorf("the cluster is %+v", cluster)
		}
		for _, peer := range cluster.Replicas {
			if !peer.Current || peer.Offline {
				return fmt.Errorf("%+v is behind", *peer)
			}
		}
		return nil
	})
}

// stored returns how often each message is in the stream.
func (w *world) stored() (found map[string]int) {
	w.Helper()
	w.stream("the stream is read", func(stream jetstream.Stream) error {
		found = make(map[string]int)
		state := stream.CachedInfo().State
		if state.Msgs == 0 {
			return nil
		}
		consumer, err := stream.OrderedConsumer(w.Context(), jetstream.OrderedConsumerConfig{HeadersOnly: true})
		if err != nil {
			return err
		}
		for n := uint64(0); n < state.Msgs; {
			batch, err := consumer.Fetch(int(min(1000, state.Msgs-n)))
			if err != nil {
				return err
			}
			before := n
			for msg := range batch.Messages() {
				found[msg.Headers().Get(gateway.KeyMessageID)]++
				n++
			}
			if n == before {
				return errors.Join(batch.Error(), fmt.Errorf("%d of %d messages are read", n, state.Msgs))
			}
		}
		return nil
	})
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

// sums are those of several cuts.
type sums struct {
	cuts, killed int // how often the power was cut, and agrimill killed in the same moment
	sent, copies int
	early        int // confirmed although the power cut took them away
}

// round cuts the power n times, of one server at a time.
func (w *world) round(random *rand.Rand, n int, sum *sums) {
	sender := w.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	w.server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType}})
	w.run()
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for cut := range n {
		for end := time.Now().Add(time.Duration(200+random.IntN(1500)) * time.Millisecond); time.Now().Before(end); sum.sent++ {
			<-pause.C
			testkit.Must(w.server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte("{}")}))(w)
		}
		m, together := w.machines[random.IntN(len(w.machines))], random.IntN(3) == 0
		m.kill()
		if together {
			w.agrimill.kill()
			sum.killed++
		}
		confirmed := w.confirmed(true)
		m.lose()
		m.start()
		w.settles()
		found := w.stored()
		lost := missing(confirmed, found)
		sum.cuts++
		sum.early += len(lost)
		w.Logf("cut %d: %d sent, %d confirmed, %d stored, %d confirmed and lost, agrimill killed: %t", cut, sum.sent, len(confirmed), len(found), len(lost), together)
		if together {
			w.run()
		}
	}
	testkit.Eventually(w.T, "all are confirmed", func() bool { return len(w.confirmed(false)) == 0 })
	w.agrimill.end()
	found := w.stored()
	if lost := missing(w.confirmed(true), found); len(lost) > 0 && w.durable == router.DurableSynced {
		w.Errorf("%d messages are lost, %s is the first", len(lost), lost[0])
	}
	for _, times := range found {
		sum.copies += times - 1
	}
}

// missing returns those of ids that were not found.
func missing(ids []string, found map[string]int) (lost []string) {
	for _, id := range ids {
		if found[id] == 0 {
			lost = append(lost, id)
		}
	}
	return lost
}

// play cuts the power, in rounds. A run that was ended goes on with the seed of the round that it was in.
func play(t *testing.T, servers int, durable router.Durable) (sum sums) {
	binary, cuts := build(t), *cuts
	if servers > 1 { // until the one is as the others again takes ten times as long
		cuts = max(1, cuts/10)
	}
	for first := *seed; sum.cuts < cuts && !t.Failed(); first++ {
		t.Run(fmt.Sprintf("seed %d", first), func(t *testing.T) {
			n := min(perRound, cuts-sum.cuts)
			defer func(before int) { sum.cuts = before + n }(sum.cuts)
			newWorld(t, binary, servers, durable).round(rand.New(rand.NewPCG(first, 1)), n, &sum)
		})
	}
	t.Logf("%d cuts, in %d of them agrimill was killed; %d messages, %d confirmed and lost, %d copies", sum.cuts, sum.killed, sum.sent, sum.early, sum.copies)
	return sum
}

// With durable: synced, nothing is confirmed that a power cut takes away, and nothing is lost, also if agrimill is killed in the same
// moment.
func TestPowerCuts(t *testing.T) {
	if sum := play(t, 1, router.DurableSynced); sum.early > 0 {
		t.Errorf("%d of %d were confirmed, and the power cut took them away", sum.early, sum.sent)
	}
}

// With three replicas, one of which loses its power at a time, nothing has to wait.
func TestPowerCutsOfOneOfThree(t *testing.T) {
	if sum := play(t, 3, router.DurableSynced); sum.early > 0 {
		t.Errorf("%d of %d were confirmed, and the power cut took them away", sum.early, sum.sent)
	}
}

// Without it some are: the cuts do take away what was acknowledged.
func TestPowerCutsWithoutSync(t *testing.T) {
	if sum := play(t, 1, router.DurableAcknowledged); sum.early == 0 {
		t.Error("the power cuts took nothing away that was confirmed")
	}
}
