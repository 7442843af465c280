package subscriber

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// queueOf returns a queue of n messages that has finished nothing since.
func queueOf(n int, since time.Time) *keyQueue {
	q := &keyQueue{since: since}
	for i := range n {
		d := &delivery{event: &gateway.MessageReceived{ID: strconv.Itoa(i)}}
		d.keys = d.key1[:]
		q.items = append(q.items, d)
	}
	return q
}

func TestSharesOfStalledKeys(t *testing.T) {
	now := time.Now()
	stalled := now.Add(-stallAfter)
	for _, c := range []struct {
		name    string
		stalled []int // messages of stalled keys
		want    []int // what is kept
	}{
		{"none", nil, nil},
		{"one hangs", []int{900}, []int{500}},
		{"two hang", []int{600, 300}, []int{250, 250}},
		{"one has little", []int{600, 10}, []int{250, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := shares{max: 10, shut: make(map[string]struct{})}
			queues := map[string]*keyQueue{"healthy": queueOf(100, now)}
			for i, n := range c.stalled {
				queues[fmt.Sprint(i)] = queueOf(n, stalled)
			}
			left := h.trim(now, queues, 1000)
			for i, want := range c.want {
				key := fmt.Sprint(i)
				if got := len(queues[key].items); got != want || h.takes(key) != (want == c.stalled[i]) {
					t.Errorf("key %s keeps %d, want %d; takes more: %v", key, got, want, h.takes(key))
				}
				c.stalled[i] -= want
				want = c.stalled[i]
				for range want {
					left = left[1:]
				}
			}
			if len(left) != 0 || len(queues["healthy"].items) != 100 || !h.takes("healthy") {
				t.Errorf("%d too many were left, the healthy key keeps %d", len(left), len(queues["healthy"].items))
			}
		})
	}
}

// 100,000 stalled keys: those that may be shut are, and no more.
func TestSharesShutABoundedNumberOfKeys(t *testing.T) {
	now := time.Now()
	h := shares{max: 1000, shut: make(map[string]struct{})}
	queues := make(map[string]*keyQueue)
	for i := range 100_000 {
		queues[strconv.Itoa(i)] = queueOf(2, now.Add(-stallAfter))
	}
	if left := h.trim(now, queues, 1000); len(left) != 1000 || len(h.shut) != 1000 {
		t.Errorf("%d left, %d shut", len(left), len(h.shut))
	}
	if left := h.trim(now, queues, 1000); len(left) != 0 {
		t.Errorf("%d left the second time", len(left))
	}
}

// What is never redelivered is not left.
func TestSharesKeepWhatDoesNotComeAgain(t *testing.T) {
	q := queueOf(10, time.Time{})
	q.items[7].keys = nil
	left := q.cut(2)
	if len(left) != 7 || len(q.items) != 3 || q.items[2].keys != nil {
		t.Errorf("%d left, %d kept", len(left), len(q.items))
	}
}
