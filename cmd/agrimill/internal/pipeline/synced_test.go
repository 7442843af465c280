package pipeline_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Confirmations that wait for a sync are left at a shutdown, which does not wait for it: their messages come again, and the broker
// drops the copies.
func TestShutdownDoesNotWaitForASync(t *testing.T) {
	t.Parallel()
	const n = 20
	w := newWorld(t)
	config := func(synced string) string {
		sink := strings.Replace(w.natsSink(), "connect_timeout: 1s", "connect_timeout: 1s, synced: "+synced, 1)
		return unhurried(w.head()) + sink + strings.Replace(allRoute, "to:", "durable: synced, to:", 1)
	}
	b := w.start(config("1h"))
	b.waitReady()
	w.send(taskData, n)
	testkit.Eventually(t, "all are stored and wait", func() bool { return b.Snapshot().Subscriber.Unsynced == n })
	b.stopsUnfinished(pipeline.UnfinishedError{Unconfirmed: n})
	if got := len(w.confirmed()); got > 0 {
		t.Errorf("%d are confirmed, and were not synced", got)
	}
	b = w.start(config("10ms"))
	w.waitConfirmed()
	b.mustStop()
	if got := len(w.read("agrimill.>")); got != n {
		t.Errorf("%d are stored, want %d", got, n)
	}
}
