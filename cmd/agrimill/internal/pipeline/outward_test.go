package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
)

// outRoute is a route from the stream OUT to the gateway, to be added to others.
func (w *world) outRoute() string {
	w.Helper()
	testkit.Must(w.js.CreateOrUpdateStream(w.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}}))(w)
	return fmt.Sprintf(`
  - name: back
    from: {nats: {url: %q, subject: "out.>"}}
    to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s]}}
`, w.proxy.URL(), w.gate.Tenant(), w.sender.ID, w.receiver.ID)
}

// reportsRoute is a route from the topic reports of Kafka to the gateway, with more settings of its source.
func (w *world) reportsRoute(cluster *kafkatest.Cluster, more string) string {
	return fmt.Sprintf(`
  - name: reports
    from: {kafka: {brokers: %q, topics: [reports]%s}}
    to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s], type: %q}}
`, cluster.Addr(), more, w.gate.Tenant(), w.sender.ID, w.receiver.ID, shapes)
}

// reported is a record for reportsRoute, which comes to the gateway as the message of this context ID. All have one key.
func reported(id string) *kgo.Record {
	return &kgo.Record{Topic: "reports", Key: []byte("field"), Value: []byte(mark + id), Headers: []kgo.RecordHeader{{Key: gateway.KeyContextID, Value: []byte(id)}}}
}

// arrived counts what has come to the receiver by its context ID.
func (w *world) arrived() map[string]int {
	count := map[string]int{}
	for _, e := range w.gate.Ledger() {
		count[e.ContextID]++
	}
	return count
}

// It can be stopped while the brokers that it reads from are down, and finds them
// again when they are back.
func TestSourceDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "reports"))
	routes := w.outRoute() + w.reportsRoute(cluster, ", connect_timeout: 1s")
	b := w.start(unhurried(w.head()) + w.natsSink() + allRoute + routes)
	b.waitReady()
	w.server.Stop()
	w.restart()
	w.put("out.task", taskData)
	testkit.Eventually(w, "the message has arrived", func() bool { return len(w.arrived()) == 1 })
	w.server.Stop()
	cluster.Stop()
	_ = b.stop() // it may tell that it could not end the consumer well
	// And it starts while they are down.
	// The group waits for its former member as long as a rebalance may take, which follows from the time to end.
	again := w.start(strings.Replace(w.head(), "timeout: 2m", "timeout: 20s", 1) + w.natsSink() + allRoute + routes)
	again.logs.contains("level=WARN", "source unavailable", "route=back")
	again.logs.contains("level=WARN", "source unavailable", "route=reports")
	if again.isReady() {
		t.Error("ready without its sources")
	}
	w.restart()
	cluster.Restart()
	again.waitReady()
	id := w.put("out.task", taskData)
	testkit.Eventually(w, "the message has arrived", func() bool { return w.arrived()[id] == 1 })

	// A record of someone who knows nothing of us has the type that the route says.
	producer := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr())))(t)
	defer producer.Close()
	before := len(w.arrived())
	testkit.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: "reports", Value: []byte("a report")}).FirstErr())
	testkit.Eventually(w, "the report has arrived", func() bool { return len(w.arrived()) == before+1 })
	again.mustStop()
}

// One payload that a producer stores under one ID for two types, or with two filenames, is two messages.
func TestOnePayloadSentAsTwo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute + w.outRoute())
	b.waitReady()
	id := uuid.NewString()
	for i, sent := range [][2]string{{taskData, ""}, {shapes, ""}, {taskData, "a.zip"}, {taskData, ""}} { // the last one is a copy
		msg := natsgo.NewMsg(fmt.Sprintf("out.%d", i))
		msg.Data = []byte(mark + id)
		for key, value := range map[string]string{gateway.KeyContextID: id, gateway.KeyMessageType: sent[0], gateway.KeyFilename: sent[1]} {
			msg.Header.Set(key, value)
		}
		testkit.Must(w.js.PublishMsg(w.Context(), msg))(w)
	}
	testkit.Eventually(w, "all are handled", func() bool {
		back := b.Snapshot().Routes[1]
		return back.Delivered+back.Duplicates == 4
	})
	w.waitConfirmed()
	if n := w.arrived()[id]; n != 3 {
		t.Errorf("%d messages have arrived, want 3", n)
	}
	b.mustStop()
}

