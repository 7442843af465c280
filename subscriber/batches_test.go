package subscriber

import (
	"fmt"
	"testing"
)

// All but the last batch are full, they come out in order, and none shares its memory with another.
func TestBatches(t *testing.T) {
	const limit = 8
	var b batches
	made, added, taken := 0, 0, 0
	room := func() []confirmation { made++; return nil }
	for round := range 100 {
		var items []confirmation
		for range round * 7 % 23 {
			items = append(items, confirmation{message: fmt.Sprint(added)})
			added++
		}
		b.add(limit, room, items...)
		for n := round % 3; n > 0 && len(b.list) > 1; n-- {
			batch := b.take()
			if len(batch) != limit || cap(batch) > 2*limit {
				t.Fatalf("batch of %d with room for %d", len(batch), cap(batch))
			}
			for _, item := range batch {
				if item.message != fmt.Sprint(taken) {
					t.Fatalf("got %s, want %d", item.message, taken)
				}
				taken++
			}
		}
		if b.size != added-taken {
			t.Fatalf("size is %d, want %d", b.size, added-taken)
		}
	}
	for len(b.list) > 0 {
		taken += len(b.take())
	}
	if taken != added || b.size != 0 || made != (added+limit-1)/limit {
		t.Errorf("%d of %d taken, size %d, %d batches", taken, added, b.size, made)
	}
}
