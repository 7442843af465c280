package subscriber

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
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

// A store that does not answer holds the stream up for five seconds once, and not for each event. What
// was left is asked for when there is room again. Notices of payloads that are gone have room of their own.
func TestQuarantineStoreThatHangs(t *testing.T) {
	for name, cfg := range map[string]QuarantineConfig{"records": {MaxWaiting: 2}, "bytes": {MaxWaitingBytes: 2}} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testQuarantineStoreThatHangs(t, cfg) }) })
	}
}

func testQuarantineStoreThatHangs(t *testing.T, cfg QuarantineConfig) {
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
	cfg.Publisher = store
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
	for n := range maxGone + 1 {
		q.take(t.Context(), &quarantined{digest: sha256.Sum256(fmt.Append(nil, "gone ", n)), class: QuarantinePayloadGone})
	}
	if n := q.waiting(); n != 2+maxGone {
		t.Errorf("%d wait, want 2 and %d notices", n, maxGone)
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
}

// An event that finds no room waits, until that has taken too long or the store fails; then it is left with the service, and so are
// those after it until half of the room is free. A copy of one that waits, or was stored, is none.
func TestQuarantineLeavesWhatFindsNoRoom(t *testing.T) {
	synctest.Test(t, testQuarantineLeavesWhatFindsNoRoom)
}

func testQuarantineLeavesWhatFindsNoRoom(t *testing.T) {
	answers := make(chan error)
	var stored []string
	cfg := QuarantineConfig{MaxWaiting: 4, Remember: 2, Timeout: time.Hour, Publisher: publisherFunc(func(messages ...*message.Message) error {
		err := <-answers
		if err == nil {
			stored = append(stored, string(messages[0].Payload))
		}
		return err
	})}
	cfg.setDefaults()
	asked, again := 0, 0
	q := newQuarantine(t.Context(), cfg, watermill.NopLogger{}, new(counters), func(_ *quarantined, is bool) {
		if is {
			again++
		}
	}, func() { asked++ })
	take := func(text string, isNew bool, took time.Duration, waiting int) {
		t.Helper()
		began := time.Now()
		if got := q.take(t.Context(), broken(text)); got != isNew {
			t.Errorf("%s is new: %t", text, got)
		}
		if got := time.Since(began); got != took || q.waiting() != waiting {
			t.Errorf("%s took %v, and %d wait; want %v and %d", text, got, q.waiting(), took, waiting)
		}
	}
	answer := func(err error) {
		answers <- err
		synctest.Wait()
	}
	for n, text := range []string{"a", "b", "c", "d"} {
		take(text, true, 0, n+1)
	}
	take("b", false, 0, 4)
	take("e", true, quarantinePatience, 4)
	take("f", true, 0, 4) // it does not wait as long as that again
	answer(nil)
	take("e", true, 0, 4) // there is room
	take("f", true, 0, 4) // but not half of it
	answer(nil)
	answer(nil)
	take("f", true, 0, 3)
	take("g", true, 0, 4)
	time.AfterFunc(time.Second, func() { answers <- errors.New("down") })
	take("h", true, time.Second, 4) // it gets on again, until the store fails
	if take("i", true, 0, 4); asked != 0 || again != 0 {
		t.Errorf("%d requests for what was left, %d known", asked, again)
	}
	close(answers)
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := strings.Join(stored, ""); got != "abcdefg" || asked != 1 {
		t.Errorf("%s are stored, %d requests for what was left; want abcdefg and 1", got, asked)
	}
	if take("g", false, 0, 0); again != 1 {
		t.Errorf("%d are known to be stored, want 1", again)
	}
	take("a", true, 0, 1) // forgotten
	q.close(context.Background(), context.Background())
}
