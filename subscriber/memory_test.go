package subscriber_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// The payloads of chunks are not kept once their file has arrived.
func TestAbsorbedChunksAreNotKept(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{ChunkSize: 32 << 10, InlineLimit: 64 << 10, ReleaseConfirmed: true, PayloadLifetime: time.Second})
	cfg := f.config()
	cfg.Files = []string{typeFile}
	cfg.FileHold = time.Hour
	cfg.MaxInFlightBytes = 1 << 20
	sub := f.subscriber(cfg)
	var n atomic.Int64
	go ackAll(f.subscribe(sub, subscriber.AllData), &n)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	payload := make([]byte, 320<<10) // ten chunks
	before := heap()
	const files = 50 // 16 MB
	for i := range files {
		f.send(typeFile, payload, f.receiver)
		testkit.Eventually(t, "the file is delivered", func() bool { return n.Load() == int64(i+1) })
	}
	f.waitConfirmed(files * 10)
	f.server.Advance(time.Hour)
	if grown := heap() - before; grown > 10<<20 {
		t.Errorf("the heap has grown by %d MB", grown>>20)
	}
	f.close(sub)
}

// Events that are not data count with their bytes.
func TestControlEventsCountInTheWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.MaxInFlightBytes = 1 << 20
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.Everything)
	testkit.Eventually(t, "connected", func() bool { return f.server.Streams() == 1 })
	big := strings.Repeat("x", 300<<10)
	for i := range 10 {
		f.server.EmitRaw(f.server.Application(), fmt.Appendf(nil, "event: FUTURE_EVENT\ndata: {\"event_type\":\"FUTURE_EVENT\",\"n\":%d,\"x\":\"%s\"}\n\n", i, big))
	}
	msg := f.next(messages) // its handler takes its time
	testkit.Eventually(t, "the window is full", func() bool { return sub.Stats().InFlight == 3 })
	f.nothing(messages)
	if s := sub.Stats(); s.InFlight != 3 || s.InFlightBytes > cfg.MaxInFlightBytes {
		t.Errorf("%d in flight with %d bytes", s.InFlight, s.InFlightBytes)
	}
	msg.Ack()
	f.ackN(messages, 9)
}

// An event in the quarantine that is redelivered again and again does not fill the backlog.
func TestQuarantinedCopiesDoNotFillTheBacklog(t *testing.T) {
	synctest.Test(t, testQuarantinedCopiesDoNotFillTheBacklog)
}

func testQuarantinedCopiesDoNotFillTheBacklog(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500})
	cfg := f.config()
	cfg.Confirm.MaxBacklog = 50
	cfg.Quarantine.Publisher = &testkit.Publisher{}
	sub := f.subscriber(cfg)
	_ = f.subscribe(sub, subscriber.AllData)
	testkit.Eventually(t, "connected", func() bool { return f.server.Streams() == 1 })
	raw := fmt.Appendf(nil, "event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":\"11111111-1111-4111-8111-111111111111\",\"receiving_endpoint_id\":\"%s\",\"tenant_id\":\"%s\",\"payload\":\"!\"}\n\n", f.receiver.ID, f.server.Tenant())
	for range 1000 {
		f.server.EmitRaw(f.server.Application(), raw)
	}
	testkit.Eventually(t, "all arrived", func() bool { return sub.Stats().Malformed == 1000 })
	if got := sub.Stats().PendingConfirmations; got > 51 {
		t.Errorf("%d confirmations wait", got)
	}
}
