package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// outRoute is a route from the stream OUT to the gateway, to be added to others.
func (w *world) outRoute() string {
	w.Helper()
	if _, err := w.js.CreateOrUpdateStream(w.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}}); err != nil {
		w.Fatal(err)
	}
	return fmt.Sprintf(`
  - name: back
    from: {nats: {url: %q, subject: "out.>"}}
    to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s]}}
`, w.proxy.URL(), w.gate.Tenant(), w.sender.ID, w.receiver.ID)
}

// arrived counts what has come to the receiver by its context ID.
func (w *world) arrived() map[string]int {
	count := map[string]int{}
	for _, e := range w.gate.Ledger() {
		count[e.ContextID]++
	}
	return count
}

func TestBothWays(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute + w.outRoute())
	b.waitReady()
	var ids []string
	for range 50 {
		ids = append(ids, w.put("out.task", taskData))
	}
	w.eventually("all have arrived", func() bool { return len(w.arrived()) == len(ids) })
	w.waitConfirmed()
	// What went to the gateway came back from it: it is one of our endpoints.
	b.mustStop()
	w.checkStored()
	for _, id := range ids {
		if n := w.arrived()[id]; n != 1 {
			t.Errorf("message %s arrived %d times", id, n)
		}
	}
}
