package endtoend

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
)

func TestSinkStoppedMidFlow(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	p := w.start(pipelineConfig{closeTimeout: testkit.Patience})
	w.send(300)
	w.waitConfirmed(100)
	w.nats.Stop()

	// What is sent from now on cannot be stored, so it must not be confirmed.
	w.send(200)
	testkit.Eventually(w, "the outage shows", func() bool { return p.router.Health()[0].State == router.StateOutage })
	testkit.Eventually(w, "the messages arrived", func() bool { return p.sub.Stats().Received >= 500 })
	<-time.After(300 * time.Millisecond) // in which a wrong confirmation would come
	ledger := w.gateway.Ledger()
	for _, e := range ledger[300:] {
		if e.Confirmed() {
			t.Fatalf("message %s was confirmed while the sink was down", e.MessageID)
		}
	}
	if h := p.router.Health()[0]; h.Poisoned != 0 {
		t.Fatalf("%d messages were poisoned by the outage", h.Poisoned)
	}
	w.nats.Restart()
	w.waitConfirmed(500)
	w.oracle.judge(true)
	if got := p.sub.Stats().Stream.Connects; got != 1 {
		t.Errorf("the event stream was opened %d times, want one that outlived the outage", got)
	}
}

func TestRouterClosedWithMessagesOpen(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	proxy := natstest.NewProxy(t, w.nats.URL())
	p := w.start(pipelineConfig{natsURL: proxy.URL(), closeTimeout: 3 * time.Second, maxInFlight: 100})
	w.send(50)
	w.waitConfirmed(50)
	proxy.Hang() // publishes will be under way and get no answer
	w.send(450)
	testkit.Eventually(w, "messages are open", func() bool { return p.sub.Stats().InFlight >= 50 })

	testkit.Ends(t, "closing", func() { t.Logf("Run = %v", p.stop()) }) // by its timeout: nothing else ends it
	proxy.Resume()
	w.oracle.judge(false)
	confirmed := w.confirmed()
	if confirmed == 500 {
		t.Fatal("everything was confirmed: nothing was open at the close")
	}
	// The next process gets all the rest, and stores nothing twice.
	w.start(pipelineConfig{closeTimeout: testkit.Patience})
	w.waitConfirmed(500)
	w.oracle.judge(true)
}

// Two routes from one subscriber both get every message, also those that the
// gateway sends first: the stream is not opened before both are there.
func TestTwoRoutesFromOneSubscriberBothGetEverything(t *testing.T) {
	for range 10 {
		w := newWorld(t, gatewaytest.Config{})
		w.send(50)
		p := w.startRoutes(pipelineConfig{closeTimeout: testkit.Patience}, "one.", "two.")
		w.waitConfirmed(50)
		testkit.NoError(t, p.stop())
		count, _ := w.oracle.stored()
		if len(count) != 100 {
			t.Fatalf("%d messages stored by two routes, want 50 each", len(count))
		}
	}
}
