package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/dedupstoretest"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t testing.TB, url string) *natsgo.Conn {
	t.Helper()
	conn, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func open(t testing.TB, config kvstore.Config) *kvstore.Store {
	t.Helper()
	store, err := kvstore.New(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestStore(t *testing.T) {
	var server *natstest.Server
	dedupstoretest.Run(t, dedupstoretest.Suite{
		Lease: time.Second, // the server knows no shorter one
		NoTTL: true,
		New: func(t *testing.T) router.DedupStore {
			server = natstest.Start(t)
			return open(t, kvstore.Config{Conn: connect(t, server.URL())})
		},
		// Another process: another connection. The first one just dies.
		Reopen: func(t *testing.T, _ router.DedupStore) router.DedupStore {
			return open(t, kvstore.Config{Conn: connect(t, server.URL())})
		},
	})
}

func TestTTLOfTheBucket(t *testing.T) {
	server := natstest.Start(t)
	store := open(t, kvstore.Config{Conn: connect(t, server.URL()), TTL: time.Second})
	key := router.KeyOf("a")
	_, token, err := store.Reserve(t.Context(), key, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Commit(t.Context(), key, token, time.Hour); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for {
		result, _, err := store.Reserve(t.Context(), key, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if result == router.Reserved {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("still known")
		}
	}
}

func TestServerDown(t *testing.T) {
	server := natstest.Start(t)
	store := open(t, kvstore.Config{Conn: connect(t, server.URL()), Timeout: 100 * time.Millisecond})
	server.Stop()
	_, _, err := store.Reserve(t.Context(), router.KeyOf("a"), time.Minute)
	if err == nil {
		t.Fatal("no error")
	}
	if class := router.Classify(&router.DedupError{Op: "reserve", Err: err}); class != router.ClassOutage {
		t.Fatalf("%v: %v", class, err)
	}
}

func TestBucketWithoutKeyTTL(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server.URL())
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "old"}); err != nil {
		t.Fatal(err)
	}
	if _, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn, Bucket: "old"}); !errors.Is(err, kvstore.ErrConfig) {
		t.Fatal(err)
	}
}

func TestConfig(t *testing.T) {
	conn := &natsgo.Conn{}
	for name, config := range map[string]kvstore.Config{
		"conn": {}, "ttl": {Conn: conn, TTL: -1}, "replicas": {Conn: conn, Replicas: 6},
		"bytes": {Conn: conn, MaxBytes: -1}, "timeout": {Conn: conn, Timeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := kvstore.New(t.Context(), config); !errors.Is(err, kvstore.ErrConfig) {
				t.Fatal(err)
			}
		})
	}
}

func BenchmarkReserveCommit(b *testing.B) {
	server := natstest.Start(b)
	store := open(b, kvstore.Config{Conn: connect(b, server.URL())})
	for i := 0; b.Loop(); i++ {
		key := router.KeyOf(fmt.Sprint(i))
		_, token, err := store.Reserve(b.Context(), key, time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		if err := store.Commit(b.Context(), key, token, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleConfig_Validate() {
	fmt.Println(kvstore.Config{}.Validate())
	// Output: kvstore: invalid configuration: Conn is required
}
