package router

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// DefaultMemoryStoreEntries is the default of [MemoryStoreConfig.MaxEntries].
// It takes about 40 MB when full.
const DefaultMemoryStoreEntries = 1 << 18

// MemoryStoreConfig configures [NewMemoryStore]. The zero value is ready for use.
type MemoryStoreConfig struct {
	// MaxEntries is how many committed keys are remembered at most; the oldest
	// one is forgotten first. Reservations do not count: they are bounded by the
	// messages in flight. 0 means [DefaultMemoryStoreEntries]; negative is an
	// error.
	MaxEntries int
}

// Validate reports a value that is not allowed; the error matches [ErrConfig].
func (c MemoryStoreConfig) Validate() error {
	if c.MaxEntries < 0 {
		return fmt.Errorf("%w: memory store: MaxEntries is negative", ErrConfig)
	}
	return nil
}

func (c *MemoryStoreConfig) setDefaults() {
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMemoryStoreEntries
	}
}

// MemoryStore is a [DedupStore] in the memory of this process. What it knows is
// gone with the process: messages that were handled but not confirmed at that
// moment are handled again. It needs no Close.
type MemoryStore struct {
	maxEntries int

	mu        sync.Mutex
	entries   map[Key]memoryEntry
	lastToken Token
	// committed lists the commits, oldest first. Expired ones go from the
	// front whenever something is added, so no goroutine is needed.
	committed ring
}

type memoryEntry struct {
	token     Token
	committed bool
	expires   time.Time
}

// NewMemoryStore returns an empty store, or an error that matches [ErrConfig].
func NewMemoryStore(config MemoryStoreConfig) (*MemoryStore, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &MemoryStore{maxEntries: config.MaxEntries, entries: make(map[Key]memoryEntry)}, nil
}

// Reserve implements [DedupStore].
func (s *MemoryStore) Reserve(ctx context.Context, key Key, lease time.Duration) (ReserveResult, Token, error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, ok := s.entries[key]; ok && now.Before(entry.expires) {
		if entry.committed {
			return Committed, 0, nil
		}
		return Busy, 0, nil
	}
	s.lastToken++
	s.entries[key] = memoryEntry{token: s.lastToken, expires: now.Add(lease)}
	return Reserved, s.lastToken, nil
}

// Commit implements [DedupStore].
func (s *MemoryStore) Commit(_ context.Context, key Key, token Token, ttl time.Duration) error {
	now := time.Now()
	expires := now.Add(ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[key] = memoryEntry{token: token, committed: true, expires: expires}
	s.committed.push(commit{key: key, token: token, expires: expires})
	for s.committed.len > 0 {
		oldest := s.committed.front()
		if s.committed.len <= s.maxEntries && now.Before(oldest.expires) {
			break
		}
		// The key may have been committed again since, or be reserved anew.
		if entry := s.entries[oldest.key]; entry.committed && entry.token == oldest.token {
			delete(s.entries, oldest.key)
		}
		s.committed.pop()
	}
	return nil
}

// Release implements [DedupStore].
func (s *MemoryStore) Release(_ context.Context, key Key, token Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, ok := s.entries[key]; ok && !entry.committed && entry.token == token {
		delete(s.entries, key)
	}
	return nil
}

// Len returns how many keys are known, reserved ones included.
func (s *MemoryStore) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

type commit struct {
	key     Key
	token   Token
	expires time.Time
}

// ring is a queue that reuses its memory.
type ring struct {
	items []commit
	head  int
	len   int
}

func (r *ring) push(c commit) {
	if r.len == len(r.items) {
		grown := make([]commit, max(64, 2*len(r.items)))
		n := copy(grown, r.items[r.head:])
		copy(grown[n:], r.items[:r.head])
		r.items, r.head = grown, 0
	}
	r.items[(r.head+r.len)%len(r.items)] = c
	r.len++
}

func (r *ring) front() *commit { return &r.items[r.head] }

func (r *ring) pop() {
	r.head = (r.head + 1) % len(r.items)
	r.len--
}
