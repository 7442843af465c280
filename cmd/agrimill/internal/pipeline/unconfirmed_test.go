package pipeline_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What waits for its file is unconfirmed, and has an age like everything else.
func TestHeldMessagesAreUnconfirmed(t *testing.T) {
	w := newWorld(t)
	b := w.start(strings.Replace(w.head()+w.natsSink()+allRoute, "subscriber:\n", "subscriber:\n  files: ["+pictures+"]\n  file_hold: 10m\n", 1))
	b.waitReady()
	if s := b.Snapshot().Subscriber; !s.OldestUnconfirmed.IsZero() {
		t.Errorf("nothing has come, and the oldest waits since %v", s.OldestUnconfirmed)
	}
	w.send(pictures, 2)
	testkit.Eventually(w, "they are held", func() bool { return b.Snapshot().Subscriber.Held == 2 })
	if s := b.Snapshot().Subscriber; s.OldestUnconfirmed.IsZero() || s.InFlight != 0 {
		t.Errorf("%d are in flight, and the oldest waits since %v", s.InFlight, s.OldestUnconfirmed)
	}
	if open := b.Open(); len(open) != 1 || open[0].Held != 2 || open[0].Oldest.IsZero() {
		t.Errorf("open: %+v", open)
	}
	_ = b.stop() // they are left
}

// Confirmations that fail are seen on the page, in the readiness and in the log, where their end is, too. While those of
// another tenant are accepted, they keep nobody from being ready.
func TestConfirmationsFail(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	sick := w.gate.AddTenant()
	w.gate.Authorize(w.gate.Application(), sick)
	sender := w.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: sick, Send: []string{taskData}})
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: sick, Receive: []string{taskData}, Subscribe: []string{taskData}})
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Match: func(r *http.Request) bool {
		return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), sick)
	}})
	testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: taskData, Payload: []byte(mark)}))(t)
	b.logs.contains("level=WARN", "msg=problem", "kind=confirmations")
	if c := b.check("confirmations"); c.OK || c.Since.IsZero() || !strings.Contains(c.Message, sick) {
		t.Errorf("check: %+v", c)
	}
	if text := b.Snapshot().Subscriber.ConfirmationsFail; !strings.Contains(text, "nothing is lost") {
		t.Errorf("status: %q", text)
	}

	testkit.Eventually(t, "it is ready while others are accepted, and says so", func() bool {
		if !w.behind() {
			w.send(taskData, 1)
		}
		c := b.check("confirmations")
		return c.OK && strings.Contains(c.Message, sick)
	})
	w.gate.LiftAll()
	w.waitConfirmed()
	b.logs.contains("level=INFO", "problem over", "kind=confirmations")
	testkit.Eventually(t, "nothing is said of the tenant", func() bool { // once the answers are there
		c := b.check("confirmations")
		return c.OK && c.Message == ""
	})
	b.mustStop()
}
