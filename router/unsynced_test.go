package router

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Several routes may share a Dedup: what each has handled at about the same time is asked about together, and is recorded.
func TestUnsyncedOfSeveralRoutes(t *testing.T) {
	const each = 1000
	var u unsynced
	asked := 0
	survives := func(time.Time, time.Time) (bool, error) {
		asked++
		return true, nil
	}
	routes := []*msgctx.Horizon{{Survives: survives}, {Survives: survives}}
	start := time.Now()
	for i := range each {
		for j, horizon := range routes {
			d := new(delivery)
			d.sending.Store(int64(time.Since(began)))
			u.add(d, horizon, Keys{Delivery: Key{byte(i), byte(i >> 8), byte(j)}})
		}
	}
	periods := 1 + int(time.Since(start)/batchFor)
	if got := len(u.batches); got > len(routes)*(periods+1) {
		t.Errorf("%d batches in %d periods", got, periods)
	}
	recorded := map[Key]bool{}
	testkit.Eventually(t, "all are recorded", func() bool {
		for keys, ok := u.next(); ok; keys, ok = u.next() {
			recorded[keys.Delivery] = true
		}
		return len(recorded) == each*len(routes)
	})
	if asked > len(routes)*(periods+1) {
		t.Errorf("the sinks are asked %d times", asked)
	}
}
