package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// Routes from NATS and Kafka to the gateway are reloaded under load with each driver, and from
// one driver to the other and back. All of it arrives, and once, although the other driver's
// durable consumer has a position of its own: what it delivers again the route knows.
func TestReloadWithEachDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ackWait = time.Second
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "reports"))
	producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addr()))
	must(t, err)
	defer producer.Close()
	out := w.outRoute()
	// configuration has the drivers, and something that changes both routes.
	configuration := func(nats, kafka, teamset string) string {
		routes := strings.Replace(out, `subject: "out.>"`, fmt.Sprintf(`subject: "out.>", driver: %s, durable: %s`, nats, nats), 1) + fmt.Sprintf(`
  - name: reports
    from: {kafka: {brokers: %q, topics: [reports], driver: %s}}
    to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s], type: %q}}
`, cluster.Addr(), kafka, w.gate.Tenant(), w.sender.ID, w.receiver.ID, shapes)
		return w.head() + w.natsSink() + allRoute + strings.ReplaceAll(routes, "to: {gateway: {", fmt.Sprintf("to: {gateway: {teamset_context_id: %q, ", teamset))
	}
	b := w.start(configuration("agrimill", "agrimill", "1"))
	b.waitReady()

	var fromNATS, fromKafka []string
	stop := w.repeat(10*time.Millisecond, func() {
		if len(fromNATS)+len(fromKafka) > len(w.gate.Ledger())+100 {
			return // it is behind
		}
		fromNATS = append(fromNATS, w.put("out.task", taskData))
		id := uuid.NewString()
		fromKafka = append(fromKafka, id)
		record := &kgo.Record{Topic: "reports", Value: []byte(mark + id), Headers: []kgo.RecordHeader{{Key: gateway.KeyContextID, Value: []byte(id)}}}
		if err := producer.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Error(err)
		}
	})
	for i, drivers := range [][3]string{
		{"agrimill", "agrimill", "2"},
		{"watermill", "watermill", "2"}, {"watermill", "watermill", "3"},
		{"agrimill", "agrimill", "3"}, {"watermill", "agrimill", "3"}, {"agrimill", "watermill", "4"},
	} {
		n := len(w.gate.Ledger())
		testkit.Eventually(w, "messages have come", func() bool { return len(w.gate.Ledger()) > n+20 })
		report := b.reload(configuration(drivers[0], drivers[1], drivers[2]))
		if len(report.Changed) == 0 || report.Unfinished != "" {
			t.Errorf("reload %d: %+v", i, report)
		}
	}
	stop()
	ids := slices.Concat(fromNATS, fromKafka)
	testkit.Eventually(w, "all have arrived", func() bool {
		arrived := w.arrived()
		return !slices.ContainsFunc(ids, func(id string) bool { return arrived[id] == 0 })
	})
	testkit.Eventually(w, "nothing waits", func() bool {
		waiting := b.Snapshot().Routes[1].Backlog
		return waiting != nil && *waiting == 0
	})
	w.waitConfirmed()
	b.mustStop()
	w.checkStored()

	arrived := w.arrived()
	for name, ids := range map[string][]string{"NATS": fromNATS, "Kafka": fromKafka} {
		for i, id := range ids {
			if arrived[id] != 1 {
				t.Errorf("message %d of %d from %s arrived %d times", i, len(ids), name, arrived[id])
			}
		}
	}
	t.Logf("%d messages from each", len(fromNATS))
}
