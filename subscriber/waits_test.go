package subscriber

import (
	"strconv"
	"testing"
	"time"
)

func TestWaitWatchReportsOnce(t *testing.T) {
	var w waitWatch
	began := time.Now()
	waits := func(whats ...string) []Waits {
		all := []Wait{}
		for _, what := range whats {
			all = append(all, Wait{What: what, Since: began})
		}
		keys, _ := newWaits(WaitKey, all)
		nacks, _ := newWaits(WaitNack, all)
		return []Waits{keys, nacks}
	}
	for _, c := range []struct {
		after       time.Duration
		waits       []Waits
		begun, over int
	}{
		{waitReported - 1, waits("a"), 0, 0},
		{waitReported, waits("a"), 1, 0},
		{waitReported + 1, waits("a", "b"), 1, 0},
		{time.Hour, waits("a", "b"), 0, 0},
		{time.Hour, waits("b"), 0, 1},
		{time.Hour, nil, 0, 1},
		{time.Hour, nil, 0, 0},
	} {
		begun, over := w.look(began.Add(c.after), c.waits)
		if len(begun) != c.begun || len(over) != c.over {
			t.Errorf("after %v: %d begun, %d over; want %d and %d", c.after, len(begun), len(over), c.begun, c.over)
		}
	}
}

// Of 100,000 that wait, those that have waited longest have details.
func TestWaitsAreBounded(t *testing.T) {
	now := time.Now()
	var all []Wait
	for i := range 100_000 {
		all = append(all, Wait{What: strconv.Itoa(i), Since: now.Add(-time.Duration(i))})
	}
	w, _ := newWaits(WaitKey, all)
	if w.Count != 100_000 || len(w.Longest) != maxWaits || w.Longest[0].What != "99999" {
		t.Errorf("%d, %d with details, the longest is %s", w.Count, len(w.Longest), w.Longest[0].What)
	}
}
