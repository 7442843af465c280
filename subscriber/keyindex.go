package subscriber

import "hash/maphash"

// keyIndex finds the slot of a message in ledger.entries. It takes the place of a map because
// every message is looked up, added and deleted once, in a table that is larger than the caches
// near the processor: here that is one cache line each, eight bytes a place, and the key itself is
// compared in the entry that the place names.
//
// It is a hash table with linear probing. Its hash has a seed of its own, so that nobody can choose
// IDs that collide. The zero value is empty.
type keyIndex struct {
	places []indexPlace // a power of two of them; at most three quarters are taken
	seed   maphash.Seed
	n      int
}

// indexPlace is one place of a keyIndex.
type indexPlace struct {
	hash uint32
	slot int32 // one more than the slot; 0: the place is free
}

const minPlaces = 64

func (x *keyIndex) hash(k *messageKey) uint32 { return uint32(maphash.Bytes(x.seed, k[:])) }

// get returns the slot of k.
func (x *keyIndex) get(k *messageKey, entries []messageEntry) (slot int32, known bool) {
	if x.n == 0 {
		return 0, false
	}
	i, found := x.find(x.hash(k), k, entries)
	if !found {
		return 0, false
	}
	return x.places[i].slot - 1, true
}

// find returns the place of k, or else the free one where it belongs.
func (x *keyIndex) find(hash uint32, k *messageKey, entries []messageEntry) (place int, found bool) {
	mask := len(x.places) - 1
	for i := int(hash) & mask; ; i = (i + 1) & mask {
		p := x.places[i]
		if p.slot == 0 {
			return i, false
		}
		if p.hash == hash && entries[p.slot-1].key == *k {
			return i, true
		}
	}
}

// add adds k, which it does not have, with its slot.
func (x *keyIndex) add(k *messageKey, slot int32) {
	if 4*(x.n+1) > 3*len(x.places) {
		x.grow()
	}
	x.put(indexPlace{x.hash(k), slot + 1})
	x.n++
}

func (x *keyIndex) put(p indexPlace) {
	mask := len(x.places) - 1
	i := int(p.hash) & mask
	for x.places[i].slot != 0 {
		i = (i + 1) & mask
	}
	x.places[i] = p
}

func (x *keyIndex) grow() {
	old := x.places
	if old == nil {
		x.seed = maphash.MakeSeed()
	}
	x.places = make([]indexPlace, max(2*len(old), minPlaces))
	for _, p := range old {
		if p.slot != 0 {
			x.put(p)
		}
	}
}

// remove removes k, which has an entry still.
func (x *keyIndex) remove(k *messageKey, entries []messageEntry) {
	if x.n == 0 {
		return
	}
	i, found := x.find(x.hash(k), k, entries)
	if !found {
		return
	}
	x.n--
	// What follows moves up, unless it stands where it belongs or behind that: a gap would end
	// the search for it.
	mask := len(x.places) - 1
	for j := (i + 1) & mask; x.places[j].slot != 0; j = (j + 1) & mask {
		if home := int(x.places[j].hash) & mask; (j-home)&mask >= (j-i)&mask {
			x.places[i] = x.places[j]
			i = j
		}
	}
	x.places[i] = indexPlace{}
}
