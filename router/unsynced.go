package router

import (
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// unsynced has what was handled and does not survive a power cut yet, the oldest first: it is no copy of anything. It is bounded by the
// confirmations that wait as long.
type unsynced struct {
	mu      sync.Mutex
	entries []unsyncedEntry
	first   int
}

type unsyncedEntry struct {
	horizon      *msgctx.Horizon
	began, acked time.Duration // since the process began
	keys         Keys
}

// waits reports whether the confirmation of d is to wait until what it has stored survives a power cut.
func (d *delivery) waits() bool {
	if d == nil || d.route.durable == nil || d.value.Nack == nil || !d.touched {
		return false
	}
	return d.route.durable.horizonNow() != nil
}

// add adds what d has handled.
func (u *unsynced) add(d *delivery, keys Keys) {
	e := unsyncedEntry{d.route.durable.horizonNow(), time.Duration(d.sending.Load()), time.Since(began), keys}
	if e.horizon == nil {
		e.horizon = &msgctx.Horizon{Survives: d.route.durable.survive}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.first > len(u.entries)/2 {
		n := copy(u.entries, u.entries[u.first:])
		clear(u.entries[n:])
		u.entries, u.first = u.entries[:n], 0
	}
	u.entries = append(u.entries, e)
}

// next returns the keys of one that survives a power cut now, if the oldest does. Those that may be lost are forgotten.
func (u *unsynced) next() (keys Keys, ok bool) {
	for {
		u.mu.Lock()
		if u.first == len(u.entries) || time.Since(began)-u.entries[u.first].acked < u.entries[u.first].horizon.After {
			u.mu.Unlock()
			return Keys{}, false
		}
		e := u.entries[u.first]
		u.mu.Unlock()
		survives, err := e.horizon.Survives(began.Add(e.began), began.Add(e.acked))
		if err == nil && !survives {
			return Keys{}, false
		}
		u.mu.Lock()
		mine := u.first < len(u.entries) && u.entries[u.first] == e
		if mine {
			u.entries[u.first] = unsyncedEntry{}
			u.first++
		}
		u.mu.Unlock()
		if mine && err == nil {
			return e.keys, true
		}
	}
}
