package pipeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
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

// At each place where the ID of an endpoint may stand, its external ID means the same: a message passes.
func TestExternalIDsAreResolved(t *testing.T) {
	t.Parallel()
	const back = `routes: [{name: back, from: {nats: {url: "URL", subject: "out.>"}}, to: {gateway: {tenant: TENANT`
	for place, text := range map[string]string{
		"routes.filter.endpoint":       `routes: [{name: in, from: {gateway: all}, filter: {endpoint: "RECEIVER"}, to: {sink: farm}}]`,
		"routes.filter.endpoint, back": back + `, endpoint: SENDER-ID, recipients: RECEIVER-ID}}, filter: {endpoint: "SENDER"}}]`,
		"routes.to.gateway.endpoint":   back + `, endpoint: "SENDER", recipients: RECEIVER-ID}}}]`,
		"routes.to.gateway.recipients": back + `, endpoint: SENDER-ID, recipients: ["RECEIVER"]}}}]`,
		"routes.set, sender":           back + `, endpoint: SENDER-ID, recipients: RECEIVER-ID}}, set: {x-router-endpoint-id: "'SENDER'"}}]`,
		"routes.set, recipients":       back + `, endpoint: SENDER-ID}}, set: {x-router-direct-recipients: "'RECEIVER, RECEIVER-ID'"}}]`,
		"publisher.endpoint":           back + "}}}]\n" + `publisher: {endpoint: "SENDER", recipients: RECEIVER-ID}`,
		"publisher.recipients":         back + "}}}]\n" + `publisher: {endpoint: SENDER-ID, recipients: ["RECEIVER"]}`,
	} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outRoute() // its stream
			w.start(w.head() + w.natsSink() + strings.NewReplacer("URL", w.proxy.URL(), "TENANT", w.gate.Tenant(), "SENDER-ID", w.sender.ID,
				"RECEIVER-ID", w.receiver.ID, "SENDER", w.sender.ExternalID, "RECEIVER", w.receiver.ExternalID).Replace(text))
			if !strings.Contains(text, "back") {
				w.send(taskData, 1)
				w.waitConfirmed()
				return
			}
			w.put("out.task", shapes)
			testkit.Eventually(t, "the message has arrived", func() bool { return len(w.gate.Ledger()) == 1 })
			if e := w.gate.Ledger()[0]; e.SenderID != w.sender.ID || e.EndpointID != w.receiver.ID {
				t.Errorf("from %s to %s", e.SenderID, e.EndpointID)
			}
		})
	}
}

// Without the event stream, nothing tells that an endpoint was deleted and made anew: a message that is refused because of that
// is sent to and from the new ones.
func TestEndpointMadeAnew(t *testing.T) {
	t.Parallel()
	for _, remade := range []string{"sender", "receiver"} {
		t.Run(remade, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.tenants = time.Hour
			out := w.outRoute()
			for _, e := range []gateway.Endpoint{w.sender, w.receiver} {
				out = strings.ReplaceAll(out, e.ID, fmt.Sprintf("%q", e.ExternalID))
			}
			b := w.start(w.head() + w.natsSink() + "\nroutes:" + out)
			w.put("out.task", shapes)
			testkit.Eventually(t, "the first one has arrived, and the list was refreshed", func() bool {
				return len(w.gate.Ledger()) == 1 && w.gate.Stats(gatewaytest.OpListTenants).Requests > 1
			})
			old, receives := w.sender, w.receiver.ID
			if remade == "receiver" {
				old = w.receiver
			}
			w.gate.DeleteEndpointByUser(old.ID)
			anew := w.gate.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: old.ExternalID, Send: []string{shapes}, Receive: []string{shapes}})
			if remade == "receiver" {
				receives = anew.ID
			}
			w.put("out.task", shapes)
			testkit.Eventually(t, "the other one has arrived", func() bool { return len(w.gate.Ledger()) == 2 })
			if got := w.gate.Ledger()[1].EndpointID; got != receives {
				t.Errorf("%s received it, want %s", got, receives)
			}
			b.depthIs(0)
			b.mustStop()
		})
	}
}

// A replay beside agrimill finds the endpoints, too: those that the configuration names by then.
func TestReplayByExternalID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.gate.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 400, Times: 1})
	text := w.head() + w.natsSink() + "\nroutes:" + strings.ReplaceAll(w.outRoute(), w.sender.ID, fmt.Sprintf("%q", w.sender.ExternalID))
	b := w.start(strings.ReplaceAll(text, w.receiver.ID, fmt.Sprintf("%q", w.sender.ExternalID)))
	w.put("out.task", shapes)
	b.depthIs(1)
	ctx := testkit.Context(t)
	beside := testkit.Must(pipeline.NewReplayer(ctx, w.parse(strings.ReplaceAll(text, w.receiver.ID, fmt.Sprintf("%q", w.receiver.ExternalID))), []string{"back"}, pipeline.Options{}))(t)
	for poisoned, err := range b.PoisonStore().Messages(ctx) {
		testkit.NoError(t, err)
		if report, err := beside.Replay(ctx, b.PoisonStore(), []string{poisoned.ID}); err != nil || report.Sent != 1 {
			t.Errorf("%+v, %v", report, err)
		}
	}
	testkit.NoError(t, beside.Close())
	if arrived := w.gate.Ledger(); len(arrived) != 1 || arrived[0].EndpointID != w.receiver.ID {
		t.Errorf("arrived: %s", w.asJSON(arrived))
	}
	b.mustStop()
}
