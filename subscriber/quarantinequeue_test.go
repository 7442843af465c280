package subscriber

import (
	"context"
	"crypto/sha256"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

func broken(text string) *quarantined {
	return &quarantined{digest: sha256.Sum256([]byte(text)), class: QuarantineMalformed, body: []byte(text)}
}

// An event that finds no room waits, until that has taken too long or the store fails; then it is left
// with the service, and so are those after it until half of the room is free.
func TestQuarantineQueue(t *testing.T) {
	q := newQuarantineQueue(QuarantineConfig{MaxWaiting: 4, MaxWaitingBytes: 100, Remember: 2})
	want := func(text string, waited time.Duration, want quarantineAnswer) {
		t.Helper()
		if got := q.add(broken(text), waited); got != want {
			t.Fatalf("%s: got %d, want %d", text, got, want)
		}
	}
	for _, text := range []string{"a", "b", "c", "d"} {
		want(text, 0, quarantineTaken)
	}
	want("a", 0, quarantineKnown)
	want("e", quarantinePatience-1, quarantineFull)
	if q.takeLeft() {
		t.Error("something was left")
	}
	want("e", quarantinePatience, quarantineLeft)
	want("f", 0, quarantineLeft) // it does not wait as long as that again
	q.stored(quarantineStored)
	want("e", 0, quarantineTaken) // there is room
	want("f", 0, quarantineLeft)
	q.stored(quarantineStored)
	q.stored(quarantineNoticed)
	for _, text := range []string{"f", "g"} {
		want(text, 0, quarantineTaken)
	}
	want("h", 0, quarantineFull) // it gets on again
	q.failing = true
	want("h", 0, quarantineLeft)
	q.failing = false
	if !q.takeLeft() || q.takeLeft() {
		t.Error("what was left is told once")
	}
	want("a", 0, quarantineFull) // forgotten
	want("b", 0, quarantineKnown)

	// What is larger than the cap waits alone.
	q = newQuarantineQueue(QuarantineConfig{MaxWaiting: 4, MaxWaitingBytes: 2, Remember: 2})
	want("larger", 0, quarantineTaken)
	want("x", 0, quarantineFull)
	q.stored(quarantineStored)
	want("x", 0, quarantineTaken)
	if q.bytes != 1 || q.first() == nil || string(q.first().body) != "x" {
		t.Errorf("%d bytes, first %+v", q.bytes, q.first())
	}
}

// Notices of payloads that are gone take no room from events, and have some when those have none.
func TestNoticesHaveRoomOfTheirOwn(t *testing.T) {
	q := newQuarantineQueue(QuarantineConfig{MaxWaiting: 1, MaxWaitingBytes: 100, Remember: 10})
	notice := func(n int) *quarantined {
		return &quarantined{digest: sha256.Sum256([]byte{byte(n), byte(n >> 8)}), class: QuarantinePayloadGone}
	}
	for n := range maxGone / 2 {
		if got := q.add(notice(n), 0); got != quarantineTaken {
			t.Fatalf("notice %d: %d", n, got)
		}
	}
	if a, b := q.add(broken("a"), 0), q.add(broken("b"), 0); a != quarantineTaken || b != quarantineFull {
		t.Errorf("events: %d and %d, want room for one", a, b)
	}
	q.failing = true
	for n := maxGone / 2; n < maxGone; n++ {
		if got := q.add(notice(n), 0); got != quarantineTaken {
			t.Fatalf("notice %d: %d", n, got)
		}
	}
	if got := q.add(notice(maxGone), 0); got != quarantineLeft {
		t.Errorf("one too many: %d", got)
	}
	for range maxGone + 1 {
		q.stored(quarantineStored)
	}
	if q.gone != 0 || q.first() != nil || q.add(notice(maxGone), 0) != quarantineTaken || q.add(broken("b"), 0) != quarantineTaken {
		t.Errorf("there is no room: %+v", q)
	}
}

// A store that does not answer holds the stream up for five seconds once, and not for each event. What
// was left is asked for when there is room again.
func TestQuarantineStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		hangs.Store(true)
		store := publisherFunc(func(messages ...*message.Message) error {
			ctx := messages[0].Context()
			for hangs.Load() {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
				}
			}
			return nil
		})
		cfg := QuarantineConfig{Publisher: store, MaxWaiting: 2}
		cfg.setDefaults()
		cfg.Timeout = time.Hour
		asked := 0
		q := newQuarantine(t.Context(), cfg, watermill.NopLogger{}, new(counters), func(*quarantined, bool) {}, func() { asked++ })
		began := time.Now()
		for _, text := range []string{"a", "b", "c", "d", "e", "f"} {
			if !q.take(t.Context(), broken(text)) {
				t.Errorf("%s is not new", text)
			}
		}
		if took := time.Since(began); took != quarantinePatience {
			t.Errorf("the stream was held up for %v, want %v", took, quarantinePatience)
		}
		if n := q.waiting(); n != 2 {
			t.Errorf("%d wait, want 2", n)
		}
		hangs.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := q.waiting(); n != 0 || asked != 1 {
			t.Errorf("%d wait, %d requests for what was left; want 0 and 1", n, asked)
		}
		if left := q.close(context.Background(), context.Background()); left != 0 {
			t.Errorf("%d were not stored", left)
		}
	})
}
