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

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// Routes from NATS and Kafka to the gateway are reloaded under load, from one durable, or window, to another one and
// back. All of it arrives, that of a key in order, and once, although the other durable consumer has a position of
// its own: what it delivers again the route knows, and what the producer has stored twice.
func TestReloadOfSources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "reports"))
	producer := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr())))(t)
	defer producer.Close()
	out := w.outRoute()
	// configuration has the durable, the window, and something that changes both routes.
	configuration := func(durable, window, teamset string) string {
		routes := strings.Replace(out, `subject: "out.>"`, fmt.Sprintf(`subject: "out.>", durable: %s`, durable), 1) +
			w.reportsRoute(cluster, ", max_in_flight: "+window)
		return w.head() + w.natsSink() + allRoute + strings.ReplaceAll(routes, "to: {gateway: {", fmt.Sprintf("to: {gateway: {teamset_context_id: %q, ", teamset))
	}
	b := w.start(configuration("first", "256", "1"))
	b.waitReady()

	var fromNATS, fromKafka []string
	stop := w.repeat(10*time.Millisecond, func() {
		if len(fromNATS)+len(fromKafka) > len(w.gate.Ledger())+100 {
			return // it is behind
		}
		fromNATS = append(fromNATS, w.put("out.task", taskData))
		id := uuid.NewString()
		fromKafka = append(fromKafka, id)
		for range 2 { // as a producer stores it that is not idempotent
			if err := producer.ProduceSync(t.Context(), reported(id)).FirstErr(); err != nil {
				t.Error(err)
			}
		}
	})
	for i, c := range [][3]string{
		{"first", "256", "2"}, {"second", "8", "2"}, {"second", "8", "3"},
		{"first", "256", "3"}, {"second", "256", "3"}, {"first", "8", "4"},
	} {
		n := len(w.gate.Ledger())
		testkit.Eventually(w, "messages have come", func() bool { return len(w.gate.Ledger()) > n+20 })
		report := b.reload(configuration(c[0], c[1], c[2]))
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
	b.finish()

	arrived := w.arrived()
	for name, ids := range map[string][]string{"NATS": fromNATS, "Kafka": fromKafka} {
		for i, id := range ids {
			if arrived[id] != 1 {
				t.Errorf("message %d of %d from %s arrived %d times", i, len(ids), name, arrived[id])
			}
		}
	}
	var inOrder []string
	for _, e := range w.gate.Ledger() {
		if slices.Contains(fromKafka, e.ContextID) {
			inOrder = append(inOrder, e.ContextID)
		}
	}
	testkit.Equal(t, inOrder, fromKafka)
	t.Logf("%d messages from each", len(fromNATS))
}
