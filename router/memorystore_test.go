package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/dedupstoretest"
)

func newStore(t testing.TB, maxEntries int) *router.MemoryStore {
	t.Helper()
	store, err := router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: maxEntries})
	require.NoError(t, err)
	return store
}

func TestMemoryStore(t *testing.T) {
	dedupstoretest.Run(t, dedupstoretest.Suite{
		New:   func(t *testing.T) router.DedupStore { return newStore(t, 0) },
		Lease: 20 * time.Millisecond,
	})
}

func reserveKey(t *testing.T, store router.DedupStore, name string, want router.ReserveResult) router.Token {
	t.Helper()
	result, token, err := store.Reserve(t.Context(), router.KeyOf(name), time.Hour)
	require.NoError(t, err)
	require.Equal(t, want, result)
	return token
}

func commitKey(t *testing.T, store router.DedupStore, name string, ttl time.Duration) {
	t.Helper()
	token := reserveKey(t, store, name, router.Reserved)
	require.NoError(t, store.Commit(t.Context(), router.KeyOf(name), token, ttl))
}

func TestMemoryStoreForgetsTheOldestCommit(t *testing.T) {
	store := newStore(t, 3)
	for _, name := range []string{"held 1", "held 2", "held 3", "held 4"} {
		reserveKey(t, store, name, router.Reserved)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		commitKey(t, store, name, time.Hour)
	}
	assert.Equal(t, 3+4, store.Len())
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
		assert.Equal(t, 1000, store.Len())
		time.Sleep(time.Minute)
		commitKey(t, store, "new", time.Minute)
		assert.Equal(t, 1, store.Len())
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

func TestMemoryStoreConfig(t *testing.T) {
	_, err := router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: -1})
	assert.ErrorIs(t, err, router.ErrConfig)
}
