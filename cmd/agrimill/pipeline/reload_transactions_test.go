package pipeline_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// A reload replaces a sink in Kafka that stores in transactions, under load. Until the routes of before have ended, both
// sinks may store, and each fences the other one off. Everything is stored once all the same, in the order of its key.
func TestReloadChangesSinkInTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t)
	configured := func(timeout time.Duration) string {
		return w.head() + fmt.Sprintf(`sinks: {lake: {kafka: {brokers: %q, partitions: 2, transactional_id: lake, publish_timeout: %v}}}
poison: {sink: lake}
routes:
  - {name: all, from: {gateway: all}, to: {sink: lake, topic: one}}
`, cluster.Addr(), timeout)
	}
	b := w.start(configured(5 * time.Second))
	b.waitReady()
	stop := w.keepBusy(2, taskData, shapes)
	for n := range 6 {
		before := len(w.confirmed())
		testkit.Eventually(w, "messages are confirmed", func() bool { return len(w.confirmed()) > before+50 })
		report := b.reload(configured(time.Duration(6+n) * time.Second))
		if report.Unfinished != "" || !slices.ContainsFunc(report.Changed, func(s string) bool { return strings.Contains(s, "lake") }) {
			t.Errorf("reload %d: %+v", n, report)
		}
	}
	stop()
	w.waitConfirmed()
	b.mustStop()

	position := map[key]int{}
	for i, e := range w.gate.Ledger() {
		position[key{e.EndpointID, e.ContextID, e.SHA256}] = i
	}
	total, last := len(position), map[string]int{}
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.one") {
		header := map[string]string{}
		for _, h := range record.Headers {
			header[h.Key] = string(h.Value)
		}
		k := key{header[gateway.KeyReceivingEndpointID], header[gateway.KeyContextID], sha256.Sum256(record.Value)}
		at, ok := position[k]
		if !ok {
			t.Errorf("a message is stored twice, or was never sent: %+v", k)
			continue
		}
		delete(position, k)
		if before, ok := last[k.endpoint]; ok && at < before {
			t.Errorf("message %d of an endpoint is stored behind %d", at, before)
		}
		last[k.endpoint] = at
	}
	if len(position) > 0 {
		t.Errorf("%d of %d messages are not stored", len(position), total)
	}
	t.Logf("%d messages", total)
}
