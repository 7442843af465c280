//go:build powercut

package powercut

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
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
	broker
	server   *gatewaytest.Server
	setup    setup
	agrimill *process
	gone     map[string]bool // confirmed and lost
	owed     map[string]bool // those of them that the process that runs has to tell
}

// broker is one, on one machine or several.
type broker interface {
	machines() []machine
	settles()               // waits until all machines have what one has
	stored() map[string]int // how often each message is there
}

// machine is one with a server, and a switch.
type machine interface {
	start()
	kill()
	writeBack() // has everything on disk that the server, which does not run, has written: as after some time without a cut
	lose()      // makes the files of the server, which does not run, what had been synced
}

// newWorld has agrimill store in the broker what survives a power cut from now on.
func newWorld(t *testing.T, b broker, s setup) *world {
	t.Helper()
	w := &world{T: t, broker: b, server: gatewaytest.New(t, gatewaytest.Config{}), setup: s, gone: map[string]bool{}, owed: map[string]bool{}}
	client := w.server.ClientConfig()
	w.setup.BaseURL, w.setup.TokenURL, w.setup.ClientID, w.setup.Secret, w.setup.ServiceName =
		client.BaseURL, client.TokenURL, client.ClientID, string(client.ClientSecret), client.ServiceName
	w.setup.Store = filepath.Join(t.TempDir(), "dedup.db")
	w.settles()
	for _, m := range w.machines() {
		m.kill()
		m.writeBack()
	}
	var all sync.WaitGroup
	for _, m := range w.machines() {
		all.Go(m.start)
	}
	all.Wait()
	w.settles()
	return w
}

// run starts agrimill.
func (w *world) run() {
	w.Helper()
	w.agrimill = start(w.T, w.setup)
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
	send := func() {
		for end := time.Now().Add(time.Duration(200+random.IntN(1500)) * time.Millisecond); time.Now().Before(end); sum.sent++ {
			<-pause.C
			testkit.Must(w.server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte("{}")}))(w)
		}
	}
	confirmed := w.confirmed(true)
	for cut := range n {
		send()
		testkit.Eventually(w.T, "it goes on", func() bool { return len(w.confirmed(true)) > len(confirmed) })
		send() // so that there is traffic when the power is cut
		m, together := w.machines()[random.IntN(len(w.machines()))], random.IntN(3) == 0
		m.kill()
		if together {
			w.agrimill.kill()
			sum.killed++
			clear(w.owed) // nobody knows any longer
		}
		confirmed = w.confirmed(true)
		m.lose()
		m.start()
		w.settles()
		found := w.stored()
		lost := missing(confirmed, found)
		sum.cuts++
		sum.early += len(lost) - len(w.gone)
		w.Logf("cut %d: %d sent, %d confirmed, %d stored, %d confirmed and lost, agrimill killed: %t", cut, sum.sent, len(confirmed), len(found), len(lost), together)
		if together {
			w.run()
		}
		for _, id := range lost {
			if !w.gone[id] && !together {
				w.owed[id] = true
			}
			w.gone[id] = true
		}
	}
	testkit.Eventually(w.T, "all are confirmed", func() bool { return len(w.confirmed(false)) == 0 })
	testkit.Eventually(w.T, "what was lost is told", func() bool {
		return len(missing(slices.Collect(maps.Keys(w.owed)), w.agrimill.told())) == 0
	})
	w.agrimill.end()
	found := w.stored()
	if lost := missing(w.confirmed(true), found); len(lost) > 0 && w.setup.Durable == router.DurableSynced.String() {
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

// play cuts the power of what begin starts, in rounds. A run that was ended goes on with the seed of the round that it was in.
func play(t *testing.T, cuts int, begin func(t *testing.T) (broker, setup), durable router.Durable) {
	var sum sums
	for first := *seed; sum.cuts < cuts && !t.Failed(); first++ {
		t.Run(fmt.Sprintf("seed %d", first), func(t *testing.T) {
			n := min(perRound, cuts-sum.cuts)
			defer func(before int) { sum.cuts = before + n }(sum.cuts)
			b, s := begin(t)
			s.Durable = durable.String()
			newWorld(t, b, s).round(rand.New(rand.NewPCG(first, 1)), n, &sum)
		})
	}
	t.Logf("%d cuts, in %d of them agrimill was killed; %d messages, %d confirmed and lost, %d copies", sum.cuts, sum.killed, sum.sent, sum.early, sum.copies)
	switch {
	case durable == router.DurableSynced && sum.early > 0:
		t.Errorf("%d of %d were confirmed, and the power cut took them away", sum.early, sum.sent)
	case durable != router.DurableSynced && sum.early == 0:
		t.Error("the power cuts took nothing away that was confirmed")
	}
}

// few is how often the power is cut of what takes ten times as long as the one nats-server.
func few() int { return max(1, *cuts/10) }

// With durable: synced, nothing is confirmed that a power cut takes away, and nothing is lost, also if agrimill is killed in the same
// moment.
func TestPowerCuts(t *testing.T) { play(t, *cuts, natsServers(t, 1), router.DurableSynced) }

// With three replicas, one of which loses its power at a time, nothing has to wait.
func TestPowerCutsOfOneOfThree(t *testing.T) { play(t, few(), natsServers(t, 3), router.DurableSynced) }

// Without it some are, and told by ID: the cuts do take away what was acknowledged.
func TestPowerCutsWithoutSync(t *testing.T) {
	play(t, *cuts, natsServers(t, 1), router.DurableAcknowledged)
}

// The same with a real Kafka broker: with flush.messages 1, with three of which one loses its power, and without either.
func TestPowerCutsOfKafka(t *testing.T) {
	play(t, few(), kafkaBrokers(t, 1, sinks.SyncedAlways), router.DurableSynced)
}

func TestPowerCutsOfOneOfThreeInKafka(t *testing.T) {
	play(t, few(), kafkaBrokers(t, 3, sinks.SyncedReplicas), router.DurableSynced)
}

func TestPowerCutsOfKafkaWithoutSync(t *testing.T) {
	play(t, few(), kafkaBrokers(t, 1, sinks.SyncedUnknown), router.DurableAcknowledged)
}
