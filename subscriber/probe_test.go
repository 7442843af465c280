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

// A stream that could not be opened for a while is not left to its backoff while the gateway serves
// other requests.
func TestStreamIsProbedWhileTheGatewayServesOthers(t *testing.T) {
	synctest.Test(t, testStreamIsProbedWhileTheGatewayServesOthers)
}

func testStreamIsProbedWhileTheGatewayServesOthers(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.Reconnect = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(f, "connected", func() bool { return sub.Stats().Stream.Connected })
	f.sendN(1)
	msg := f.next(messages)
	outage := f.server.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: http.StatusNotFound})
	f.server.CutStreams()
	testkit.Eventually(f, "disconnected", func() bool { return !sub.Stats().Stream.Connected })
	outage.Lift()
	msg.Ack()
	testkit.Eventually(f, "connected again", func() bool { return sub.Stats().Stream.Connects == 2 })
}

// A gateway that cannot serve the stream is left alone for as long as it asks, also while it serves other requests.
func TestStreamIsLeftAloneForAsLongAsTheGatewayAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		sub := f.subscriber(f.config())
		messages := f.subscribe(sub, subscriber.AllData)
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
