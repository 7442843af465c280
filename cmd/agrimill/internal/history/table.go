package history

// table is a map from hashes to values that are changed in place: open addressing with linear probing, at most half full.
// A pointer into it is valid until the next value is added or removed.
type table[V any] struct {
	keys   []uint64 // 0: free
	values []V
	n      int
}

// minTable is how many places a table has at first.
const minTable = 64

// place returns where a key is or would be. There is always a free place.
func (t *table[V]) place(key uint64) int {
	mask := len(t.keys) - 1
	i := int(key) & mask
	for t.keys[i] != key && t.keys[i] != 0 {
		i = (i + 1) & mask
	}
	return i
}

// get returns the value of a key, which is not 0; nil if there is none.
func (t *table[V]) get(key uint64) *V {
	if t.n == 0 {
		return nil
	}
	if i := t.place(key); t.keys[i] == key {
		return &t.values[i]
	}
	return nil
}

// add returns the zero value of a key that is not there yet.
func (t *table[V]) add(key uint64) *V {
	if 2*(t.n+1) > len(t.keys) {
		old := *t
		size := max(2*len(old.keys), minTable)
		t.keys, t.values = make([]uint64, size), make([]V, size)
		for i, key := range old.keys {
			if key != 0 {
				at := t.place(key)
				t.keys[at], t.values[at] = key, old.values[i]
			}
		}
	}
	t.n++
	i := t.place(key)
	t.keys[i] = key
	var zero V
	t.values[i] = zero
	return &t.values[i]
}

// remove removes a key, if it is there, and closes the gap that it leaves.
func (t *table[V]) remove(key uint64) {
	if t.n == 0 {
		return
	}
	gap := t.place(key)
	if t.keys[gap] != key {
		return
	}
	t.n--
	mask := len(t.keys) - 1
	for i := (gap + 1) & mask; t.keys[i] != 0; i = (i + 1) & mask {
		// What may move has its own place not after the gap, on the way to where it is.
		if (i-int(t.keys[i]))&mask >= (i-gap)&mask {
			t.keys[gap], t.values[gap] = t.keys[i], t.values[i]
			gap = i
		}
	}
	t.keys[gap] = 0
}

// clear removes everything and keeps the room.
func (t *table[V]) clear() {
	clear(t.keys)
	t.n = 0
}

// recent is a table that forgets the oldest: it has the latest MaxOpen, and at most as many before.
type recent[V any] struct{ now, before table[V] }

func (r *recent[V]) get(key uint64) *V {
	key = max(key, 1)
	if v := r.now.get(key); v != nil {
		return v
	}
	return r.before.get(key)
}

// add returns the zero value of a key that get does not find.
func (r *recent[V]) add(key uint64) *V {
	if r.now.n >= MaxOpen {
		r.before.clear()
		r.now, r.before = r.before, r.now
	}
	return r.now.add(max(key, 1))
}

func (r *recent[V]) remove(key uint64) {
	r.now.remove(max(key, 1))
	r.before.remove(max(key, 1))
}
