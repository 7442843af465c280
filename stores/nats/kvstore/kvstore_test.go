package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/dedupstoretest"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// sessionTTL is the shortest one.
const sessionTTL = 2 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect connects to a server, or through a proxy to one in a bubble.
func connect(t testing.TB, to natsgo.InProcessConnProvider) *natsgo.Conn {
	t.Helper()
	conn, _ := natstest.Client(t, "", natsgo.InProcessServer(to), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond), natsgo.ReconnectBufSize(-1))
	return conn
}

func open(t testing.TB, config kvstore.Config) *kvstore.Store {
	t.Helper()
	store := testkit.Must(kvstore.New(context.Background(), config))(t)
	t.Cleanup(func() { _ = store.Close() }) // what is left over is not what the test is about
	return store
}

// deliveryOf is a claim with a delivery key alone.
func deliveryOf(name string) router.Claim {
	return router.Claim{Keys: router.Keys{Delivery: router.KeyOf(name)}}
}

func TestStore(t *testing.T) {
	var server *natstest.Server
	conns := map[router.DedupStore]*natsgo.Conn{}
	process := func(t *testing.T) router.DedupStore {
		conn := connect(t, server)
		store := open(t, kvstore.Config{Conn: conn, TTL: natstest.Ever, SessionTTL: sessionTTL})
		conns[store] = conn
		return store
	}
	kill := func(_ *testing.T, store router.DedupStore) { conns[store].Close() }
	dedupstoretest.Run(t, dedupstoretest.Suite{
		In: func(t *testing.T, test func(*testing.T)) {
			natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
				server = s
				test(t)
			})
		},
		Lease:   time.Second, // the server knows no shorter one
		NoTTL:   true,
		Session: sessionTTL,
		New:     func(t *testing.T) router.DedupStore { return process(t) },
		Reopen: func(t *testing.T, old router.DedupStore) router.DedupStore {
			kill(t, old)
			return process(t)
		},
		Peer: func(t *testing.T, _ router.DedupStore) router.DedupStore { return process(t) },
		Kill: kill,
	})
}

func TestTTLOfTheBucket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		store := open(t, kvstore.Config{Conn: connect(t, server), TTL: time.Second})
		claim := deliveryOf("a")
		reservation := testkit.Must(store.Reserve(t.Context(), claim, time.Minute))(t)
		testkit.NoError(t, store.Commit(t.Context(), claim, reservation.Token, time.Hour))
		testkit.Eventually(t, "the key is forgotten", func() bool {
			reservation := testkit.Must(store.Reserve(t.Context(), claim, time.Minute))(t)
			return reservation.State == router.Reserved
		})
	})
}

func TestServerDown(t *testing.T) {
	server := natstest.Start(t)
	store := open(t, kvstore.Config{Conn: connect(t, server)})
	testkit.NoError(t, store.Health(t.Context()))
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := store.Reserve(ctx, deliveryOf("a"), time.Minute)
	if err == nil {
		t.Fatal("no error")
	}
	if err := store.Health(ctx); err == nil {
		t.Error("Health tells nothing")
	}
	dedup := testkit.Must(router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{
		Store:   store,
		KeyFunc: func(string, *message.Message) (router.Keys, error) { return deliveryOf("a").Keys, nil },
	}}, nil))(t)
	_, err = dedup.Middleware(message.PassthroughHandler)(message.NewMessage("1", nil))
	if class := router.ClassOf(err); class != router.ClassOutage {
		t.Fatalf("%v: %v", class, err)
	}
}

func TestBucketWithoutKeyTTL(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server)
	js := testkit.Must(natstest.JetStream(conn))(t)
	testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "old"}))(t)
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
	store := open(b, kvstore.Config{Conn: connect(b, server)})
	for i := 0; b.Loop(); i++ {
		claim := deliveryOf(fmt.Sprint(i))
		reservation := testkit.Must(store.Reserve(b.Context(), claim, time.Minute))(b)
		testkit.NoError(b, store.Commit(b.Context(), claim, reservation.Token, 0))
	}
}

func ExampleConfig_Validate() {
	fmt.Println(kvstore.Config{}.Validate())
	// Output: kvstore: invalid configuration: Conn is required
}
