package router

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/keyindex"
	"github.com/agrimill/agrimill/internal/validate"
)

// defaultMemoryStoreEntries is the default of [MemoryStoreConfig.MaxEntries].
// It takes about 11 MB when full.
const defaultMemoryStoreEntries = 1 << 18

// MemoryStoreConfig configures [NewMemoryStore]. The zero value is ready for use.
type MemoryStoreConfig struct {
	// MaxEntries is how many handled messages are remembered; the oldest is forgotten first.
	// Reservations do not count: they are bounded by the messages in flight. 0 means
	// 262,144; negative is an error.
	MaxEntries int
}

// Validate reports a value that is not allowed; the error matches [ErrConfig].
func (c MemoryStoreConfig) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxEntries", c.MaxEntries)
	return e.Err(ErrConfig)
}

// WithDefaults returns the configuration with its defaults filled in.
func (c MemoryStoreConfig) WithDefaults() MemoryStoreConfig {
	c.MaxEntries = cmp.Or(c.MaxEntries, defaultMemoryStoreEntries)
	return c
}

// MemoryStore is a [DedupStore] in the memory of this process. What it knows is
// gone with the process: messages that were handled but not confirmed at that
// moment are handled again. Each call is atomic for both keys. It needs no Close.
type MemoryStore struct {
	maxEntries int
	base       time.Time // times are durations since base: small, monotonic, and nothing that the garbage collector follows

	mu        sync.Mutex
	lastToken uint64
	reserved  map[Key]reserved
	// The commits are a ring of at most maxEntries slots, the i-th one at i modulo that. index says in which slot, counted
	// from 1, the latest commit of a key is.
	index        *keyindex.Index[Key]
	slots        []committed
	oldest, next int
}

type reserved struct {
	token   uint64
	expires time.Duration
	owner   Owner
}

type committed struct {
	key     Key // none if it was committed again since
	expires time.Duration
}

// NewMemoryStore returns an empty store, or an error that matches [ErrConfig].
func NewMemoryStore(config MemoryStoreConfig) (*MemoryStore, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &MemoryStore{
		maxEntries: config.WithDefaults().MaxEntries,
		base:       time.Now(),
		reserved:   make(map[Key]reserved),
	}
	s.index = keyindex.New(func(place int32) *Key { return &s.slots[place-1].key })
	return s, nil
}

// Reserve implements [DedupStore].
func (s *MemoryStore) Reserve(ctx context.Context, claim Claim, lease time.Duration) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, err
	}
	if err := claim.Keys.Valid(); err != nil {
		return Reservation{}, err
	}
	now := time.Since(s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	var busy Reservation
	for kind, key := range claim.Keys.All() {
		if place := s.index.Find(&key); place != 0 && now < s.slots[place-1].expires {
			return Reservation{State: Committed, Key: kind}, nil
		}
		if held := s.reserved[key]; now < held.expires && busy.State == 0 {
			busy = Reservation{State: Busy, Key: kind, Holder: held.owner, Until: s.base.Add(held.expires)}
		}
	}
	if busy.State != 0 {
		return busy, nil
	}
	s.lastToken++
	for _, key := range claim.Keys.All() {
		s.reserved[key] = reserved{s.lastToken, now + lease, claim.Owner}
	}
	return Reservation{State: Reserved, Token: Token{s.lastToken}}, nil
}

// Commit implements [DedupStore].
func (s *MemoryStore) Commit(_ context.Context, claim Claim, _ Token, ttl time.Duration) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	now := time.Since(s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range claim.Keys.All() {
		delete(s.reserved, key)
		if place := s.index.Find(&key); place != 0 {
			s.index.Remove(place)
			s.slots[place-1].key = Key{}
		}
		if s.next-s.oldest == s.maxEntries {
			s.forget()
		}
		i := s.next % s.maxEntries
		s.next++
		if i == len(s.slots) {
			if i == cap(s.slots) {
				s.slots = slices.Grow(s.slots, max(i, 1024)) // append would copy more often
			}
			s.slots = s.slots[:i+1]
		}
		s.slots[i] = committed{key, now + ttl}
		s.index.Add(&key, int32(i+1)) // 2^31 entries do not fit in memory
	}
	for s.oldest < s.next && now >= s.slots[s.oldest%s.maxEntries].expires {
		s.forget()
	}
	return nil
}

// forget forgets the oldest commit.
func (s *MemoryStore) forget() {
	i := s.oldest % s.maxEntries
	s.oldest++
	if s.slots[i].key != (Key{}) {
		s.index.Remove(int32(i + 1))
	}
}

// Release implements [DedupStore].
func (s *MemoryStore) Release(_ context.Context, claim Claim, token Token) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range claim.Keys.All() {
		if s.reserved[key].token == token[0] {
			delete(s.reserved, key)
		}
	}
	return nil
}
