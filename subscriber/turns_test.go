package subscriber

import (
	"testing"
	"time"
)

// Others get a turn after some events, and seldom while they do not give it back soon.
func TestTurns(t *testing.T) {
	var turns turns
	for i, step := range []struct {
		want int
		took time.Duration
	}{
		{yieldAfter, 0},
		{yieldAfter, yieldLate + 1},
		{2 * yieldAfter, time.Second},
		{4 * yieldAfter, yieldLate},
		{yieldAfter, 0},
	} {
		n := 1
		for !turns.due() {
			n++
		}
		if n != step.want {
			t.Errorf("step %d: a turn after %d events, want %d", i, n, step.want)
		}
		turns.waited(step.took)
	}
	for range 100 {
		turns.waited(time.Second)
	}
	if turns.after != yieldSeldom {
		t.Errorf("a turn after %d events in the end, want %d", turns.after, yieldSeldom)
	}
}
