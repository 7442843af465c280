package boltstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/router/dedupstoretest"
	"github.com/agrimill/agrimill/sinks"
)

// childEnv makes the test program the process that is killed.
const childEnv = "BOLTSTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, config boltstore.Config) *boltstore.Store {
	t.Helper()
	store := testkit.Must(boltstore.New(config))(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func path(t testing.TB) string { return filepath.Join(t.TempDir(), "dedup.db") }

func TestStore(t *testing.T) {
	var file string
	dedupstoretest.Run(t, dedupstoretest.Suite{
		Lease: 50 * time.Millisecond,
		In:    func(t *testing.T, test func(*testing.T)) { synctest.Test(t, test) },
		New: func(t *testing.T) router.DedupStore {
			file = path(t)
			return open(t, boltstore.Config{Path: file})
		},
		Reopen: func(t *testing.T, old router.DedupStore) router.DedupStore {
			testkit.NoError(t, old.(*boltstore.Store).Close())
			return open(t, boltstore.Config{Path: file})
		},
	})
}

func key(n int) (k router.Key) {
	binary.BigEndian.PutUint64(k[:], uint64(n))
	k[15] = 1 // the zero key is none
	return k
}

// claim is one with a delivery key alone.
func claim(k router.Key) router.Claim { return router.Claim{Keys: router.Keys{Delivery: k}} }

func commit(t testing.TB, store *boltstore.Store, k router.Key, ttl time.Duration) {
	t.Helper()
	reservation, err := store.Reserve(context.Background(), claim(k), time.Hour)
	if err != nil || reservation.State != router.Reserved {
		t.Fatal(reservation.State, err)
	}
	testkit.NoError(t, store.Commit(context.Background(), claim(k), reservation.Token, ttl))
}

func known(t testing.TB, store *boltstore.Store, k router.Key) bool {
	t.Helper()
	reservation := testkit.Must(store.Reserve(context.Background(), claim(k), time.Hour))(t)
	if reservation.State == router.Reserved {
		testkit.NoError(t, store.Release(context.Background(), claim(k), reservation.Token))
	}
	return reservation.State == router.Committed
}

func TestBounded(t *testing.T) {
	file := path(t)
	store := open(t, boltstore.Config{Path: file, MaxEntries: 10})
	for i := range 100 {
		commit(t, store, key(i), time.Hour)
	}
	for i := range 100 {
		if got, want := known(t, store, key(i)), i >= 90; got != want {
			t.Errorf("key %d known: %v", i, got)
		}
	}
	// The count survives, and a smaller bound is reached in steps.
	testkit.NoError(t, store.Close())
	store = open(t, boltstore.Config{Path: file, MaxEntries: 3})
	for i := 100; i < 110; i++ {
		commit(t, store, key(i), time.Hour)
	}
	for i := range 110 {
		if got, want := known(t, store, key(i)), i >= 107; got != want {
			t.Errorf("key %d known: %v", i, got)
		}
	}
}

func TestLocked(t *testing.T) {
	file := path(t)
	open(t, boltstore.Config{Path: file})
	config := boltstore.Config{Path: file, OpenTimeout: time.Millisecond}
	_, looked := boltstore.Look(config)
	_, opened := boltstore.New(config)
	if !errors.Is(looked, boltstore.ErrLocked) || !errors.Is(opened, boltstore.ErrLocked) {
		t.Fatal(looked, opened)
	}
}

// A store that is made while another process has its file says so, and opens it once it is free, with what the other has
// written. One that never gets it closes all the same.
func TestBeforeTheFile(t *testing.T) {
	file := path(t)
	other := open(t, boltstore.Config{Path: file})
	commit(t, other, key(1), time.Hour)
	config := boltstore.Config{Path: file, OpenTimeout: time.Millisecond, RetryOnFailedOpen: true}
	store, never := open(t, config), open(t, config)
	_, reserved := store.Reserve(t.Context(), claim(key(1)), time.Hour)
	for what, err := range map[string]error{
		"Reserve": reserved, "Health": store.Health(t.Context()), "Commit": store.Commit(t.Context(), claim(key(2)), router.Token{1}, time.Hour),
	} {
		if !errors.Is(err, sinks.ErrNotConnected) || !errors.Is(err, boltstore.ErrLocked) || router.ClassOf(err) != router.ClassOutage {
			t.Errorf("%s: %v of class %v, want an outage that says who has the file", what, err, router.ClassOf(err))
		}
	}
	testkit.NoError(t, never.Close())
	testkit.ErrorIs(t, never.Health(t.Context()), boltstore.ErrClosed)
	testkit.NoError(t, other.Close())
	testkit.EventuallyNil(t, func() error { return store.Health(t.Context()) })
	if !known(t, store, key(1)) {
		t.Error("what the other process wrote is not known")
	}
	config.Path = t.TempDir()
	if _, err := boltstore.New(config); !errors.Is(err, boltstore.ErrConfig) {
		t.Errorf("a directory: %v, want ErrConfig", err)
	}
}

func TestClosed(t *testing.T) {
	store := open(t, boltstore.Config{Path: path(t)})
	testkit.NoError(t, store.Close())
	if _, err := store.Reserve(t.Context(), claim(key(1)), time.Hour); !errors.Is(err, boltstore.ErrClosed) {
		t.Errorf("Reserve: %v", err)
	}
	testkit.ErrorIs(t, store.Commit(t.Context(), claim(key(1)), router.Token{1}, time.Hour), boltstore.ErrClosed)
	testkit.ErrorIs(t, store.Health(t.Context()), boltstore.ErrClosed)
}

func TestConfig(t *testing.T) {
	for name, config := range map[string]boltstore.Config{
		"no path": {}, "entries": {Path: "x", MaxEntries: -1}, "timeout": {Path: "x", OpenTimeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, looked := boltstore.Look(config)
			_, opened := boltstore.New(config)
			if !errors.Is(looked, boltstore.ErrConfig) || !errors.Is(opened, boltstore.ErrConfig) {
				t.Fatal(looked, opened)
			}
		})
	}
	for name, path := range map[string]string{
		"missing directory": filepath.Join(t.TempDir(), "missing", "x"), "directory": t.TempDir(), "below a file": os.Args[0] + "/x",
	} {
		if _, err := boltstore.New(boltstore.Config{Path: path}); !errors.Is(err, boltstore.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// child handles message after message, says so after each one, and holds a
// reservation, until it is killed.
func child(path string) {
	store, err := boltstore.New(boltstore.Config{Path: path})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	dedup, err := router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, KeyFunc: testKey}, Scope: "s"}, nil)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	h := dedup.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "hangs" {
			fmt.Println("hangs")
			select {}
		}
		return nil, nil
	})
	for i := range 20 {
		if _, err := h(message.NewMessage(fmt.Sprint(i), nil)); err != nil {
			fmt.Println("error", err)
			return
		}
		fmt.Println("done", i)
	}
	_, _ = h(message.NewMessage("hangs", nil))
}

