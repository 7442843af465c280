package kafka

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/sinks"
)

// TestDeadlines: messages expire when they are due, in whatever order they came, and not
// when they were removed before.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Sink{life: lifecycle.New(), background: t.Context()}
		s.watching.Store(true) // nobody looks whether the cluster is back
		start := time.Now()
		add := func(after time.Duration) *delivery {
			if !s.life.Enter() {
				t.Fatal("closed")
			}
			d := &delivery{sink: s}
			s.deadlines.add(d, start.Add(after))
			return d
		}
		expired := func(d *delivery) bool {
			select {
			case <-d.Done():
				_, err := d.Result()
				return errors.Is(err, sinks.ErrUnavailable)
			default:
				return false
			}
		}
		third, second, first := add(3*time.Second), add(2*time.Second), add(time.Second)
		removed, last, middle := add(time.Second), add(5*time.Second), add(2500*time.Millisecond)
		s.deadlines.remove(removed)
		s.deadlines.remove(removed)
		all := []*delivery{first, second, middle, third, last}
		for i, after := range []time.Duration{1000, 2000, 2500, 3000, 5000} {
			at := start.Add(after * time.Millisecond)
			time.Sleep(time.Until(at) - time.Nanosecond)
			synctest.Wait()
			if expired(all[i]) {
				t.Errorf("the one that is due after %d ms expired before", after)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			for j, d := range all {
				if expired(d) != (j <= i) {
					t.Errorf("after %d ms: expired(%d) = %t", after, j, expired(d))
				}
			}
		}
		if expired(removed) {
			t.Error("the one that was removed expired")
		}
		if s.deadlines.queue.Len() > 0 || !s.deadlines.at.IsZero() {
			t.Errorf("left: %+v", &s.deadlines)
		}
		s.deadlines.remove(first) // its result comes late
		again := add(6 * time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		if !expired(again) {
			t.Error("the one after a pause did not expire")
		}
		add(time.Hour)
		s.deadlines.stop()
	})
}
