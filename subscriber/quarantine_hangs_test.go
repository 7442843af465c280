package subscriber

import (
	"context"
	"crypto/sha256"
	"fmt"
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
