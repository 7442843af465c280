package subscriber_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// disk says what survives a power cut.
type disk struct {
	synced, lost atomic.Bool
	asked        atomic.Int64
}

func (d *disk) horizon(after time.Duration) *msgctx.Horizon {
	return &msgctx.Horizon{After: after, Survives: func(began, acked time.Time) (bool, error) {
		if began.After(acked) {
			return false, errors.New("it was acked before it was stored")
		}
		if d.asked.Add(1); d.lost.Load() {
			return false, errors.New("lost")
		}
		return d.synced.Load(), nil
	}}
}

func store(msg *message.Message, h *msgctx.Horizon, records ...msgctx.Record) {
	msgctx.NackOf(msg.Context()).Hold(h, time.Now(), records...)
	msg.Ack()
}

// An ack counts once what was stored survives a power cut. Until then nothing comes again, and nothing is confirmed; what may be
// lost comes again.
func TestConfirmationWaitsUntilItSurvives(t *testing.T) {
	synctest.Test(t, testConfirmationWaitsUntilItSurvives)
}

func testConfirmationWaitsUntilItSurvives(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	sub, messages := f.receive(f.config())
	var d disk
	h := d.horizon(time.Millisecond)
	f.sendN(3)
	for range 3 {
		store(f.next(messages), h)
	}
	testkit.Eventually(f, "it is asked", func() bool { return d.asked.Load() >= 3 })
	if stats := sub.Stats(); f.confirmed() != 0 || stats.UnsyncedConfirmations != 3 || stats.OldestUnconfirmed.IsZero() {
		t.Errorf("%d are confirmed, %d wait, the oldest since %s", f.confirmed(), stats.UnsyncedConfirmations, stats.OldestUnconfirmed)
	}
	d.lost.Store(true)
	for range 3 {
		msg := f.next(messages) // after a reconnect
		d.lost.Store(false)
		d.synced.Store(true)
		store(msg, h)
	}
	f.waitConfirmed(3)
	testkit.Eventually(f, "nothing waits", func() bool { return sub.Stats().UnsyncedConfirmations == 0 })
	if got := sub.Stats().PossiblyLost; got != 3 {
		t.Errorf("%d were possibly lost, want 3", got)
	}
}

// As many confirmations wait as may, and then the stream is not read.
func TestConfirmationsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, testConfirmationsThatWaitAreBounded)
}

func testConfirmationsThatWaitAreBounded(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.Confirm.MaxUnsynced = 5
	sub, messages := f.receive(cfg)
	var d disk
	h := d.horizon(time.Millisecond)
	f.sendN(10)
	for range 5 {
		store(f.next(messages), h)
	}
	testkit.Eventually(f, "five wait", func() bool { return sub.Stats().UnsyncedConfirmations == 5 })
	testkit.Eventually(f, "it is asked", func() bool { return d.asked.Load() >= 5 })
	d.synced.Store(true)
	for range 5 {
		store(f.next(messages), h)
	}
	f.waitConfirmed(10)
}

type recorder struct {
	mu       sync.Mutex
	recorded []byte
}

func (r *recorder) Record(keys [2][16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = append(r.recorded, keys[0][0])
}

// What a route is to record of a message is recorded once what that route has stored survives, whatever another route does with
// the message, and not if it may be lost.
func TestRecordsWaitForTheirRoute(t *testing.T) {
	synctest.Test(t, testRecordsWaitForTheirRoute)
}

func testRecordsWaitForTheirRoute(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	sub := f.subscriber(f.config())
	var book recorder
	record := func(n byte) msgctx.Record { return msgctx.Record{Keys: [2][16]byte{{n}}, Into: &book} }
	want := func(want ...byte) {
		t.Helper()
		time.Sleep(10 * time.Second)
		book.mu.Lock()
		defer book.mu.Unlock()
		if slices.Sort(book.recorded); !slices.Equal(book.recorded, want) {
			t.Errorf("recorded %d, want %d", book.recorded, want)
		}
	}
	a, b := f.subscribe(sub, subscriber.AllData), f.subscribe(sub, subscriber.AllData)
	var disks [2]disk
	first, second := disks[0].horizon(time.Second), disks[1].horizon(time.Second)
	f.sendN(1)
	open := f.next(b)
	store(f.next(a), first, record(1), record(2))
	want() // not synced
	disks[0].synced.Store(true)
	want(1, 2) // although nothing is to be confirmed
	store(open, second, record(3))
	want(1, 2)
	disks[1].lost.Store(true)
	again := f.next(b)
	disks[1].lost.Store(false)
	want(1, 2) // it may be lost
	store(again, second, record(4))
	synctest.Wait() // it is taken in before the other
	store(f.next(a), first, record(5))
	want(1, 2, 5) // although the confirmation waits for both
	disks[1].synced.Store(true)
	f.waitConfirmed(1)
	want(1, 2, 4, 5)
	f.nothing(a)
	f.nothing(b)
}
