// Package dedupstoretest is the conformance suite for implementations of
// router.DedupStore.
package dedupstoretest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/router"
)

// Suite says how to test a store.
type Suite struct {
	// New returns a store that knows no key. It is called once per test, and
	// closes what it opens by t.Cleanup.
	New func(t *testing.T) router.DedupStore
	// Reopen returns a store that knows what the given one knows, as a new
	// process would see it: the old store was closed properly or its process
	// died. Nil for stores that forget.
	Reopen func(t *testing.T, old router.DedupStore) router.DedupStore
	// Lease is a lease, and a TTL, that the store keeps well enough to be tested
	// with: the tests wait for about that long. 0 means 200 ms.
	Lease time.Duration
	// NoTTL skips the test that committed keys are forgotten after their TTL,
	// for stores whose TTL is a setting of the store.
	NoTTL bool
}

// long is a lease or TTL that no test outlives.
const long = time.Hour

// Run tests a store.
func Run(t *testing.T, s Suite) {
	if s.Lease == 0 {
		s.Lease = 200 * time.Millisecond
	}
	t.Run("ReserveCommit", s.reserveCommit)
	t.Run("ReserveRelease", s.reserveRelease)
	t.Run("KeysAreIndependent", s.keysAreIndependent)
	t.Run("LeaseExpires", s.leaseExpires)
	t.Run("LateHolder", s.lateHolder)
	t.Run("LateCommit", s.lateCommit)
	t.Run("CommitAfterCommit", s.commitAfterCommit)
	t.Run("TTL", s.ttl)
	t.Run("OneOfMany", s.oneOfMany)
	t.Run("Context", s.context)
	t.Run("Reopen", s.reopen)
}

func key(name string) router.Key { return router.KeyOf("dedupstoretest", name) }

// reserve reserves and checks the answer.
func reserve(t *testing.T, store router.DedupStore, k router.Key, lease time.Duration, want router.ReserveResult) router.Token {
	t.Helper()
	got, token, err := store.Reserve(t.Context(), k, lease)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if got != want {
		t.Fatalf("Reserve = %d, want %d", got, want)
	}
	return token
}

// eventually reserves until it gets the reservation.
func eventually(t *testing.T, store router.DedupStore, k router.Key, limit time.Duration) router.Token {
	t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	tick := time.NewTicker(limit / 200)
	defer tick.Stop()
	for {
		got, token, err := store.Reserve(t.Context(), k, long)
		if err != nil {
			t.Fatalf("Reserve: %v", err)
		}
		if got == router.Reserved {
			return token
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("Reserve = %d after %v", got, limit)
		}
	}
}

func commit(t *testing.T, store router.DedupStore, k router.Key, token router.Token, ttl time.Duration) {
	t.Helper()
	if err := store.Commit(t.Context(), k, token, ttl); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

func release(t *testing.T, store router.DedupStore, k router.Key, token router.Token) {
	t.Helper()
	if err := store.Release(t.Context(), k, token); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func (s Suite) reserveCommit(t *testing.T) {
	store, k := s.New(t), key("a")
	token := reserve(t, store, k, long, router.Reserved)
	reserve(t, store, k, long, router.Busy)
	commit(t, store, k, token, long)
	reserve(t, store, k, long, router.Committed)
	reserve(t, store, k, long, router.Committed)
}

func (s Suite) reserveRelease(t *testing.T) {
	store, k := s.New(t), key("a")
	token := reserve(t, store, k, long, router.Reserved)
	release(t, store, k, token)
	token = reserve(t, store, k, long, router.Reserved)
	commit(t, store, k, token, long)
	// Too late: what is committed stays so.
	release(t, store, k, token)
	reserve(t, store, k, long, router.Committed)
	// Never reserved: nothing to do.
	release(t, store, key("b"), token)
}

func (s Suite) keysAreIndependent(t *testing.T) {
	store := s.New(t)
	tokenA := reserve(t, store, key("a"), long, router.Reserved)
	tokenB := reserve(t, store, key("b"), long, router.Reserved)
	commit(t, store, key("a"), tokenA, long)
	reserve(t, store, key("b"), long, router.Busy)
	release(t, store, key("b"), tokenB)
	reserve(t, store, key("b"), long, router.Reserved)
	reserve(t, store, key("a"), long, router.Committed)
}

func (s Suite) leaseExpires(t *testing.T) {
	store, k := s.New(t), key("a")
	reserve(t, store, k, s.Lease, router.Reserved)
	reserve(t, store, k, s.Lease, router.Busy)
	eventually(t, store, k, 50*s.Lease)
	reserve(t, store, k, s.Lease, router.Busy)
}

// lateHolder: who has lost the reservation cannot release that of the next one.
func (s Suite) lateHolder(t *testing.T) {
	store, k := s.New(t), key("a")
	old := reserve(t, store, k, s.Lease, router.Reserved)
	token := eventually(t, store, k, 50*s.Lease)
	release(t, store, k, old)
	reserve(t, store, k, long, router.Busy)
	commit(t, store, k, token, long)
	reserve(t, store, k, long, router.Committed)
}

// lateCommit: a message is handled, whoever holds the reservation now.
func (s Suite) lateCommit(t *testing.T) {
	store, k := s.New(t), key("a")
	old := reserve(t, store, k, s.Lease, router.Reserved)
	token := eventually(t, store, k, 50*s.Lease)
	commit(t, store, k, old, long)
	reserve(t, store, k, long, router.Committed)
	release(t, store, k, token)
	reserve(t, store, k, long, router.Committed)
}

func (s Suite) commitAfterCommit(t *testing.T) {
	store, k := s.New(t), key("a")
	token := reserve(t, store, k, long, router.Reserved)
	commit(t, store, k, token, long)
	commit(t, store, k, token, long)
	reserve(t, store, k, long, router.Committed)
}

func (s Suite) ttl(t *testing.T) {
	if s.NoTTL {
		t.Log("the TTL is a setting of the store")
		return
	}
	store, k := s.New(t), key("a")
	commit(t, store, k, reserve(t, store, k, long, router.Reserved), s.Lease)
	eventually(t, store, k, 50*s.Lease)
}

// oneOfMany: of all that reserve at the same time, one gets the reservation.
func (s Suite) oneOfMany(t *testing.T) {
	store := s.New(t)
	for round := range 5 {
		k := router.KeyOf("round", string(rune('a'+round)))
		var winners atomic.Int64
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				result, _, err := store.Reserve(t.Context(), k, long)
				switch {
				case err != nil:
					t.Errorf("Reserve: %v", err)
				case result == router.Reserved:
					winners.Add(1)
				case result != router.Busy:
					t.Errorf("Reserve = %d", result)
				}
			})
		}
		group.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d reservations of one key", n)
		}
	}
}

func (s Suite) context(t *testing.T) {
	store := s.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := store.Reserve(ctx, key("a"), long); err == nil {
		t.Fatal("Reserve with a cancelled context succeeded")
	}
	reserve(t, store, key("a"), long, router.Reserved)
}

// reopen: after a crash, what was committed is known, and what was reserved is
// free again after its lease.
func (s Suite) reopen(t *testing.T) {
	if s.Reopen == nil {
		t.Log("the store forgets with its process")
		return
	}
	store := s.New(t)
	commit(t, store, key("done"), reserve(t, store, key("done"), long, router.Reserved), long)
	reserve(t, store, key("begun"), s.Lease, router.Reserved)
	store = s.Reopen(t, store)
	reserve(t, store, key("done"), long, router.Committed)
	eventually(t, store, key("begun"), 50*s.Lease)
}
