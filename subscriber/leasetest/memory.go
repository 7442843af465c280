package leasetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/subscriber"
)

// ErrUnreachable is the error of a [MemoryLease] that was cut off.
var ErrUnreachable = errors.New("leasetest: the store cannot be reached")

// Memory is a store for one lease in the memory of a test. Its methods, and those of its leases,
// are safe for concurrent use.
type Memory struct {
	ttl time.Duration

	mu      sync.Mutex
	epoch   uint64
	term    *memoryTerm // nil if nobody has the lease
	renewed time.Time   // when the store accepted the latest request
	changed wakeup.Signal
}

// NewMemory returns a store in which nobody has the lease. ttl must be positive.
func NewMemory(ttl time.Duration) *Memory { return &Memory{ttl: ttl} }

// Lease returns the lease as another process sees it.
func (m *Memory) Lease() *MemoryLease { return &MemoryLease{store: m} }

// MemoryLease is a [subscriber.Lease] in a [Memory].
type MemoryLease struct {
	store *Memory
	cut   bool // guarded by store.mu
}

var _ subscriber.Lease = (*MemoryLease)(nil)

// Cut cuts this process off from the store: Renew and Release fail, and Acquire waits, until
// heal is called. Nobody else notices.
func (l *MemoryLease) Cut() (heal func()) {
	l.set(true)
	return func() { l.set(false) }
}

func (l *MemoryLease) set(cut bool) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.cut = cut
	l.store.changed.Raise()
}

// TTL implements [subscriber.Lease].
func (l *MemoryLease) TTL() time.Duration { return l.store.ttl }

// Acquire implements [subscriber.Lease].
func (l *MemoryLease) Acquire(ctx context.Context) (subscriber.LeaseTerm, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		term, wait, changed := l.try()
		if term != nil {
			return term, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// try acquires the lease if it is free, and tells what to wait for if not.
func (l *MemoryLease) try() (*memoryTerm, time.Duration, <-chan struct{}) {
	m := l.store
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var wait time.Duration
	if m.term != nil && m.term.lease != l { // else it is free, or the caller has given up its own
		wait = m.renewed.Add(m.ttl).Sub(now)
	}
	if l.cut || wait > 0 {
		return nil, max(wait, m.ttl/10), m.changed.Next()
	}
	m.epoch++
	lost := make(chan struct{})
	m.term, m.renewed = &memoryTerm{lease: l, epoch: m.epoch, renewed: now, lost: lost, end: sync.OnceFunc(func() { close(lost) })}, now
	m.changed.Raise()
	return m.term, 0, nil
}

// memoryTerm is a [subscriber.LeaseTerm].
type memoryTerm struct {
	lease   *MemoryLease
	epoch   uint64
	renewed time.Time // guarded by Memory.mu
	lost    chan struct{}
	end     func() // closes lost: the holder has asked, and knows
}

func (t *memoryTerm) Epoch() uint64 { return t.epoch }

func (t *memoryTerm) Lost() <-chan struct{} { return t.lost }

func (t *memoryTerm) Renewed() time.Time {
	t.lease.store.mu.Lock()
	defer t.lease.store.mu.Unlock()
	return t.renewed
}

func (t *memoryTerm) Renew(ctx context.Context) error {
	sent := time.Now()
	m := t.lease.store
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case t.lease.cut:
		return ErrUnreachable
	case m.term != t:
		t.end()
		return subscriber.ErrLeaseLost
	}
	t.renewed, m.renewed = sent, time.Now()
	return nil
}

func (t *memoryTerm) Release(ctx context.Context) error {
	m := t.lease.store
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.term != t:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case t.lease.cut:
		return ErrUnreachable
	}
	m.term = nil
	t.end()
	m.changed.Raise()
	return nil
}
