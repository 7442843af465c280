package pipeline_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
	"github.com/agrimill/agrimill/sinks"
)

// A reload that changes how a sink ingests comes while messages of one key are on their way one
// behind the other: they are stored once, in their order, and none is said to be overtaken.
func TestReloadChangesIngest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := testkit.Must(url.Parse(w.server.URL()))(t)
	far := faultproxy.Late(t, address.Host, 2*time.Millisecond)
	configured := func(ingest string) string {
		return w.head() + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, ingest: %s}}\npoison: {sink: farm}\nroutes:\n", "nats://"+far.Addr(), ingest) +
			route("all", "all", "", "one.{type|none}")
	}
	b := w.start(configured("pipelined"))
	b.waitReady()

	stop := w.keepBusy(8, taskData)
	for _, ingest := range []string{"plain", "pipelined", "plain", "pipelined"} {
		n := len(w.confirmed())
		testkit.Eventually(w, "messages are confirmed", func() bool { return len(w.confirmed()) > n+40 })
		if report := b.reload(configured(ingest)); !slices.ContainsFunc(report.Changed, func(s string) bool { return strings.Contains(s, "farm") }) ||
			report.Unfinished != "" {
			t.Errorf("%s: %+v", ingest, report)
		}
	}
	stop()
	b.finish()

	position := map[key]int{}
	for i, e := range w.gate.Ledger() {
		position[key{e.EndpointID, e.ContextID, e.SHA256}] = i
	}
	last := map[string]int{}
	for _, raw := range w.read("agrimill.one.>") {
		at := position[keyOf(raw)]
		endpoint := keyOf(raw).endpoint
		if at < last[endpoint] {
			t.Errorf("message %d of an endpoint is stored behind %d", at, last[endpoint])
		}
		last[endpoint] = at
		if raw.Header.Get(sinks.KeyOvertaken) != "" {
			t.Errorf("message %d is said to be overtaken", at)
		}
	}
	t.Logf("%d messages", len(position))
}
