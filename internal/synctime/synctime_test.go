package synctime_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/synctime"
	"github.com/agrimill/agrimill/sinks"
)

func TestHorizon(t *testing.T) {
	const delay = 10 * time.Second
	began := time.Now()
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	var h synctime.Horizon
	expect := func(from, to int, want bool, wantErr error) {
		t.Helper()
		if is, err := h.Survives(at(from), at(to), delay); is != want || !errors.Is(err, wantErr) {
			t.Errorf("stored from %d to %d: %t, %v; want %t, %v", from, to, is, err, want, wantErr)
		}
	}
	expect(1, 1, false, nil) // nobody has asked
	h.Alive(at(10))
	expect(0, 0, true, nil)
	expect(1, 1, false, nil)
	h.Alive(at(30))
	expect(20, 20, true, nil)
	expect(21, 21, false, nil)
	h.Restarted(at(40), delay)
	h.Alive(at(40))
	expect(20, 20, true, nil)
	expect(21, 21, false, sinks.ErrPossiblyLost)
	expect(40, 40, false, sinks.ErrPossiblyLost)
	expect(39, 45, false, sinks.ErrPossiblyLost) // it may have been stored before the restart
	expect(41, 45, false, nil)
	h.Alive(at(60))
	expect(41, 45, true, nil)
	expect(21, 22, false, sinks.ErrPossiblyLost) // for ever
	for i := range 100 {
		h.Restarted(at(100+10*i), delay)
		h.Alive(at(100 + 10*i))
	}
	expect(21, 22, false, sinks.ErrPossiblyLost)
	expect(150, 150, false, sinks.ErrPossiblyLost)
}

// What was acknowledged before the first answer is not known to have been synced.
func TestRestartBeforeTheFirstAnswer(t *testing.T) {
	var h synctime.Horizon
	now := time.Now()
	h.Restarted(now, time.Second)
	h.Alive(now.Add(time.Hour))
	if _, err := h.Survives(now, now, time.Second); !errors.Is(err, sinks.ErrPossiblyLost) {
		t.Errorf("got %v", err)
	}
}
