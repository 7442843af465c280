package duequeue_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/duequeue"
)

type entry = duequeue.Entry[int]

// TestRandomProgram compares two queues with a sorted list after each of many random steps.
func TestRandomProgram(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Unix(0, 0)
	var queues [2]duequeue.Queue[int]
	var model [2][]*entry
	all := make([]*entry, 50)
	for i := range all {
		all[i] = &entry{Item: i, Rank: uint64(i)}
	}
	for step := range 20_000 {
		e := all[random.IntN(len(all))]
		for i := range model {
			model[i] = slices.DeleteFunc(model[i], func(other *entry) bool { return other == e })
		}
		if random.IntN(3) == 0 {
			e.Remove()
		} else {
			into := random.IntN(2)
			queues[into].Put(e, start.Add(time.Duration(random.IntN(20))))
			model[into] = append(model[into], e)
		}
		now := start.Add(time.Duration(random.IntN(20)))
		for i := range queues {
			slices.SortFunc(model[i], func(a, b *entry) int {
				if a.Sooner(b) {
					return -1
				}
				return 1
			})
			if got := slices.SortedFunc(queues[i].All(), func(a, b *entry) int { return a.At().Compare(b.At()) }); len(got) != len(model[i]) {
				t.Fatalf("step %d: queue %d has %d entries, want %d", step, i, len(got), len(model[i]))
			}
			var first, due *entry
			if len(model[i]) > 0 {
				if first = model[i][0]; !first.At().After(now) {
					due = first
				}
			}
			if got := queues[i].First(); got != first {
				t.Fatalf("step %d: first of queue %d is %v, want %v", step, i, got, first)
			}
			if got := queues[i].Due(now); got != due {
				t.Fatalf("step %d: due of queue %d is %v, want %v", step, i, got, due)
			}
		}
		if in := slices.Contains(model[0], e) || slices.Contains(model[1], e); in != e.Queued() {
			t.Fatalf("step %d: Queued is %v, want %v", step, e.Queued(), in)
		}
	}
}
