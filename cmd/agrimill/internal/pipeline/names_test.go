package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// While nobody knows which endpoints have the external IDs of a configuration, messages wait in both directions; then they
// go where the IDs say.
func TestExternalIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	down := w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503})
	out := w.outRoute()
	for _, e := range []gateway.Endpoint{w.sender, w.receiver} {
		out = strings.ReplaceAll(out, e.ID, fmt.Sprintf("%q", e.ExternalID))
	}
	b := w.start(w.head() + w.natsSink() + fmt.Sprintf(`
routes:
  - {name: farm, from: {gateway: all}, filter: {endpoint: %q}, to: {sink: farm}}
`, w.receiver.ExternalID) + out)
	w.send(taskData, 3)
	w.put("out.task", shapes)
	b.waitOutage("external ID")
	if got := w.confirmed(); len(got) > 0 {
		t.Errorf("%d are confirmed before it is known whether the route takes them", len(got))
	}
	down.Lift()
	testkit.Eventually(t, "the message out has arrived", func() bool { return len(w.gate.Ledger()) == 4 })
	w.waitConfirmed()
	w.checkStored()
}
