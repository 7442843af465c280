package core

import "github.com/zeebo/xxh3"

const (
	laneKind   byte = 'l'
	tenantKind byte = 't'

	// shutBits is the size of a shutSet, 1 MiB; a power of two.
	shutBits = 1 << 23
	// shutHashes is how many bits a name has in it.
	shutHashes = 4
)

// shutSet is a set of nodes that are shut and no longer in the tree, of bounded size however many there
// are: a Bloom filter. It never misses one, so nothing overtakes what was left of it. It takes one in
// 100,000 others for one of its own when it has 100,000: what comes for those is left with the
// service, too, until the next connection. The zero value is empty.
type shutSet struct {
	bits []uint64
	left bool // something was left because of it
}

func shutHash(route uint32, kind byte, name string) xxh3.Uint128 {
	return xxh3.HashString128Seed(name, uint64(route)<<8|uint64(kind))
}

func (s *shutSet) add(route uint32, kind byte, name string) {
	if s.bits == nil {
		s.bits = make([]uint64, shutBits/64)
	}
	h := shutHash(route, kind, name)
	for range shutHashes {
		s.bits[h.Lo%shutBits/64] |= 1 << (h.Lo % 64)
		h.Lo += h.Hi
	}
}

// vacated returns the kind under which a node is that finished nothing: all of it was left.
func vacated(kind byte) byte { return kind - 'a' + 'A' }

// keepsOut reports whether a node is shut, and notes if something is left because of one that has finished all that it kept.
func (s *shutSet) keepsOut(route uint32, kind byte, name string) bool {
	if s.bits == nil {
		return false
	}
	if s.has(route, kind, name) {
		s.left = true
		return true
	}
	return s.has(route, vacated(kind), name)
}

// has reports whether it was added, perhaps wrongly if others were.
func (s *shutSet) has(route uint32, kind byte, name string) bool {
	if s.bits == nil {
		return false
	}
	h := shutHash(route, kind, name)
	for range shutHashes {
		if s.bits[h.Lo%shutBits/64]&(1<<(h.Lo%64)) == 0 {
			return false
		}
		h.Lo += h.Hi
	}
	return true
}
