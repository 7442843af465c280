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
			var h shares
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

// However many keys have stalled, all of them are shut, in a bounded set, and others are not.
func TestSharesShutManyKeys(t *testing.T) {
	now := time.Now()
	var h shares
	queues := make(map[string]*keyQueue)
	for i := range many() {
		queues[strconv.Itoa(i)] = queueOf(2, now.Add(-stallAfter))
	}
	if left := h.trim(now, queues, 1000); len(left) != many() || len(h.shut.bits) != keySetBits/64 {
		t.Errorf("%d left, the set has %d words", len(left), len(h.shut.bits))
	}
	if left := h.trim(now, queues, 1000); len(left) != 0 {
		t.Errorf("%d left the second time", len(left))
	}
	wrong := 0
	for i := range many() {
		if h.takes(strconv.Itoa(i)) {
			t.Fatalf("key %d is taken", i)
		}
		if !h.takes(fmt.Sprint("other ", i)) {
			wrong++
		}
	}
	if wrong > many()/10_000 {
		t.Errorf("%d of %d other keys are shut", wrong, many())
	}
	if h.connected(); !h.takes("0") {
		t.Error("shut after everything has come again")
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
