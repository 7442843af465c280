package router

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/keyindex"
	"github.com/agrimill/agrimill/internal/validate"
)

// defaultMemoryStoreEntries is the default of [MemoryStoreConfig.MaxEntries].
// It takes about 21 MB when full.
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
	base       time.Time // times are durations since base: small, and monotonic

	mu sync.Mutex
	// index says in which slot what is known of a key is.
	index *keyindex.Index[Key]
	slots []*[chunkSize]slot
	used  int32 // slots from here on were never used
	// Slots form rings through their links: that of freeList holds the unused slots, that of commitList the commits, oldest
	// first. Expired ones go from its front whenever something is added. Reservations are in none.
	commits   int
	lastToken uint64
	owners    map[uint64]Owner // of reservations, by their tokens
}

const (
	freeList   int32 = 0
	commitList int32 = 1
)

// chunkSize is how many slots are allocated at a time: a slice that grows would be copied.
const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
)

type slot struct {
	key        Key
	token      uint64
	expires    time.Duration
	prev, next int32
	committed  bool
}

// NewMemoryStore returns an empty store, or an error that matches [ErrConfig].
func NewMemoryStore(config MemoryStoreConfig) (*MemoryStore, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	first := new([chunkSize]slot)
	first[commitList] = slot{prev: commitList, next: commitList}
	s := &MemoryStore{
		maxEntries: config.MaxEntries,
		base:       time.Now(),
		slots:      []*[chunkSize]slot{first},
		used:       commitList + 1,
		owners:     make(map[uint64]Owner),
	}
	s.index = keyindex.New(func(place int32) *Key { return &s.at(place).key })
	return s, nil
}

func (s *MemoryStore) at(i int32) *slot { return &s.slots[i>>chunkBits][i&(chunkSize-1)] }

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
	// All are looked for before anything is done, so that the processor waits for the memory once.
	keys := claim.Keys.pair()
	var places [len(keys)]int32 // 0 for a key that is not known
	for n := range keys {
		if keys[n] != (Key{}) {
			places[n] = s.index.Find(&keys[n])
		}
	}
	var busy Reservation
	for n, i := range places {
		if i == 0 {
			continue
		}
		kind := DeliveryKey + KeyKind(n)
		switch one := s.at(i); {
		case now >= one.expires:
		case one.committed:
			return Reservation{State: Committed, Key: kind}, nil
		case busy.State == 0:
			busy = Reservation{State: Busy, Key: kind, Holder: s.owners[one.token], Until: s.base.Add(one.expires)}
		}
	}
	if busy.State != 0 {
		return busy, nil
	}
	s.lastToken++
	s.owners[s.lastToken] = claim.Owner
	for n := range keys {
		if keys[n] != (Key{}) {
			i := s.empty(&keys[n], places[n])
			*s.at(i) = slot{key: keys[n], token: s.lastToken, expires: now + lease}
		}
	}
	return Reservation{State: Reserved, Token: Token{s.lastToken}}, nil
}

// Commit implements [DedupStore].
func (s *MemoryStore) Commit(_ context.Context, claim Claim, token Token, ttl time.Duration) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	now := time.Since(s.base)
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := claim.Keys.pair()
	for n := range keys {
		if keys[n] != (Key{}) {
			i := s.empty(&keys[n], s.index.Find(&keys[n]))
			*s.at(i) = slot{key: keys[n], token: token[0], expires: now + ttl, committed: true}
			s.link(i, commitList)
			s.commits++
		}
	}
	for s.commits > 0 {
		oldest := s.at(commitList).next
		if s.commits <= s.maxEntries && now < s.at(oldest).expires {
			break
		}
		s.unlink(oldest)
		s.commits--
		s.free(oldest)
	}
	return nil
}

// Release implements [DedupStore].
func (s *MemoryStore) Release(_ context.Context, claim Claim, token Token) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range claim.Keys.All() {
		if i := s.index.Find(&key); i != 0 && !s.at(i).committed && s.at(i).token == token[0] {
			delete(s.owners, token[0])
			s.free(i)
		}
	}
	return nil
}

// empty returns the slot for a key, which may be overwritten then: the one at place i,
// or another one if i is 0.
func (s *MemoryStore) empty(key *Key, i int32) int32 {
	switch {
	case i == 0:
		i = s.take()
		s.at(i).key = *key
		s.index.Add(key, i)
	case s.at(i).committed:
		s.unlink(i)
		s.commits--
	default:
		delete(s.owners, s.at(i).token)
	}
	return i
}

func (s *MemoryStore) take() int32 {
	if i := s.at(freeList).next; i != freeList {
		s.unlink(i)
		return i
	}
	i := s.used // 2^31 entries do not fit in memory
	if int(i>>chunkBits) == len(s.slots) {
		s.slots = append(s.slots, new([chunkSize]slot))
	}
	s.used++
	return i
}

// free makes a slot that is in no list unused.
func (s *MemoryStore) free(i int32) {
	s.index.Remove(i)
	s.link(i, freeList)
}

// link puts a slot at the end of a list.
func (s *MemoryStore) link(i, list int32) {
	last := s.at(list).prev
	s.at(i).prev, s.at(i).next = last, list
	s.at(last).next, s.at(list).prev = i, i
}

func (s *MemoryStore) unlink(i int32) {
	prev, next := s.at(i).prev, s.at(i).next
	s.at(prev).next, s.at(next).prev = next, prev
}
