package subscriber

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// silentClient has no stream and takes every confirmation.
type silentClient struct {
	Client
	confirmed atomic.Int64
}

func (c *silentClient) ReceiveEvents(ctx context.Context, _ gateway.ReceiveEventsRequest) (*gateway.EventStream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (c *silentClient) ConfirmMessages(_ context.Context, _ string, confirmations []gateway.MessageConfirmation) error {
	c.confirmed.Add(int64(len(confirmations)))
	return nil
}

// heapInUse returns how much of the heap is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// 100,000 messages come, each with a key of its own, of which some are put off, some hang in their handlers, and some wait for
// a file: those that do not wait are confirmed, and what waits has few goroutines, no more places
// than there are, and little memory.
func TestManyWaitingMessages(t *testing.T) {
	for _, order := range []Order{OrderByKey, Unordered} {
		t.Run(order.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testManyWaiting(t, order) })
		})
	}
}

func testManyWaiting(t *testing.T, order Order) {
	const window, held, fileType = 200, 500, "file"
	n := many
	if raceDetector {
		n /= 10
	}
	client := &silentClient{}
	s, err := New(Config{
		Client: client, Order: order, MaxInFlight: window, MaxHeld: held, Files: []string{fileType}, FileHold: 10 * time.Hour, ChunkSize: 10,
		DrainTimeout: time.Second, CloseTimeout: 3 * time.Second,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := s.Subscribe(t.Context(), AllData)
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
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
	for i := range n {
		event := &gateway.MessageReceived{
			ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
			TenantID: [...]string{"put off", "hangs", "files", "well"}[i%4], MessageType: "type", Payload: []byte("small"),
		}
		if i%4 == 2 {
			event.MessageType, event.Payload = fileType, []byte("as large as a chunk")
		}
		if s.intake(ctx, event, 0); ctx.Err() != nil {
			t.Fatalf("message %d finds no room", i)
		}
		most = max(most, runtime.NumGoroutine())
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
			stats := s.Stats()
			mostInFlight = max(mostInFlight, stats.InFlight)
			if stats.Parked > window || stats.Stalled > window/2 || stats.HeldNow > maxIdentities*held {
				t.Fatalf("%d are put off, %d are set apart, %d wait for files", stats.Parked, stats.Stalled, stats.HeldNow)
			}
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := client.confirmed.Load(); got != int64(n/4) {
		t.Errorf("%d are confirmed, want %d that do not wait", got, n/4)
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
	t.Logf("%d in flight, %d put off, %d set apart, %d wait for files, %d left; up to %d goroutines, %d bytes are kept",
		stats.InFlight, stats.Parked, stats.Stalled, stats.HeldNow, stats.Abandoned, most, grown)
	if grown > 300*many {
		t.Errorf("%d bytes are kept", grown)
	}
	close(hang)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