func testKey(scope string, msg *message.Message) (router.Keys, error) {
	return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
}

// The process is killed while it handles a message: what it had handled is known
// afterwards, and the message that it was at is not blocked.
func TestKilledProcess(t *testing.T) {
	file := path(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+file)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.NoError(t, cmd.Start())
	var said strings.Builder
	buf := make([]byte, 1024)
	for !strings.Contains(said.String(), "hangs") {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			t.Fatalf("child: %v: %s", err, said.String())
		}
	}
	testkit.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // says that it was killed

	store := open(t, boltstore.Config{Path: file})
	handled := map[string]bool{}
	dedup := testkit.Must(router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, KeyFunc: testKey}, Scope: "s"}, nil))(t)
	h := dedup.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		handled[msg.UUID] = true
		return nil, nil
	})
	for i := range 20 {
		testkit.Must(h(message.NewMessage(fmt.Sprint(i), nil)))(t)
	}
	if len(handled) != 0 {
		t.Errorf("handled twice: %v", handled)
	}
	testkit.Must(h(message.NewMessage("hangs", nil)))(t)
	if !handled["hangs"] {
		t.Error("the message that was being handled is blocked")
	}
}

func BenchmarkReserveCommit(b *testing.B) {
	store := open(b, boltstore.Config{Path: path(b)})
	var mu sync.Mutex
	n := 0
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			mu.Lock()
			n++
			k := key(n)
			mu.Unlock()
			commit(b, store, k, time.Hour)
		}
	})
}

func Example() {
	dir, err := os.MkdirTemp("", "agrimill")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := boltstore.New(boltstore.Config{Path: filepath.Join(dir, "dedup.db")})
	if err != nil {
		panic(err)
	}
	config := router.DedupSettings{Store: store} // for router.Config.Dedup; the Router closes the store
	fmt.Println(config.Validate(), store.Close())
	// Output: <nil> <nil>
}