// A message that the gateway will never take goes to the poison queue.
func TestPoisonOnTheWayBack(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute + w.outRoute())
	b.waitReady()
	msg := natsgo.NewMsg("out.data") // without a type
	msg.Data = []byte(mark)
	testkit.Must(w.js.PublishMsg(t.Context(), msg))(t)
	testkit.Eventually(w, "it is in the poison queue", func() bool { return len(w.read("agrimill.poison")) == 1 })
	b.mustStop()
	if h := b.Snapshot().Routes[1]; h.Poisoned != 1 || h.Name != "back" {
		t.Errorf("route: %s", w.asJSON(h))
	}
}

// A route from a broker to a sink, past the gateway, whose source was never there is no route from
// the gateway: it is not ready, and everybody who asks is told why.
func TestBrokerToSinkSourceNeverThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outRoute() // for its stream
	gone := kafkatest.Start(t)
	gone.Stop()
	b := w.start(w.head() + w.natsSink() + allRoute + fmt.Sprintf(`
  - {name: nowhere, from: {nats: {url: %[1]q, stream: NOPE, subject: "out.>", durable: nowhere}}, to: {sink: farm, topic: x}}
  - {name: missing, from: {kafka: {brokers: [%[3]q], topics: [report]}}, to: {sink: farm, topic: x}}
  - {name: dead, from: {kafka: {brokers: [%[2]q], topics: [reports], connect_timeout: 1s}}, to: {sink: farm, topic: x}}
  - {name: there, from: {nats: {url: %[1]q, subject: "out.>", durable: there}}, to: {sink: farm, topic: x}}
`, w.proxy.URL(), gone.Addr(), kafkatest.Start(t, kfake.SeedTopics(1, "reports")).Addr()))
	states := func() map[string]admin.Route {
		routes := map[string]admin.Route{}
		for _, r := range b.Snapshot().Routes {
			routes[r.Name] = r
		}
		return routes
	}
	testkit.Eventually(w, "the routes have tried, or run", func() bool {
		r := states()
		return r["nowhere"].LastError != "" && r["dead"].LastError != "" && r["missing"].LastError != "" && r["there"].State == router.StateRunning
	})
	for name, want := range map[string]bool{"nowhere": false, "dead": false, "missing": false, "there": true} {
		testkit.EventuallyNil(t, func() error { // another attempt may have changed the reason in between
			r := states()[name]
			for _, c := range b.Ready(t.Context()) {
				if c.Name == "route "+name && r.Direction == admin.BrokerToSink && c.OK == want && (want || c.Message == "starting: "+r.LastError) {
					return nil
				}
			}
			return fmt.Errorf("%s: %s, %s", name, w.asJSON(r), w.asJSON(b.Ready(t.Context())))
		})
		if !want {
			b.logs.contains("level=WARN", "source unavailable", "route="+name)
		}
	}
	if err := states()["missing"].LastError; !strings.Contains(err, "no such topic: report; there are reports") {
		t.Errorf("of a topic that is missing it says %q", err)
	}
}

// A pipeline without any route from the gateway does not wait for its event stream.
func TestOnlyBrokerToSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outRoute() // for its stream
	b := w.start(w.head() + w.natsSink() + fmt.Sprintf("routes: [{name: past, from: {nats: {url: %q, subject: \"out.>\"}}, to: {sink: farm, topic: x}}]", w.proxy.URL()))
	b.waitReady()
	if state := b.Snapshot().Gateway.State; state != admin.GatewayUnused {
		t.Errorf("the gateway is %s", state)
	}
	for _, c := range b.Ready(t.Context()) {
		if c.Name == "confirmations" {
			t.Errorf("there are no confirmations to check: %+v", c)
		}
	}
}
