package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/dedupstoretest"
)

func newStore(t testing.TB, maxEntries int) *router.MemoryStore {
	t.Helper()
	store := testkit.Must(router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: maxEntries}))(t)
	return store
}

func TestMemoryStore(t *testing.T) {
	dedupstoretest.Run(t, dedupstoretest.Suite{
		New:   func(t *testing.T) router.DedupStore { return newStore(t, 0) },
		Lease: 20 * time.Millisecond,
		In:    func(t *testing.T, test func(*testing.T)) { synctest.Test(t, test) },
	})
}

// deliveryOf is a claim with a delivery key alone.
func deliveryOf(key router.Key) router.Claim { return router.Claim{Keys: router.Keys{Delivery: key}} }

func reserveKey(t *testing.T, store router.DedupStore, name string, want router.ReserveState) router.Token {
	t.Helper()
	got := testkit.Must(store.Reserve(t.Context(), deliveryOf(router.KeyOf(name)), time.Hour))(t)
	if got.State != want {
		t.Fatalf("state = %d, want %d", got.State, want)
	}
	return got.Token
}

func commitKey(t *testing.T, store router.DedupStore, name string, ttl time.Duration) {
	t.Helper()
	token := reserveKey(t, store, name, router.Reserved)
	testkit.NoError(t, store.Commit(t.Context(), deliveryOf(router.KeyOf(name)), token, ttl))
}

func TestMemoryStoreForgetsTheOldestCommit(t *testing.T) {
	store := newStore(t, 3)
	for _, name := range []string{"held 1", "held 2", "held 3", "held 4"} {
		reserveKey(t, store, name, router.Reserved)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		commitKey(t, store, name, time.Hour)
	}
	if got, want := store.Len(), 3+4; got != want {
		t.Errorf("store.Len() = %d, want %d", got, want)
	}
	for _, name := range []string{"b", "c", "d"} {
		reserveKey(t, store, name, router.Committed)
	}
	for _, name := range []string{"held 1", "held 2", "held 3", "held 4"} {
		reserveKey(t, store, name, router.Busy)
	}
	reserveKey(t, store, "a", router.Reserved)
}

func TestMemoryStoreFreesExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, 0)
		for i := range 1000 {
			commitKey(t, store, string(rune(i)), time.Minute)
		}
		if got := store.Len(); got != 1000 {
			t.Errorf("store.Len() = %d, want 1000", got)
		}
		time.Sleep(time.Minute)
		commitKey(t, store, "new", time.Minute)
		if got := store.Len(); got != 1 {
			t.Errorf("store.Len() = %d, want 1", got)
		}
	})
}

// An old commit that leaves the queue does not take a newer reservation along.
func TestMemoryStoreNewReservationSurvivesOldCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, 0)
		commitKey(t, store, "a", time.Minute)
		time.Sleep(time.Minute)
		reserveKey(t, store, "a", router.Reserved)
		commitKey(t, store, "b", time.Minute) // cleans up
		reserveKey(t, store, "a", router.Busy)
	})
}
