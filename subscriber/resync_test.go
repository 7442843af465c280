package subscriber

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// resyncWorld is a subscriber without a stream, and the connection that it asks for a new one.
type resyncWorld struct {
	*testing.T
	*Subscriber
	client  *silentClient
	log     *testkit.Log
	asked   []time.Duration // since the beginning
	connect func()
}

func newResyncWorld(t *testing.T, cfg Config) *resyncWorld {
	w := &resyncWorld{T: t, client: &silentClient{}, log: testkit.NewLog()}
	cfg.Client, cfg.StartAfter = w.client, -1
	cfg.DrainTimeout, cfg.CloseTimeout = time.Second, 3*time.Second
	s := testkit.Must(New(cfg, w.log))(t)
	w.Subscriber = s
	t.Cleanup(func() { _ = s.Close() })
	began := time.Now()
	w.connect = func() { s.setConnected(func() { w.asked = append(w.asked, time.Since(began)) }, false) }
	return w
}

// reconnects returns when reconnects were asked for.
func (w *resyncWorld) reconnects() []time.Duration {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// next returns the next message, which has to come.
func (w *resyncWorld) next(messages <-chan *message.Message) *message.Message {
	w.Helper()
	select {
	case msg := <-messages:
		return msg
	case <-time.After(testkit.Patience):
		w.Fatal("no message came")
		return nil
	}
}

// arrive lets messages with these numbers arrive, one after the other.
func (w *resyncWorld) arrive(numbers ...int) {
	for _, i := range numbers {
		w.intake(w.Context(), &gateway.MessageReceived{
			ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), AppMessageID: fmt.Sprint(i), ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa",
			TenantID: "tenant", MessageType: "type", Payload: []byte("small"),
		}, 0)
		synctest.Wait()
	}
}

// One fault takes most of the room for what waits, and does not end. What another one left is
// asked for nevertheless when that has ended.
func TestLeftWhileAnotherFaultLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 10
		w := newResyncWorld(t, Config{Order: Unordered, MaxInFlight: room, Nack: Backoff{Initial: time.Second, Max: time.Second}})
		messages := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
		var ended atomic.Bool
		go func() { // ends with the subscription
			for msg := range messages {
				if msg.Metadata[gateway.KeyMessageID] < "00000010" || !ended.Load() {
					msg.Nack()
				} else {
					msg.Ack()
				}
			}
		}()
		synctest.Wait()
		w.connect()
		w.arrive(1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12)
		time.Sleep(3 * time.Second)
		if w.Stats().Left == 0 {
			t.Fatal("nothing is left")
		}
		ended.Store(true)
		began := time.Now()
		for len(w.reconnects()) == 0 && time.Since(began) < time.Hour {
			time.Sleep(time.Second)
		}
		if waited := time.Since(began); waited > 30*time.Second {
			t.Errorf("what was left is asked for after %v", waited)
		}
		w.connect()
		w.arrive(1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12)
		time.Sleep(time.Second)
		if got := w.client.confirmed.Load(); got < 3 {
			t.Errorf("%d are confirmed, want 3", got)
		}
	})
}
