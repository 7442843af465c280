package subscriber

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// heapInUse returns how much of the heap is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// downPublisher stores nothing.
type downPublisher struct{ message.Publisher }

func (downPublisher) Publish(string, ...*message.Message) error {
	return errors.New("the sink is down")
}

// 10,000 messages come, each with a key of its own, of which some are put off, some hang in their
// handlers, some wait for a file, some for the quarantine, some, each of a tenant of its own, for
// their payload, and some are acked and confirmed later, because they may be chunks: those that do not wait are confirmed, and what waits has few goroutines, no more places
// than there are, and little memory.
func TestManyWaitingMessages(t *testing.T) {
	for _, order := range []Order{OrderByKey, Unordered} {
		testkit.RunBubble(t, order.String(), func(t *testing.T) { testManyWaiting(t, order) })
	}
}

func testManyWaiting(t *testing.T, order Order) {
	const window, held, fileType = 200, 500, "file"
	client := &silentClient{}
	s := testkit.Must(New(Config{
		Client: client, StartAfter: -1, Order: order, MaxInFlight: window, MaxHeld: held, Files: []string{fileType}, FileHold: 10 * time.Hour, ChunkSize: 10,
		DrainTimeout: time.Second, CloseTimeout: 3 * time.Second, Quarantine: QuarantineConfig{Publisher: downPublisher{}},
	}, nil))(t)
	var again atomic.Bool // the stream is to be reconnected
	connect := func() {
		again.Store(false)
		s.setConnected(func() { again.Store(true) }, false)
	}
	messages := testkit.Must(s.Subscribe(t.Context(), AllData))(t)
	hang := make(chan struct{})
	end := sync.OnceFunc(func() { close(hang) })
	defer func() { end(); _ = s.Close() }()
	go func() { // ends with the subscription
		for msg := range messages {
			switch msg.Metadata[gateway.KeyTenantID] {
			case "put off":
				nack := msgctx.NackOf(msg.Context())
				nack.Keep("kept")
				nack.After(time.Second)
				msg.Nack()
			case "hangs":
				go func() { <-hang; msg.Nack() }()
			default:
				msg.Ack()
			}
		}
	}()
	synctest.Wait()
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	most, mostInFlight := 0, 0
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	connect()
	well, mostHeld := 0, 0
	for i := range many {
		kind := [...]string{"put off", "hangs", "files", "well", "malformed", "payload", "may be a chunk", "well"}[i%8]
		event := &gateway.MessageReceived{
			ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
			TenantID: kind, MessageType: "type", Payload: []byte("small"),
		}
		switch kind {
		case "files":
			event.MessageType, event.Payload = fileType, []byte("as large as a chunk")
		case "may be a chunk":
			well++
			event.Payload = []byte("as large as a chunk")
		case "well":
			well++
		case "payload":
			event.TenantID, event.Payload, event.PayloadURI = fmt.Sprint("payload ", i), nil, fmt.Sprintf("https://host%d.test/", i)
		}
		for first := true; first || again.Load(); first = false {
			if again.Load() {
				connect() // and it comes again
			}
			if kind == "malformed" {
				s.malformed(ctx, gateway.RawEvent{Data: fmt.Appendf(nil, "{%d", i)}, errors.New("it is no JSON"))
			} else {
				s.intake(ctx, event, 0)
			}
			if ctx.Err() != nil {
				t.Fatalf("message %d finds no room", i)
			}
		}
		most = max(most, runtime.NumGoroutine())
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
			stats := s.Stats()
			mostInFlight = max(mostInFlight, stats.InFlight)
			if stats.Parked+stats.Stalled > 4*window || stats.HeldNow > held || stats.QuarantineWaiting > held {
				t.Fatalf("%d are put off, %d have stalled, %d wait for files, %d for the quarantine",
					stats.Parked, stats.Stalled, stats.HeldNow, stats.QuarantineWaiting)
			}
			mostHeld = max(mostHeld, stats.HeldConfirmations)
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := client.confirmed.Load(); got != int64(well) {
		t.Errorf("%d are confirmed, want %d that do not wait", got, well)
	}
	if mostHeld > held || mostHeld < held/2 {
		t.Errorf("up to %d confirmations wait for files, want at most %d", mostHeld, held)
	}
	// What is put off comes back beside a window that is full.
	if mostInFlight > 2*window {
		t.Errorf("%d in flight, want at most %d", mostInFlight, 2*window)
	}
	// Each message in a handler has one goroutine here, and perhaps one of the test's.
	if bound := goroutines + 6*window; most > bound {
		t.Errorf("%d goroutines, want at most %d", most, bound)
	}
	stats, grown := s.Stats(), heapInUse()-heap
	t.Logf("%d in flight, %d put off, %d have stalled, %d wait for files, %d for the quarantine, %d left; %d confirmed later; up to %d goroutines, %d connections; %d bytes are kept",
		stats.InFlight, stats.Parked, stats.Stalled, stats.HeldNow, stats.QuarantineWaiting, stats.Abandoned, mostHeld, most, stats.Stream.Connects, grown)
	if grown > 8<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
	end()
	testkit.NoError(t, s.Close())
}
