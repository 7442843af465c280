package subscriber

import (
	"testing"
	"time"
	"unsafe"
)

// setClock returns now as it is after the machine's clock was set forward by d: the
// monotonic reading is the same. It knows how package time keeps both.
func setClock(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	set := now
	wall := (*uint64)(unsafe.Pointer(&set))
	*wall += uint64(d/time.Second) << 30
	if set.Sub(now) != 0 || set.Round(0).Sub(now.Round(0)) != d {
		t.Fatal("package time keeps its readings in another way")
	}
	return set
}

// A clock that is set forward or back does not make the subscriber forget what was
// confirmed a short while ago, nor remember it for longer.
func TestConfirmedMessagesAreRememberedWhileTheClockIsSet(t *testing.T) {
	const keep = 10 * time.Minute
	for _, jump := range []time.Duration{365 * 24 * time.Hour, 0} {
		table := newTable(10, keep)
		now := time.Now()
		key := newMessageKey("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
		table.confirmed(table.confirming(key), now)
		if got := table.state(key, setClock(t, now, jump)); got != stateConfirmed {
			t.Errorf("forgotten when the clock was set by %v: state %d", jump, got)
		}
		if got := table.state(key, setClock(t, now.Add(keep), jump)); got != stateConfirmed {
			t.Errorf("forgotten too early: state %d", got)
		}
		if got := table.state(key, setClock(t, now.Add(keep+1), jump)); got != 0 {
			t.Errorf("remembered too long: state %d", got)
		}
	}
}
