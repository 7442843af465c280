package pipeline_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// Kafka in both directions, with a broker that is down when agrimill starts, and
// again later.
func TestKafka(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t, kfake.SeedTopics(3, "reports", "orders"))
	producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addr()))
	must(t, err)
	t.Cleanup(producer.Close)
	// Two copies of each, as a producer makes them that is not idempotent.
	var ids []string
	for i := range 20 {
		id := uuid.NewString()
		ids = append(ids, id)
		for range 2 {
			record := &kgo.Record{
				Topic: []string{"reports", "orders"}[i%2], Value: []byte(mark + id),
				Headers: []kgo.RecordHeader{{Key: gateway.KeyContextID, Value: []byte(id)}, {Key: gateway.KeyMessageType, Value: []byte(taskData)}},
			}
			must(t, producer.ProduceSync(t.Context(), record).FirstErr())
		}
	}
	w.send(shapes, 20)

	cluster.Stop()
	b := w.start(w.head() + fmt.Sprintf(`
sinks:
  lake: {kafka: {brokers: %q, publish_timeout: 3s}}
poison: {sink: lake}
routes:
  - {name: in, from: {gateway: %q}, to: {sink: lake, topic: "data"}}
  - name: back
    from: {kafka: {brokers: %q, topics: [reports, orders]}}
    to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s]}}
`, cluster.Addr(), shapes, cluster.Addr(), w.gate.Tenant(), w.sender.ID, w.receiver.ID))
	b.logs.contains("level=WARN", "unavailable; retrying", "sink=lake")
	if b.isReady() {
		t.Error("ready without Kafka")
	}
	cluster.Restart()
	testkit.Eventually(w, "all have arrived", func() bool {
		for _, id := range ids {
			if w.arrived()[id] == 0 {
				return false
			}
		}
		return true
	})
	shapesConfirmed := func() (n int) {
		for _, e := range w.gate.Ledger() {
			if e.MessageType == shapes && e.Confirmed() {
				n++
			}
		}
		return n
	}
	testkit.Eventually(w, "the shapes are confirmed", func() bool { return shapesConfirmed() == 20 })
	b.waitReady()
	cluster.Stop()
	w.send(shapes, 20)
	b.logs.contains("msg=problem", "kind=sink", "name=lake")
	cluster.Restart()
	testkit.Eventually(w, "all shapes are confirmed", func() bool { return shapesConfirmed() == 40 })
	b.mustStop()

	for _, id := range ids {
		if n := w.arrived()[id]; n != 1 {
			t.Errorf("message %s arrived %d times", id, n)
		}
	}
	stored := map[key]int{}
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.data") {
		k := key{sum: sha256.Sum256(record.Value)}
		for _, h := range record.Headers {
			switch h.Key {
			case gateway.KeyReceivingEndpointID:
				k.endpoint = string(h.Value)
			case gateway.KeyContextID:
				k.context = string(h.Value)
			}
		}
		stored[k]++
	}
	for _, e := range w.gate.Ledger() {
		if e.MessageType == shapes && stored[key{e.EndpointID, e.ContextID, e.SHA256}] == 0 {
			t.Errorf("message %s is not in Kafka", e.MessageID)
		}
	}
	if b.PoisonStore() != nil {
		t.Error("Kafka can be looked at message by message")
	}
}

// Sinks of the other kinds: files and lines.
func TestFilesAndLines(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	b := w.start(w.head() + fmt.Sprintf(`
sinks:
  files: {blob: {url: "file://%s/archive?create_dir=true"}}
  lines: {log: {}}
poison: {sink: files}
dedup: {nats_kv: {url: %q}}
claim_check: {url: "file://%s/payloads?create_dir=true"}
routes:
  - {name: archive, from: {gateway: all}, filter: {filename: "*.zip"}, to: {sink: files, topic: "{type|none}"}}
  - {name: show, from: {gateway: everything}, to: {sink: lines}}
`, dir, w.proxy.URL(), dir))
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	b.mustStop()
	s := b.Snapshot()
	if s.Routes[0].Filtered != 5 || s.Routes[1].Delivered != 5 {
		t.Errorf("routes: %s", w.asJSON(s.Routes))
	}
	if n := strings.Count(b.logs.String(), `"x-router-message-type":"`+taskData+`"`); n != 5 {
		t.Errorf("%d lines were written, want 5", n)
	}
}

// A memory of duplicates that is down when agrimill starts.
func TestMemoryDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Stop()
	b := w.start(w.head() + fmt.Sprintf(`
sinks: {lines: {log: {}}}
poison: {sink: lines}
dedup: {nats_kv: {url: %q}}
routes: [{name: show, from: {gateway: all}, to: {sink: lines}}]
`, w.proxy.URL()))
	w.send(taskData, 5)
	b.waitOutage("dedup")
	if b.isReady() {
		t.Error("ready without the memory")
	}
	b.logs.contains("level=WARN", "unavailable; retrying", "part=dedup")
	b.logs.lacks("level=ERROR")
	w.restart()
	w.waitConfirmed()
	b.waitReady()
	b.mustStop()
}

// A directory that is not there when agrimill starts.
func TestFilesDown(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir() + "/archive"
	b := w.start(strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  payload: lazy\n", 1) + fmt.Sprintf(`
sinks:
  files: {blob: {url: "file://%s"}}
poison: {sink: files}
routes:
  - {name: archive, from: {gateway: all}, to: {sink: files, topic: "{type|none}"}}
`, dir))
	payload := append([]byte(mark), make([]byte, 200<<10)...) // too large for its event
	if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payload}); err != nil {
		t.Fatal(err)
	}
	b.waitOutage("")
	if b.isReady() {
		t.Error("ready without the directory")
	}
	must(t, os.Mkdir(dir, 0o700))
	w.waitConfirmed()
	b.waitReady()
	b.mustStop()
	if h := b.Snapshot().Routes[0]; h.Delivered != 1 || h.Poisoned != 0 {
		t.Errorf("route: %s", w.asJSON(h))
	}
}
