package router

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// DefaultMemoryStoreEntries is the default of [MemoryStoreConfig.MaxEntries].
// It takes about 30 MB when full.
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
	base       time.Time // times are durations since base: small, and monotonic

	mu sync.Mutex
	// slots holds the entries and index says where. Neither has pointers, so
	// the garbage collector does not walk through them.
	index map[Key]int32
	slots []slot
	// Slots form rings through their links. The one of slot freeList holds the
	// unused slots, the one of slot commitList the commits, oldest first:
	// expired ones go from its front whenever something is added, so no
	// goroutine is needed. Reservations are in none.
	commits   int
	lastToken Token
}

const (
	freeList   int32 = 0
	commitList int32 = 1
)

type slot struct {
	key        Key
	token      Token
	expires    time.Duration
	prev, next int32
	committed  bool
}

// NewMemoryStore returns an empty store, or an error that matches [ErrConfig].
func NewMemoryStore(config MemoryStoreConfig) (*MemoryStore, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &MemoryStore{
		maxEntries: config.MaxEntries,
		base:       time.Now(),
		index:      make(map[Key]int32),
		slots:      []slot{freeList: {}, commitList: {prev: commitList, next: commitList}},
	}, nil
}

// Reserve implements [DedupStore].
func (s *MemoryStore) Reserve(ctx context.Context, key Key, lease time.Duration) (ReserveResult, Token, error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	now := time.Since(s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.index[key]
	switch {
	case !ok:
		i = s.take()
		s.index[key] = i
	case now < s.slots[i].expires && s.slots[i].committed:
		return Committed, 0, nil
	case now < s.slots[i].expires:
		return Busy, 0, nil
	case s.slots[i].committed:
		s.unlink(i)
		s.commits--
	}
	s.lastToken++
	s.slots[i] = slot{key: key, token: s.lastToken, expires: now + lease}
	return Reserved, s.lastToken, nil
}

// Commit implements [DedupStore].
func (s *MemoryStore) Commit(_ context.Context, key Key, token Token, ttl time.Duration) error {
	now := time.Since(s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.index[key]
	switch {
	case !ok:
		i = s.take()
		s.index[key] = i
	case s.slots[i].committed:
		s.unlink(i)
		s.commits--
	}
	s.slots[i] = slot{key: key, token: token, expires: now + ttl, committed: true}
	s.link(i, commitList)
	s.commits++
	for s.commits > 0 {
		oldest := s.slots[commitList].next
		if s.commits <= s.maxEntries && now < s.slots[oldest].expires {
			break
		}
		s.unlink(oldest)
		s.commits--
		s.free(oldest)
	}
	return nil
}

// Release implements [DedupStore].
func (s *MemoryStore) Release(_ context.Context, key Key, token Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.index[key]; ok && !s.slots[i].committed && s.slots[i].token == token {
		s.free(i)
	}
	return nil
}

// Len returns how many keys are known, reserved ones included.
func (s *MemoryStore) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.index)
}

// take returns an unused slot.
func (s *MemoryStore) take() int32 {
	if i := s.slots[freeList].next; i != freeList {
		s.unlink(i)
		return i
	}
	s.slots = append(s.slots, slot{})
	return int32(len(s.slots) - 1) // 2^31 entries do not fit in memory
}

// free makes a slot that is in no list unused.
func (s *MemoryStore) free(i int32) {
	delete(s.index, s.slots[i].key)
	s.link(i, freeList)
}

// link puts a slot at the end of a list.
func (s *MemoryStore) link(i, list int32) {
	last := s.slots[list].prev
	s.slots[i].prev, s.slots[i].next = last, list
	s.slots[last].next, s.slots[list].prev = i, i
}

func (s *MemoryStore) unlink(i int32) {
	prev, next := s.slots[i].prev, s.slots[i].next
	s.slots[prev].next, s.slots[next].prev = next, prev
}
