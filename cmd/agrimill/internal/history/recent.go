package history

// recent keeps what was added last, MaxOpen values at least and twice as many at most, by hashes.
type recent[V any] struct {
	now, before map[uint64]*V
	spare       []*V // that were removed
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
	var v *V
	if last := len(r.spare) - 1; last >= 0 {
		v, r.spare = r.spare[last], r.spare[:last]
	} else {
		v = new(V)
	}
	r.now[key] = v
	return v
}

// remove removes a key if it is there. Its value must not be used any longer.
func (r *recent[V]) remove(key uint64) {
	if v := r.get(key); v != nil {
		var zero V
		*v = zero
		r.spare = append(r.spare, v)
		delete(r.now, key)
		delete(r.before, key)
	}
}
