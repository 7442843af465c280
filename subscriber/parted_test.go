package subscriber

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// newPartWorld has two subscriptions. One of them has ended without an ack of message 1, which the other one
// has acked.
func newPartWorld(t *testing.T, size int) *resyncWorld {
	w := newResyncWorld(t, Config{Order: Unordered, ChunkSize: 10})
	ctx, end := context.WithCancel(t.Context())
	goesOn, err := w.Subscribe(t.Context(), AllData)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := w.Subscribe(ctx, AllData)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	w.connect()
	w.intake(w.Context(), &gateway.MessageReceived{
		ID: "00000001-2222-4333-8444-555555555555", AppMessageID: "1", ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa",
		TenantID: "tenant", MessageType: "type", Payload: make([]byte, size),
	}, 0)
	w.next(goesOn).Ack()
	end()
	for range ended { // until it has ended
	}
	return w
}

// What one subscription left is not confirmed by the ack of another one whose context has ended in the
// meantime, even if nobody has had the time to notice: they may have ended together.
func TestLeftByOneWhileTheOtherEnds(t *testing.T) {
	for name, ends := range map[string]bool{"it ends": true, "it goes on": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPartWorld(t, 1)
				time.Sleep(partGrace - time.Second)
				if ends {
					w.mu.Lock()
					over := make(chan struct{})
					close(over)
					w.subscriptions[0].ended = over
					w.mu.Unlock()
				}
				time.Sleep(2 * time.Second)
				if got := w.client.confirmed.Load(); (got == 0) != ends {
					t.Errorf("%d are confirmed", got)
				}
			})
		})
	}
}

// Its confirmation waits for the file that it may be a chunk of, although its payload is not kept: there
// was no stream that could have brought it.
func TestLeftByOneWithoutAStream(t *testing.T) {
	for _, size := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			w := newPartWorld(t, size)
			if _, final := w.setDisconnected(streamEnd{err: errStreamEnded}); final != nil {
				t.Fatal(final)
			}
			time.Sleep(partGrace + time.Minute)
			if got := w.client.confirmed.Load(); (got == 0) != (size == 10) {
				t.Errorf("%d bytes: %d are confirmed without a stream", size, got)
			}
			w.connect()
			time.Sleep(fileWait + time.Second)
			if got := w.client.confirmed.Load(); got != 1 {
				t.Errorf("%d bytes: %d are confirmed in the end", size, got)
			}
		})
	}
}

// A subscription that ends without an ack and is made again, all the time, gets what it left in its next
// turn: everybody's stream is reconnected at once the first time, and then every four seconds at most.
func TestSubscriptionThatIsMadeAgainAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Order: Unordered})
		goesOn, err := w.Subscribe(t.Context(), AllData)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for msg := range goesOn {
				msg.Ack()
			}
		}()
		synctest.Wait()
		w.connect()
		served := 0
		const turns, turn = 50, 200 * time.Millisecond
		for i := range turns {
			ctx, end := context.WithCancel(t.Context())
			ended, err := w.Subscribe(ctx, AllData)
			if err != nil {
				t.Fatal(err)
			}
			if asked := len(w.reconnects()); asked > served {
				served = asked
				w.connect()
			}
			w.arrive(i)
			w.next(ended)
			time.Sleep(turn)
			end()
			for range ended { // until it has ended
			}
		}
		got := w.reconnects()
		if most := 2 + int(turns*(turn+w.cfg.DrainTimeout)/resyncEvery); len(got) == 0 || len(got) > most {
			t.Errorf("reconnects are asked for after %v, want 1 to %d of them", got, most)
		}
	})
}

// A subscription whose context has ended leaves nothing to the next connection, also before it has noticed
// that: what it had is what one left that ended, and is confirmed by the ack of the other one.
func TestLeftBeforeItsEndIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Order: Unordered, ChunkSize: 10})
		over := make(chan struct{})
		close(over)
		ended, goesOn := &subscription{ended: over}, &subscription{}
		d := &delivery{
			event:  &gateway.MessageReceived{ID: "00000001-2222-4333-8444-555555555555", MessageType: "type", Payload: []byte("x")},
			tenant: "tenant", waits: []*subscription{ended, goesOn},
		}
		d.key1[0] = messageKey{1}
		d.keys = d.key1[:]
		w.mu.Lock()
		w.link(time.Now(), d)
		w.open(d)
		w.finish(time.Now(), ended, d, msgctx.Left)
		w.finish(time.Now(), goesOn, d, msgctx.Acked)
		parted, left := len(w.ledger.parted), d.left
		w.mu.Unlock()
		if parted != 1 || left {
			t.Errorf("%d are parted, left with the service: %v; want 1 and false", parted, left)
		}
	})
}
