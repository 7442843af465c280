package subscriber

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What one subscription left when it ended is confirmed once it comes again, if another one that goes on has acked it, and not
// before; what may be a chunk of a file waits for that as well.
func TestLeftByOneThatEnds(t *testing.T) {
	for payload, after := range map[string]time.Duration{"small": time.Second, "as large as a chunk": 11 * time.Second} {
		testkit.RunBubble(t, payload, func(t *testing.T) {
			w := newResyncWorld(t, Config{Order: Unordered, ChunkSize: 10})
			acks := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
			ctx, end := context.WithCancel(t.Context())
			leaves := testkit.Must(w.Subscribe(ctx, AllData))(t)
			synctest.Wait()
			w.connect()
			event := filePart(1)
			event.Payload = []byte(payload)
			w.come(event)
			w.next(acks).Ack()
			w.next(leaves)
			end()
			for range leaves { // until it has ended
			}
			testkit.Must(w.setDisconnected(streamEnd{err: errStreamEnded}))(t)
			time.Sleep(time.Minute)
			if got := w.client.confirmed.Load(); got != 0 {
				t.Errorf("%d are confirmed without a stream", got)
			}
			w.connect()
			w.come(event)
			time.Sleep(after)
			if got := w.client.confirmed.Load(); got != 1 {
				t.Errorf("%d are confirmed in the end", got)
			}
		})
	}
}

// For a subscription that ends without an ack and is made again, all the time, everybody's stream is reconnected
// every four seconds at most.
func TestSubscriptionThatIsMadeAgainAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Order: Unordered})
		goesOn := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
		go func() { // ends with the subscription
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
			ended := testkit.Must(w.Subscribe(ctx, AllData))(t)
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
		if most := 1 + int(turns*(turn+w.cfg.DrainTimeout)/(4*time.Second)); len(got) < most/2 || len(got) > most {
			t.Errorf("reconnects are asked for after %v, want up to %d of them", got, most)
		}
	})
}

// A record that comes when the quarantine has closed is left with the service like any event: a hook does not see it.
func TestRecordOfAClosedQuarantineIsLeft(t *testing.T) {
	cfg := Config{Quarantine: QuarantineConfig{Publisher: downPublisher{}}}
	cfg.Hooks.Progress = func(p Progress) { t.Errorf("%v of %T", p.Kind, p.Event) }
	w := newResyncWorld(t, cfg)
	testkit.Must(w.Subscribe(t.Context(), AllData))(t)
	w.malformed(t.Context(), gateway.RawEvent{Data: []byte("1")}, errors.New("it is no JSON"))
	testkit.NoError(t, w.Close())
	w.malformed(t.Context(), gateway.RawEvent{Data: []byte("2")}, errors.New("it is no JSON"))
	if s := w.Stats(); s.Untaken != 0 || s.Abandoned != 2 {
		t.Errorf("%d are taken by nobody, %d left; want 0 and 2", s.Untaken, s.Abandoned)
	}
}
