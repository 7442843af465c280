package pipeline_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// bolt is a configuration with a dedup store in a file.
func (w *world) bolt(file string) string {
	return w.head() + w.natsSink() + fmt.Sprintf("dedup: {bbolt: {path: %q}}\n", file) + allRoute
}

// check returns the check of that name.
func (b *agrimill) check(name string) admin.Check {
	b.w.Helper()
	for _, c := range b.Ready(b.w.Context()) {
		if c.Name == name {
			return c
		}
	}
	b.w.Fatalf("there is no check %q", name)
	return admin.Check{}
}

// A file that cannot be opened now is an outage and no mistake in the configuration:
// messages wait, the probe tells, and all continues when it can be opened.
func TestDedupFileCannotBeOpenedYet(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, file string) (lift func()){
		"open in another process": func(t *testing.T, file string) func() {
			other := testkit.Must(boltstore.New(boltstore.Config{Path: file}))(t)
			return func() { _ = other.Close() }
		},
		"damaged": func(t *testing.T, file string) func() {
			testkit.NoError(t, os.WriteFile(file, []byte(strings.Repeat("no database", 1000)), 0o600))
			return func() { _ = os.Rename(file, file+".damaged") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			file := filepath.Join(t.TempDir(), "dedup.db")
			lift := prepare(t, file)
			defer lift()
			b := w.start(w.bolt(file))
			w.send(taskData, 5)
			b.logs.contains("level=WARN", "part=dedup", "unavailable; retrying", name)
			// In the route, or with the subscriber, to which one that was tried goes back.
			testkit.Eventually(w, "the messages wait", func() bool {
				now := b.Snapshot()
				return now.Routes[0].Waiting > 0 ||
					slices.ContainsFunc(now.Subscriber.Waits, func(w admin.Waits) bool { return w.Kind == subscriber.WaitNack && w.Count > 0 })
			})
			if c := b.check("dedup"); c.OK || !strings.Contains(c.Message, name) || c.Since.IsZero() {
				t.Errorf("check %+v", c)
			}
			if d := b.Snapshot().Dedup; d.Up || d.Store != "bbolt" || d.Target != file || !strings.Contains(d.Error, name) {
				t.Errorf("dedup %+v", d)
			}
			lift()
			b.waitReady()
			b.finish()
		})
	}
}

// A path that cannot be that of a file is a mistake in the configuration.
func TestDedupFileInNoDirectory(t *testing.T) {
	w := newWorld(t)
	for _, file := range []string{filepath.Join(t.TempDir(), "missing", "dedup.db"), t.TempDir()} {
		if _, err := pipeline.New(t.Context(), w.parse(w.bolt(file)), pipeline.Options{}); !errors.Is(err, pipeline.ErrConfig) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A file that is damaged while agrimill runs is an outage that tells what it is:
// nothing is poisoned, nothing is confirmed, and after the file was moved away and a
// restart everything continues.
func TestDedupFileIsDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "dedup.db")
	b := w.start(w.bolt(file))
	b.waitReady()
	w.send(taskData, 20)
	w.waitConfirmed()
	testkit.NoError(t, os.Truncate(file, 0))
	w.send(taskData, 20)
	b.logs.contains("level=WARN", "msg=problem", "kind=dedup", "damaged")
	b.waitOutage("damaged")
	if c := b.check("dedup"); c.OK || !strings.Contains(c.Message, "damaged") {
		t.Errorf("check %+v", c)
	}
	if c := b.check("route farm-data"); c.OK || !strings.HasPrefix(c.Message, "outage: ") || c.Since.IsZero() {
		t.Errorf("check %+v", c)
	}
	if h := b.Snapshot().Routes[0]; h.Poisoned != 0 || h.Delivered != 20 || len(w.confirmed()) != 20 {
		t.Errorf("%d are confirmed, route %s", len(w.confirmed()), w.asJSON(h))
	}
	_ = b.stop() // it tells what it could not finish
	testkit.NoError(t, os.Rename(file, file+".damaged"))
	again := w.start(w.bolt(file))
	again.finish()
}

// A bucket that is gone is made again, also while no message comes.
func TestDedupBucketIsGone(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + fmt.Sprintf("dedup: {nats_kv: {url: %q}}\n", w.server.URL()) + allRoute)
	b.waitReady()
	testkit.NoError(t, w.js.DeleteKeyValue(t.Context(), kvstore.DefaultBucket))
	testkit.EventuallyNil(w, func() error { _, err := w.js.KeyValue(t.Context(), kvstore.DefaultBucket); return err })
	testkit.Eventually(w, "it is ready", func() bool { return b.check("dedup").OK })
	b.mustStop()
}

// With the grace that programs have, a broker that restarts does not make agrimill
// unready, but is reported; so is a reload.
func TestBriefOutageLeavesItReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grace = time.Hour
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.server.Stop()
	w.send(taskData, 5)
	b.waitOutage("")
	testkit.Eventually(w, "the route and its sink are reported", func() bool {
		route, sink := b.check("route farm-data"), b.check("sink farm")
		return strings.HasPrefix(route.Message, "failing, within the grace period: outage: ") && !route.Since.IsZero() && !sink.Since.IsZero()
	})
	if !b.isReady() {
		t.Error("not ready")
	}
	b.reload(w.head() + w.natsSink() + allRoute + "log: {level: debug}\n")
	if !b.isReady() {
		t.Error("not ready after a reload")
	}
	w.restart()
	b.finish()
}
