package leasetest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
	"github.com/agrimill/agrimill/subscriber/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	leasetest.Run(t, leasetest.Suite{
		In: synctest.Test,
		New: func(*testing.T) func() subscriber.Lease {
			store := leasetest.NewMemory(time.Second)
			return func() subscriber.Lease { return store.Lease() }
		},
		Cut: func(_ *testing.T, lease subscriber.Lease) func() { return lease.(*leasetest.MemoryLease).Cut() },
	})
}

// In the time of a test, a holder that is cut off is followed after exactly its TTL.
func TestMemoryInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := leasetest.NewMemory(5 * time.Second)
		a, b := store.Lease(), store.Lease()
		first := testkit.Must(a.Acquire(t.Context()))(t)
		defer a.Cut()()
		second := testkit.Must(b.Acquire(t.Context()))(t)
		if got := second.Renewed().Sub(first.Renewed()); got != 5*time.Second {
			t.Errorf("the next term began after %v, want 5s", got)
		}
	})
}
