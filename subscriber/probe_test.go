package subscriber_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// However long the stream could not be opened, it is soon after it can be.
func TestStreamComesBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		cfg := f.config()
		cfg.Reconnect = subscriber.Backoff{}
		sub := f.subscriber(cfg)
		f.subscribe(sub, subscriber.AllData)
		testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
		outage := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: http.StatusNotFound})
		f.server.CutStreams()
		time.Sleep(10 * time.Minute)
		outage.Lift()
		time.Sleep(5*time.Second + 100*time.Millisecond)
		if !sub.Stats().Stream.Connected {
			t.Error("not connected five seconds after the outage")
		}
	})
}

// A gateway that cannot serve the stream is left alone for as long as it asks.
func TestStreamIsLeftAloneForAsLongAsTheGatewayAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		sub, messages := f.receive(f.config())
		testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
		f.sendN(1)
		msg := f.next(messages)
		const asked = 40 * time.Second
		f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{
			Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"40"}}, Times: 1,
		})
		f.server.CutStreams()
		testkit.Eventually(f, "refused", func() bool { return sub.Stats().Stream.LastError != nil })
		began := time.Now()
		msg.Ack()
		testkit.Eventually(f, "connected again", func() bool { return sub.Stats().Stream.Connects == 2 })
		if waited := time.Since(began); waited < asked-time.Second || waited > asked+time.Second {
			t.Errorf("it waited for %v, want %v", waited, asked)
		}
	})
}
