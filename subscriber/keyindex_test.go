package subscriber

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

// Whatever is added and removed, in whatever order, the index knows what a map knows.
func TestKeyIndexKnowsWhatAMapKnows(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var x keyIndex
		var entries []messageEntry
		var free []int32
		want := make(map[messageKey]int32)
		key := func() (k messageKey) { // few, so that most are known
			binary.BigEndian.PutUint64(k[16:], r.Uint64N(400))
			return k
		}
		most := r.IntN(300)
		for step := range 20_000 {
			k := key()
			slot, known := want[k]
			switch got, found := x.get(&k, entries); {
			case found != known || got != slot:
				t.Fatalf("seed %d, step %d: slot %d, %v; want %d, %v", seed, step, got, found, slot, known)
			case known && r.IntN(3) == 0:
				x.remove(&k, entries)
				x.remove(&k, entries) // no longer there
				delete(want, k)
				free = append(free, slot)
			case !known && len(want) < most:
				slot = int32(len(entries))
				if last := len(free) - 1; last >= 0 {
					slot, free = free[last], free[:last]
				} else {
					entries = append(entries, messageEntry{})
				}
				entries[slot].key = k
				x.add(&k, slot)
				want[k] = slot
			}
			if x.n != len(want) {
				t.Fatalf("seed %d, step %d: %d keys, want %d", seed, step, x.n, len(want))
			}
		}
		for k, slot := range want {
			if got, found := x.get(&k, entries); !found || got != slot {
				t.Fatalf("seed %d: slot %d, %v; want %d", seed, got, found, slot)
			}
		}
		if len(x.places) > 1024 {
			t.Errorf("seed %d: %d places for at most %d keys", seed, len(x.places), most)
		}
	}
}

func TestLowerIsToLower(t *testing.T) {
	for _, id := range []string{"", "a-0", "A", "9Z", "@[`{", "0A1B2C3D-AAAA-4BBB-8CCC-0123456789AB", "0a1b2c3d-aaaa-4bbb-8ccc-0123456789ab", "ÄÖ", "aÉ", "\xff\xfeA"} {
		if got, want := lower(id), strings.ToLower(id); got != want {
			t.Errorf("%q becomes %q, want %q", id, got, want)
		}
	}
}
