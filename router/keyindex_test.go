package router

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// What is in an index is found at its place, and nothing else is, whatever comes and goes.
func TestKeyIndex(t *testing.T) {
	for _, test := range []struct {
		name string
		key  func(n uint64) (key Key)
	}{
		{"hashes", func(n uint64) (key Key) {
			random := rand.New(rand.NewPCG(n, 1))
			binary.LittleEndian.PutUint64(key[:8], random.Uint64())
			binary.LittleEndian.PutUint64(key[8:], random.Uint64())
			return key
		}},
		{"numbers", func(n uint64) (key Key) {
			binary.LittleEndian.PutUint64(key[:8], n)
			return key
		}},
		{"numbers at the end", func(n uint64) (key Key) {
			binary.BigEndian.PutUint64(key[8:], n)
			return key
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const keys = 4000
			random := rand.New(rand.NewPCG(1, 2))
			index := newKeyIndex()
			want := map[Key]int32{}
			var free []int32
			used := int32(0)
			for range 200_000 {
				key := test.key(random.Uint64N(keys))
				place, there := want[key]
				if got := index.find(&key); got != place {
					t.Fatalf("%x is at %d, want %d", key, got, place)
				}
				if there {
					index.remove(place)
					delete(want, key)
					free = append(free, place)
					continue
				}
				if n := len(free); n > 0 {
					place, free = free[n-1], free[:n-1]
				} else {
					used++
					place = used
				}
				index.add(&key, place)
				want[key] = place
			}
			for n := range uint64(keys) {
				key := test.key(n)
				if got := index.find(&key); got != want[key] {
					t.Errorf("%x is at %d, want %d", key, got, want[key])
				}
			}
			if index.n != len(want) {
				t.Errorf("%d keys, want %d", index.n, len(want))
			}
		})
	}
}

// Keys whose hashes are alike are told apart by their bytes.
func TestKeyIndexEqualHashes(t *testing.T) {
	index := newKeyIndex()
	// One factor is zero, so the other one does not matter.
	var alike [3]Key
	for n := range alike {
		binary.LittleEndian.PutUint64(alike[n][:8], index.seed[0])
		alike[n][15] = byte(n)
	}
	index.add(&alike[0], 1)
	index.add(&alike[1], 2)
	for n, want := range []int32{1, 2, 0} {
		if got := index.find(&alike[n]); got != want {
			t.Errorf("key %d is at %d, want %d", n, got, want)
		}
	}
	index.remove(1)
	for n, want := range []int32{0, 2, 0} {
		if got := index.find(&alike[n]); got != want {
			t.Errorf("without the first one key %d is at %d, want %d", n, got, want)
		}
	}
}
