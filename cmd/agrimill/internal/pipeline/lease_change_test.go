package pipeline_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// brief is the setting of a lease that is taken over while a test waits, and that a busy machine does not
// keep its holder from renewing.
const brief = "ttl: 10s"

// number is the number of a message that send has sent.
func (w *world) number(payload []byte) int {
	w.Helper()
	n := testkit.Must(strconv.Atoi(string(bytes.TrimPrefix(payload, []byte(mark)))))(w)
	return n
}

// wire counts what was sent to the stream, as others see it.
type wire struct {
	testing.TB
	conn  *natsgo.Conn
	sub   *natsgo.Subscription
	sent  map[int]int // by number
	total int
}

func (w *world) tap() *wire {
	w.Helper()
	conn := testkit.Must(natstest.Connect(w.server.URL()))(w)
	w.Cleanup(conn.Close)
	sub := testkit.Must(conn.SubscribeSync("agrimill.>"))(w)
	testkit.NoError(w, conn.Flush())
	return &wire{TB: w, conn: conn, sub: sub, sent: map[int]int{}}
}

// look counts what was sent before the call.
func (t *wire) look() {
	t.Helper()
	testkit.NoError(t, t.conn.Flush())
	for waiting, _, _ := t.sub.Pending(); waiting > 0; waiting-- {
		msg := testkit.Must(t.sub.NextMsg(testkit.Patience))(t)
		t.total++
		n, _ := strconv.Atoi(string(bytes.TrimPrefix(msg.Data, []byte(mark))))
		t.sent[n]++
	}
}

func (t *wire) of(n int) int {
	t.Helper()
	t.look()
	return t.sent[n]
}

func (t *wire) count() int {
	t.Helper()
	t.look()
	return t.total
}

// The lease is lost while messages of one key are on their way one behind the other. Nothing is sent
// after its time; the next holder sends them again, since nobody knows what has arrived; and
// whether what was on its way lands late, or had landed without an answer, all are stored once and in
// their order.
func TestLeaseIsLostWithMessagesOnTheirWay(t *testing.T) {
	t.Parallel()
	const few = 12
	for _, ingest := range []string{"plain", "pipelined"} {
		for name, fault := range map[string]struct {
			begin, end func(*natstest.Proxy)
			late       int // how many may land late, at most
		}{
			"late":       {(*natstest.Proxy).Hang, (*natstest.Proxy).Resume, few},
			"unanswered": {(*natstest.Proxy).LoseReplies, (*natstest.Proxy).Cut, 0},
		} {
			t.Run(ingest+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.free()
				way := natstest.NewProxy(t, w.server.URL())
				start := func(sink, lease string) *agrimill {
					return w.start(w.head() + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, ingest: %s, publish_timeout: 12s}}\npoison: {sink: farm}\n", sink, ingest) +
						w.ha(lease, brief) + allRoute)
				}
				a := start(w.proxy.URL(), way.URL())
				a.waitRole("holder")
				b := start(w.server.URL(), w.server.URL())
				b.waitReady()
				wire := w.tap()
				w.send(taskData, 2)
				w.waitConfirmed()

				fault.begin(w.proxy)
				w.send(taskData, few)
				testkit.Eventually(t, "the holder has them", func() bool { return a.Snapshot().Subscriber.InFlight == few })
				way.Hang()
				b.waitRole("holder")
				w.waitConfirmed()
				for n := 3; n < 3+few; n++ {
					testkit.Eventually(t, "the next holder has sent it", func() bool { return wire.of(n) > 0 })
				}
				a.waitRole("standby")
				sent, delivered := wire.count(), a.Snapshot().Routes[0].Delivered
				fault.end(w.proxy)
				way.Resume()
				testkit.Eventually(t, "the former holder stands by, with its sink", a.isReady)
				if got := a.Snapshot().Routes[0].Delivered; got != delivered {
					t.Errorf("the former holder has delivered %d after its time", got-delivered)
				}
				if got := wire.count() - sent; got > fault.late {
					t.Errorf("%d messages were sent after the time of the former holder, want at most %d", got, fault.late)
				} else {
					t.Logf("%d messages landed late", got)
				}
				w.send(taskData, 3)
				w.waitConfirmed()
				a.mustStop()
				b.mustStop()
				w.checkStored()
				last := 0
				for _, raw := range w.read("agrimill.>") {
					if n := w.number(raw.Data); n < last {
						t.Errorf("message %d is stored behind %d", n, last)
					} else {
						last = n
					}
				}
			})
		}
	}
}

