// Package keyindex finds entries by their keys in tables that are larger than the caches of a
// processor, in which most keys that are looked for are not.
package keyindex

import "hash/maphash"

// Index finds the places of keys. Places are small numbers from 1 on that its owner gives out and
// keeps the keys at; a map would have a copy of each key, and wait for the memory of several cache
// lines to find out that one is not there. Here that is one line as a rule: a cell has the place and a
// part of the hash, and the key itself is looked at only if that part is the same. There are no
// pointers in the table, so the garbage collector does not walk through it.
//
// It is an open table with linear probing, never more than two thirds full, which never shrinks. Each
// has a seed of its own, so that nobody can choose keys that collide. It is not safe for concurrent
// use.
type Index[K comparable] struct {
	at    func(place int32) *K
	seed  maphash.Seed
	mask  uint32 // of tags; not all of their bits in tests
	cells []cell // as many as a power of two
	n     int
}

type cell struct {
	tag   uint32 // part of the hash; its low bits say where the search begins
	place int32  // 0: the cell is empty
}

// New returns an empty Index. at returns the key at a place that has one.
func New[K comparable](at func(place int32) *K) *Index[K] {
	return &Index[K]{at: at, seed: maphash.MakeSeed(), mask: ^uint32(0), cells: make([]cell, 64)}
}

func (x *Index[K]) tag(key *K) uint32 { return uint32(maphash.Comparable(x.seed, *key)) & x.mask }

// Len returns how many keys there are.
func (x *Index[K]) Len() int { return x.n }

// Find returns the place of a key, 0 if it is not there.
func (x *Index[K]) Find(key *K) int32 {
	tag, mask := x.tag(key), uint32(len(x.cells)-1)
	for i := tag & mask; ; i = (i + 1) & mask {
		switch c := x.cells[i]; {
		case c.place == 0:
			return 0
		case c.tag == tag && *x.at(c.place) == *key:
			return c.place
		}
	}
}

// Add notes the place of a key that is not there. No other key has this place, which has to have the
// key from now on until it is removed.
func (x *Index[K]) Add(key *K, place int32) {
	if 3*(x.n+1) > 2*len(x.cells) {
		x.grow()
	}
	x.put(cell{x.tag(key), place})
	x.n++
}

func (x *Index[K]) put(c cell) {
	mask := uint32(len(x.cells) - 1)
	i := c.tag & mask
	for x.cells[i].place != 0 {
		i = (i + 1) & mask
	}
	x.cells[i] = c
}

func (x *Index[K]) grow() {
	old := x.cells
	x.cells = make([]cell, 2*len(old))
	for _, c := range old {
		if c.place != 0 {
			x.put(c)
		}
	}
}

// Remove forgets the key at a place, where it still has to be.
func (x *Index[K]) Remove(place int32) {
	mask := uint32(len(x.cells) - 1)
	i := x.tag(x.at(place)) & mask
	for x.cells[i].place != place {
		i = (i + 1) & mask
	}
	// What comes behind moves up, as far as that is not before its own begin.
	for next := (i + 1) & mask; x.cells[next].place != 0; next = (next + 1) & mask {
		if begin := x.cells[next].tag & mask; (next-begin)&mask >= (next-i)&mask {
			x.cells[i] = x.cells[next]
			i = next
		}
	}
	x.cells[i] = cell{}
	x.n--
}
