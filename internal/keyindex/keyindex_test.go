package keyindex

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

type key [16]byte

// world is an owner of keys, beside a map that knows where they are.
type world struct {
	*Index[key]
	keys []key // by place
	free []int32
	want map[key]int32
}

func newWorld(mask uint32) *world {
	w := &world{keys: make([]key, 1), want: make(map[key]int32)}
	w.Index = New(func(place int32) *key { return &w.keys[place] })
	w.mask = mask
	return w
}

func (w *world) add(k key) {
	place := int32(len(w.keys))
	if n := len(w.free); n > 0 {
		place, w.free = w.free[n-1], w.free[:n-1]
	} else {
		w.keys = append(w.keys, key{})
	}
	w.keys[place] = k
	w.Add(&k, place)
	w.want[k] = place
}

func (w *world) remove(k key) {
	place := w.want[k]
	w.Remove(place)
	delete(w.want, k)
	w.free = append(w.free, place)
}

// What is in an index is found at its place, and nothing else is, whatever comes and goes, and also if
// nearly all hashes are the same.
func TestIndexKnowsWhatAMapKnows(t *testing.T) {
	number := func(n uint64) (k key) {
		binary.LittleEndian.PutUint64(k[:8], n)
		return k
	}
	for _, test := range []struct {
		name  string
		mask  uint32
		keys  uint64
		steps int
		key   func(n uint64) key
	}{
		{"hashes", ^uint32(0), 4000, 200_000, func(n uint64) (k key) {
			random := rand.New(rand.NewPCG(n, 1))
			binary.LittleEndian.PutUint64(k[:8], random.Uint64())
			binary.LittleEndian.PutUint64(k[8:], random.Uint64())
			return k
		}},
		{"numbers", ^uint32(0), 4000, 200_000, number},
		{"numbers at the end", ^uint32(0), 4000, 200_000, func(n uint64) (k key) {
			binary.BigEndian.PutUint64(k[8:], n)
			return k
		}},
		{"few hashes", 7, 100, 20_000, number},
		{"one hash", 0, 50, 20_000, number},
		{"high bits only", 1 << 31, 50, 20_000, number},
	} {
		t.Run(test.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			w := newWorld(test.mask)
			for range test.steps {
				k := test.key(random.Uint64N(test.keys))
				place, known := w.want[k]
				if got := w.Find(&k); got != place {
					t.Fatalf("%x is at %d, want %d", k, got, place)
				}
				if known {
					w.remove(k)
				} else {
					w.add(k)
				}
				if w.Len() != len(w.want) {
					t.Fatalf("%d keys, want %d", w.Len(), len(w.want))
				}
			}
			for n := range test.keys {
				k := test.key(n)
				if got := w.Find(&k); got != w.want[k] {
					t.Errorf("%x is at %d, want %d", k, got, w.want[k])
				}
			}
			if len(w.cells) > max(64, 4*int(test.keys)) {
				t.Errorf("%d cells for %d keys", len(w.cells), test.keys)
			}
		})
	}
}

func BenchmarkFindWhatIsNotThere(b *testing.B) {
	const n = 1 << 16
	w := newWorld(^uint32(0))
	random := rand.New(rand.NewPCG(1, 2))
	next := func() (k key) {
		binary.LittleEndian.PutUint64(k[:8], random.Uint64())
		return k
	}
	for range n {
		w.add(next())
	}
	for b.Loop() {
		k := next()
		if w.Find(&k) != 0 {
			b.Fatal("a key is there that was not added")
		}
	}
}