// What the former holder stored and did not confirm comes to the next one. JetStream recognizes it by
// itself; for Kafka it takes a dedup store that both have.
func TestDedupAcrossAChangeOfTheHolder(t *testing.T) {
	t.Parallel()
	const few = 20
	for store, want := range map[string]int{"memory": 2, "nats_kv": 1} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.free()
			cluster := kafkatest.Start(t, kfake.SeedTopics(1, "agrimill.lake"))
			way := natstest.NewProxy(t, w.server.URL())
			text := func(lease string) string {
				dedup := map[string]string{"memory": "store: memory", "nats_kv": fmt.Sprintf("nats_kv: {url: %q}", w.server.URL())}[store]
				return w.head() + strings.Replace(w.natsSink(), "poison:", fmt.Sprintf("  lake: {kafka: {brokers: %q}}\npoison:", cluster.Addr()), 1) +
					fmt.Sprintf("ha: {nats_kv: {url: %q, connect_timeout: 1s}, %s}\ndedup: {%s}\n", lease, brief, dedup) +
					allRoute + "  - {name: lake, from: {gateway: all}, to: {sink: lake, topic: lake}}\n"
			}
			a := w.start(text(way.URL()))
			a.waitRole("holder")
			a.waitReady()
			b := w.start(text(w.server.URL()))
			b.waitReady()
			unconfirmed := w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
			w.send(taskData, few)
			testkit.Eventually(t, "the holder has stored them", func() bool {
				routes := a.Snapshot().Routes
				return routes[0].Delivered == few && routes[1].Delivered == few
			})
			way.Hang()
			b.waitRole("holder")
			unconfirmed.Lift()
			w.waitConfirmed()
			way.Resume()
			a.mustStop()
			b.mustStop()
			w.checkStored()
			if got := len(kafkatest.Read(t, cluster.Addr(), "agrimill.lake")); got != want*few {
				t.Errorf("%d records of %d messages, want %d", got, few, want*few)
			}
		})
	}
}

// A standby whose sink is out of reach says so and takes over all the same: what comes waits.
func TestStandbyWithoutItsSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.free()
	text := func(sink string) string {
		return w.head() + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, publish_timeout: 2s, connect_timeout: 1s}}\npoison: {sink: farm}\n", sink) +
			w.ha(w.server.URL(), "ttl: 5m") + allRoute
	}
	a := w.start(text(w.server.URL()))
	a.waitRole("holder")
	w.proxy.Hang()
	b := w.start(text(w.proxy.URL()))
	testkit.Eventually(t, "the standby is not ready", func() bool {
		lease, sink := false, false
		for _, c := range b.Ready(t.Context()) {
			lease = lease || c.Name == "lease" && c.OK && c.Message == "standby: test holds the lease"
			sink = sink || c.Name == "sink farm" && !c.OK
		}
		return lease && sink
	})
	a.mustStop()
	b.waitRole("holder")
	w.send(taskData, 5)
	testkit.Eventually(t, "the messages come", func() bool { return b.Snapshot().Subscriber.InFlight == 5 })
	if n := len(w.confirmed()); n != 0 {
		t.Errorf("%d are confirmed", n)
	}
	w.proxy.Resume()
	b.waitReady()
	b.finish()
}

// Both are told to stop at the same time: nothing is lost, and the next one begins at once.
func TestBothStopAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.free()
	text := w.head() + w.natsSink() + w.ha(w.server.URL(), "ttl: 5m") + allRoute
	a := w.start(text)
	a.waitRole("holder")
	for range 3 {
		b := w.start(text)
		b.waitRole("standby")
		b.waitReady()
		w.send(taskData, 50)
		a.cancel()
		b.cancel()
		_, _ = a.stop(), b.stop() // what they had not finished comes to the next one
		a = w.start(text)
		a.waitRole("holder")
	}
	a.finish()
}

// A replay ends with the lease, and what it has not sent stays in the poison queue, for the next
// holder.
func TestLeaseIsLostDuringAReplay(t *testing.T) {
	t.Parallel()
	const few = 6
	w := newWorld(t)
	w.free()
	way := natstest.NewProxy(t, w.server.URL())
	text := func(sink, lease, topic string) string {
		return w.head() + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, publish_timeout: 20s}}\n  queue: {nats: {url: %q}}\npoison: {sink: queue}\n", sink, w.server.URL()) +
			w.ha(lease, brief) + "routes:\n" + route("farm-data", "all", "", topic)
	}
	a := w.start(text(w.proxy.URL(), way.URL(), "{teamset}"))
	a.waitRole("holder")
	b := w.start(text(w.server.URL(), w.server.URL(), "{teamset|none}"))
	b.waitReady()
	w.send(taskData, few)
	w.waitConfirmed()
	ids := func(of *agrimill) (list []string) {
		for poisoned, err := range of.PoisonStore().Messages(t.Context()) {
			testkit.NoError(t, err)
			list = append(list, poisoned.ID)
		}
		return list
	}
	all := ids(a)
	if len(all) != few {
		t.Fatalf("%d messages are in the poison queue, want %d", len(all), few)
	}
	a.reload(text(w.proxy.URL(), way.URL(), "{teamset|none}"))
	w.proxy.Hang()
	ended := make(chan error)
	go func() { // ends with the lease
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		report, err := a.Replay(ctx, a.PoisonStore(), all)
		if report.Sent > 0 {
			t.Errorf("%d are replayed to a sink that does not answer", report.Sent)
		}
		ended <- err
	}()
	way.Hang()
	if err := <-ended; err == nil {
		t.Error("the replay has ended without an error")
	}
	b.waitRole("holder")
	report, err := b.Replay(t.Context(), b.PoisonStore(), ids(b))
	if err != nil || report.Sent != few {
		t.Errorf("the next holder replays %+v, %v", report, err)
	}
	w.proxy.Resume()
	way.Resume()
	testkit.Eventually(t, "the former holder stands by", a.isReady)
	a.mustStop()
	b.mustStop()
	w.checkStored()
}
