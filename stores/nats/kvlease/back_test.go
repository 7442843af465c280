package kvlease_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// A server that lost its latest writes has an older record again, which says that the lease is free. Whoever has seen a later one
// waits for its holder, which has not heard of the loss yet.
func TestBucketWentBack(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	dir := server.Server().StoreDir()
	log := testkit.NewLog()
	lease := func(instance string) *kvlease.Lease {
		return open(t, kvlease.Config{Conn: dial(t, server.URL()), TTL: time.Hour, Instance: instance, Logger: log})
	}
	holder, standby := lease("holder"), lease("standby")
	conn := dial(t, server.URL())
	natstest.Put(t, server, kvlease.DefaultBucket, kvlease.DefaultName, `{"epoch":1,"holder":"before","released":true,"writes":2}`)
	server.Stop()
	old := filepath.Join(t.TempDir(), "old")
	testkit.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	server.Restart()
	natstest.AwaitReconnect(t, conn)
	term := testkit.Must(holder.Acquire(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	acquired := make(chan error, 1)
	go func() {
		_, err := standby.Acquire(ctx)
		acquired <- err
	}()
	testkit.Eventually(t, "the standby sees the holder", func() bool { return standby.Holder() == "holder" })
	server.Stop()
	testkit.Eventually(t, "the standby is cut off", func() bool { return strings.Contains(log.String(), "cannot be looked at") })
	testkit.NoError(t, os.RemoveAll(dir))
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	server.Restart()
	testkit.Eventually(t, "the standby looks at it again", func() bool { return strings.Contains(log.String(), "the lease can be looked at again") })
	requests := func() int64 { return testkit.Must(server.Server().Varz(nil))(t).InMsgs }
	before := requests()
	testkit.Eventually(t, "and again", func() bool { return len(acquired) > 0 || requests() >= before+5 })
	cancel()
	if err := <-acquired; err == nil {
		t.Errorf("the standby has the lease, and so has the holder, for another %v", time.Until(term.Renewed().Add(time.Hour)))
	}
}
