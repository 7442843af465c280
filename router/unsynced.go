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
}

type unsyncedEntry struct {
	horizon      *msgctx.Horizon
	began, acked time.Duration // since the process began
	keys         Keys
}

// horizon returns what the confirmation of d waits for, so that what it has stored survives a power cut; nil if it does not wait.
func (d *delivery) horizon() *msgctx.Horizon {
	if d == nil || d.route.durable == nil || d.value.Nack == nil || !d.touched {
		return nil
	}
	return d.route.durable.now().horizon
}

// add adds what d has handled.
func (u *unsynced) add(d *delivery, horizon *msgctx.Horizon, keys Keys) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entries = append(u.entries, unsyncedEntry{horizon, time.Duration(d.sending.Load()), time.Since(began), keys})
}

// next returns the keys of one that survives a power cut now, if the oldest does. Those that may be lost are forgotten.
func (u *unsynced) next() (keys Keys, ok bool) {
	for {
		u.mu.Lock()
		if len(u.entries) == 0 || time.Since(began)-u.entries[0].acked < u.entries[0].horizon.After {
			u.mu.Unlock()
			return Keys{}, false
		}
		e := u.entries[0]
		u.mu.Unlock()
		survives, err := e.horizon.Survives(began.Add(e.began), began.Add(e.acked))
		if err == nil && !survives {
			return Keys{}, false
		}
		u.mu.Lock()
		mine := len(u.entries) > 0 && u.entries[0] == e
		if mine {
			u.entries[0] = unsyncedEntry{}
			u.entries = u.entries[1:]
		}
		u.mu.Unlock()
		if mine && err == nil {
			return e.keys, true
		}
	}
}
