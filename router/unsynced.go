package router

import (
	"slices"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// unsynced has the keys of what was handled and does not survive a power cut yet, the oldest first: it is no copy of anything. It is
// bounded by the confirmations that wait as long.
type unsynced struct {
	mu      sync.Mutex
	batches []*unsyncedBatch
}

// unsyncedBatch is what was stored at about the same time. Its times are those since the process began.
type unsyncedBatch struct {
	horizon      *msgctx.Horizon
	began, acked time.Duration // all of it was stored between them
	since, until time.Duration // when what it is filled with was on its way, and stored
	asks         time.Duration // when it may survive
	survives     bool
	keys         [][2]Key // the delivery and the content: with a third field they took a sixth more
}

// batchFor is how long a batch is filled.
const batchFor = 100 * time.Millisecond

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
	now, sent := time.Since(began), time.Duration(d.sending.Load()) // under the lock, so that it never goes back
	var b *unsyncedBatch
	for _, filling := range slices.Backward(u.batches) { // one for each route that shares them, as a rule
		if now > filling.until {
			break
		}
		if filling.horizon == horizon && sent >= filling.since {
			b = filling
			break
		}
	}
	if b == nil {
		until := now + batchFor
		b = &unsyncedBatch{horizon: horizon, began: sent, since: sent - batchFor, until: until, asks: until + horizon.After}
		u.batches = append(u.batches, b)
	}
	b.began, b.acked = min(b.began, sent), now
	b.keys = append(b.keys, [...]Key{keys.Delivery, keys.Content})
}

// next returns the keys of one that survives a power cut now, if the oldest does. Those that may be lost are forgotten.
func (u *unsynced) next() (keys Keys, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.batches) > 0 {
		b := u.batches[0]
		last := len(b.keys) - 1
		switch {
		case last < 0:
			u.batches[0] = nil
			u.batches = u.batches[1:]
		case b.survives:
			keys = Keys{Delivery: b.keys[last][0], Content: b.keys[last][1]}
			b.keys = b.keys[:last]
			return keys, true
		case time.Since(began) < b.asks:
			return Keys{}, false
		default:
			u.ask(b)
		}
	}
	return Keys{}, false
}

// ask asks about b, and again later if it is not known yet. u.mu is held, but not while the sink is asked.
func (u *unsynced) ask(b *unsyncedBatch) {
	b.asks = time.Since(began) + batchFor
	survives, err := func() (bool, error) {
		u.mu.Unlock()
		defer u.mu.Lock()
		return b.horizon.Survives(began.Add(b.began), began.Add(b.acked))
	}()
	if err != nil {
		b.keys = nil
	}
	b.survives = survives
}
