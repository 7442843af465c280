package testkit_test

import (
	"sync"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Nobody gets a port that another test has, although nobody listens on it.
func TestFreePortsDiffer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	used := map[int]bool{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			ports := testkit.FreePorts(t, 5)
			mu.Lock()
			defer mu.Unlock()
			for _, port := range ports {
				if used[port] {
					t.Errorf("%d is given twice", port)
				}
				used[port] = true
			}
		})
	}
	group.Wait()
	if len(used) != 40 {
		t.Errorf("%d ports", len(used))
	}
}

// A test that has ended gives its ports back.
func TestFreePortsAreGivenBack(t *testing.T) {
	for range 50 {
		t.Run("", func(t *testing.T) { testkit.FreePorts(t, 20) })
	}
}
