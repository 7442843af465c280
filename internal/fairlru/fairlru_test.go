package fairlru_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/agrimill/agrimill/internal/fairlru"
)

// Whoever has less than another loses nothing, however much that one puts.
func TestOwnersKeepWhatIsTheirs(t *testing.T) {
	c := fairlru.New[string, int](100)
	for i := range 4 {
		c.Put("small", fmt.Sprint("small ", i), i, 10)
	}
	for i := range 1000 {
		c.Put("large", fmt.Sprint("large ", i), i, 10)
	}
	for i := range 4 {
		if got, ok := c.Get(fmt.Sprint("small ", i)); !ok || got != i {
			t.Errorf("small %d is %d, %v", i, got, ok)
		}
	}
	for i, want := range map[int]bool{993: false, 994: true, 999: true} {
		if _, ok := c.Get(fmt.Sprint("large ", i)); ok != want {
			t.Errorf("large %d is there: %v", i, ok)
		}
	}
}

// Of one owner, what was not used for the longest time goes first.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	c := fairlru.New[int, string](3)
	for i := range 3 {
		c.Put("o", i, "", 1)
	}
	c.Get(0)
	c.Put("o", 3, "", 1)
	for key, want := range map[int]bool{0: true, 1: false, 2: true, 3: true} {
		if _, ok := c.Get(key); ok != want {
			t.Errorf("%d is there: %v", key, ok)
		}
	}
	c.Put("o", 4, "too large", 4)
	if _, ok := c.Get(4); ok || c.Size() != 3 {
		t.Errorf("size %d", c.Size())
	}
	c.Purge()
	if _, ok := c.Get(0); ok || c.Size() != 0 {
		t.Errorf("size %d after a purge", c.Size())
	}
}

// Random use: the size is that of what is there and within the limit; nobody loses anything who has no more than
// the fair share.
func TestRandomUse(t *testing.T) {
	const limit, owners = 1000, 5
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := fairlru.New[int, int64](limit)
		kept := map[int]int64{} // all of owner 0, which stays below its share
		var share int64
		sizes := map[int]int64{}
		for step := range 2000 {
			key, size := step, 1+random.Int64N(60)
			if random.IntN(3) == 0 && len(sizes) > 0 {
				key = random.IntN(step)
			}
			_, mine := kept[key]
			who := 1 + random.IntN(owners-1)
			if mine || sizes[key] == 0 && random.IntN(20) == 0 && share+60 <= limit/owners {
				who, share = 0, share-kept[key]+size
				if share > limit/owners {
					share += kept[key] - size
					continue
				}
				kept[key] = size
			}
			sizes[key] = size
			c.Put(fmt.Sprint(who), key, size, size)
			if c.Size() > limit {
				t.Fatalf("seed %d: size %d", seed, c.Size())
			}
		}
		var total int64
		for key := range sizes {
			if size, ok := c.Get(key); ok {
				total += size
			}
		}
		if total != c.Size() {
			t.Errorf("seed %d: size %d, want %d", seed, c.Size(), total)
		}
		for key, size := range kept {
			if got, ok := c.Get(key); !ok || got != size {
				t.Errorf("seed %d: %d of the small owner is %d, %v", seed, key, got, ok)
			}
		}
	}
}
