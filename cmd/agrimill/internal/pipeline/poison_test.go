package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
)

// depthIs waits until the status tells how many messages are in the poison queue.
func (b *agrimill) depthIs(want int64) {
	b.w.Helper()
	testkit.Eventually(b.w, fmt.Sprintf("%d messages are in the poison queue", want), func() bool {
		depth := b.Snapshot().Poison.Depth
		return depth != nil && *depth == want
	})
}

// A route that poisons everything is failing: in the status, the log, /readyz and the
// metrics. How much is in the poison queue is known to a process that has put nothing
// into it.
func TestRouteThatPoisonsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := w.head() + strings.Replace(w.natsSink(), "poison: {sink: farm}", "poison: {sink: farm, failing_after: 3}", 1) +
		"routes:\n  - {name: farm-data, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n"
	b := w.start(text)
	b.waitReady()
	b.depthIs(0)
	w.send(taskData, 2)
	w.waitConfirmed()
	if h := b.Snapshot().Routes[0]; h.State != router.StateRunning || h.Poisoned != 2 {
		t.Errorf("after two: %s", w.asJSON(h))
	}
	w.send(taskData, 1)
	w.waitConfirmed()
	if h := b.Snapshot().Routes[0]; h.State != router.StateFailing || h.PoisonedInARow != 3 {
		t.Errorf("after three: %s", w.asJSON(h))
	}
	b.logs.contains("level=WARN", "msg=problem", "kind=route", "name=farm-data", "no filename")
	b.depthIs(3)
	testkit.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
# HELP agrimill_poison_queue_messages Messages in the poison queue, as reported by the broker.
# TYPE agrimill_poison_queue_messages gauge
agrimill_poison_queue_messages{kind="nats",sink="farm"} 3
# HELP agrimill_route_state 1 for the current state of the route, 0 for the others.
# TYPE agrimill_route_state gauge
agrimill_route_state{route="farm-data",state="ended"} 0
agrimill_route_state{route="farm-data",state="failed"} 0
agrimill_route_state{route="farm-data",state="failing"} 1
agrimill_route_state{route="farm-data",state="outage"} 0
agrimill_route_state{route="farm-data",state="running"} 0
agrimill_route_state{route="farm-data",state="starting"} 0
agrimill_route_state{route="farm-data",state="stopped"} 0
`), "agrimill_poison_queue_messages", "agrimill_route_state"))
	b.mustStop()

	again := w.start(text)
	again.waitReady()
	again.depthIs(3)
	if h := again.Snapshot().Routes[0]; h.Poisoned != 0 || h.State != router.StateRunning {
		t.Errorf("after a restart: %s", w.asJSON(h))
	}
	// While nobody can tell, nothing is reported.
	w.server.Stop()
	testkit.Eventually(w, "the depth is not known", func() bool { return again.Snapshot().Poison.Depth == nil })
	if n, err := testutil.GatherAndCount(again.registry, "agrimill_poison_queue_messages"); err != nil || n != 0 {
		t.Errorf("%d series, %v", n, err)
	}
	_ = again.stop()
}

// A queue in Kafka tells what is in it, one in files nothing, and says so.
func TestDepthOfOtherQueues(t *testing.T) {
	w := newWorld(t)
	cluster := kafkatest.Start(t)
	routes := "routes:\n  - {name: farm-data, from: {gateway: all}, to: {sink: queue, topic: \"{filename}\"}}\n"
	b := w.start(w.head() + fmt.Sprintf("sinks: {queue: {kafka: {brokers: %q}}}\npoison: {sink: queue}\n", cluster.Addr()) + routes)
	b.waitReady()
	w.send(taskData, 3)
	w.waitConfirmed()
	b.depthIs(3)
	if q := b.Snapshot().Poison; q.DepthNote != "" || q.Oldest.IsZero() {
		t.Errorf("queue: %s", w.asJSON(q))
	}
	if n, err := testutil.GatherAndCount(b.registry, "agrimill_poison_queue_oldest_age_seconds"); err != nil || n != 1 {
		t.Errorf("%d series, %v", n, err)
	}
	b.mustStop()

	files := w.start(w.head() + fmt.Sprintf("sinks: {queue: {blob: {url: \"file://%s\"}}}\npoison: {sink: queue}\n", t.TempDir()) + routes)
	files.waitReady()
	w.send(taskData, 1)
	w.waitConfirmed()
	if q := files.Snapshot().Poison; q.Depth != nil || !strings.Contains(q.DepthNote, "does not report") {
		t.Errorf("queue: %s", w.asJSON(q))
	}
	files.mustStop()
}
