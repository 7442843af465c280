package history

// recent keeps what was added last, MaxOpen values at least and twice as many at most, by hashes.
type recent[V any] struct {
	now, before map[uint64]*V
}

func (r *recent[V]) get(key uint64) *V {
	if v := r.now[key]; v != nil {
		return v
	}
	return r.before[key]
}

// add returns a new value for a key, which is not there, and forgets old ones to make room.
func (r *recent[V]) add(key uint64) *V {
	if len(r.now) >= MaxOpen || r.now == nil {
		r.now, r.before = map[uint64]*V{}, r.now
	}
	r.now[key] = new(V)
	return r.now[key]
}

func (r *recent[V]) remove(key uint64) {
	delete(r.now, key)
	delete(r.before, key)
}
