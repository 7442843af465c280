package router

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// keyIndex finds the places of keys, which it keeps itself: places are small numbers from 1 on that
// its owner gives out. Most keys that are looked for are not there, and most of the memory is in no
// cache. So what is looked through is small: a cell has the place and a part of the hash, and the
// key itself is looked at only if that part is the same. There are no pointers in it, so the garbage collector
// does not walk through it.
//
// Cells are an open table with linear probing. It is never more than two thirds full, and never
// shrinks.
type keyIndex struct {
	seed  [2]uint64 // another one for each index: senders may know the keys
	cells []keyCell // as many as a power of two
	keys  []*[chunkSize]Key
	n     int
}

type keyCell struct {
	tag   uint32 // part of the hash; its low bits say where the search begins
	place int32  // 0: the cell is empty
}

// chunkSize is how many entries are allocated at a time. A slice that grows would be copied.
const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
)

func newKeyIndex() *keyIndex {
	return &keyIndex{seed: [2]uint64{rand.Uint64(), rand.Uint64()}, cells: make([]keyCell, 64)}
}

// tag mixes all bits of a key: a KeyFunc of one's own may count.
func (x *keyIndex) tag(key *Key) uint32 {
	high, low := bits.Mul64(binary.LittleEndian.Uint64(key[:8])^x.seed[0], binary.LittleEndian.Uint64(key[8:])^x.seed[1])
	return uint32((high ^ low) >> 32)
}

// find returns the place of a key, 0 if it is not there.
func (x *keyIndex) find(key *Key) int32 {
	tag, mask := x.tag(key), uint32(len(x.cells)-1)
	for i := tag & mask; ; i = (i + 1) & mask {
		switch c := x.cells[i]; {
		case c.place == 0:
			return 0
		case c.tag == tag && *x.key(c.place) == *key:
			return c.place
		}
	}
}

// key returns the key at a place.
func (x *keyIndex) key(place int32) *Key { return &x.keys[place>>chunkBits][place&(chunkSize-1)] }

// add notes the place of a key that is not there. No other key has this place.
func (x *keyIndex) add(key *Key, place int32) {
	for int(place>>chunkBits) >= len(x.keys) {
		x.keys = append(x.keys, new([chunkSize]Key))
	}
	if 3*(x.n+1) > 2*len(x.cells) {
		x.grow()
	}
	*x.key(place) = *key
	x.put(keyCell{x.tag(key), place})
	x.n++
}

func (x *keyIndex) put(c keyCell) {
	mask := uint32(len(x.cells) - 1)
	i := c.tag & mask
	for x.cells[i].place != 0 {
		i = (i + 1) & mask
	}
	x.cells[i] = c
}

func (x *keyIndex) grow() {
	old := x.cells
	x.cells = make([]keyCell, 2*len(old))
	for _, c := range old {
		if c.place != 0 {
			x.put(c)
		}
	}
}

// remove forgets the key at a place.
func (x *keyIndex) remove(place int32) {
	mask := uint32(len(x.cells) - 1)
	i := x.tag(x.key(place)) & mask
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
	x.cells[i] = keyCell{}
	x.n--
}
