package subscriber

import "github.com/zeebo/xxh3"

const (
	// keySetBits is the size of a keySet, 1 MiB; a power of two.
	keySetBits = 1 << 23
	// keySetHashes is how many bits a key has in it.
	keySetHashes = 4
)

// keySet is a set of order keys of bounded size, however many there are: a Bloom filter. It never
// misses a key, so nothing overtakes what was left of one. It takes one in 100,000 other keys for
// one of its own when it has 100,000, and one in 40 when it has a million: what comes for those is
// left with the service, too, until the next connection. The zero value is empty.
type keySet struct{ bits []uint64 }

func (s *keySet) add(key string) {
	if s.bits == nil {
		s.bits = make([]uint64, keySetBits/64)
	}
	h := xxh3.HashString128(key)
	for range keySetHashes {
		s.bits[h.Lo%keySetBits/64] |= 1 << (h.Lo % 64)
		h.Lo += h.Hi
	}
}

// has reports whether key was added, perhaps wrongly if others were.
func (s *keySet) has(key string) bool {
	if s.bits == nil {
		return false
	}
	h := xxh3.HashString128(key)
	for range keySetHashes {
		if s.bits[h.Lo%keySetBits/64]&(1<<(h.Lo%64)) == 0 {
			return false
		}
		h.Lo += h.Hi
	}
	return true
}

func (s *keySet) clear() { s.bits = nil }
