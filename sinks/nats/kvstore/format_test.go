package kvstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
)

// What a version without content keys and holders has written counts as before, under
// either key: "c" for a commit and "r" for a reservation.
func TestBucketWrittenBeforeContentKeys(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server.URL())
	store := open(t, kvstore.Config{Conn: conn})
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(t.Context(), kvstore.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	done, begun, free := router.KeyOf("done"), router.KeyOf("begun"), router.KeyOf("free")
	if _, err := bucket.Put(t.Context(), done.String(), []byte("c")); err != nil {
		t.Fatal(err)
	}
	revision, err := bucket.Create(t.Context(), begun.String(), []byte("r"), jetstream.KeyTTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		keys  router.Keys
		state router.ReserveState
		key   router.KeyKind
	}{
		{router.Keys{Delivery: done}, router.Committed, router.DeliveryKey},
		{router.Keys{Delivery: free, Content: done}, router.Committed, router.ContentKey},
		{router.Keys{Delivery: begun}, router.Busy, router.DeliveryKey},
		{router.Keys{Delivery: free, Content: begun}, router.Busy, router.ContentKey},
		{router.Keys{Delivery: begun, Content: done}, router.Committed, router.ContentKey},
	} {
		got, err := store.Reserve(t.Context(), router.Claim{Keys: c.keys}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if got != (router.Reservation{State: c.state, Key: c.key}) {
			t.Errorf("%v: %+v, want state %d by key %d, of nobody known", c.keys, got, c.state, c.key)
		}
	}
	// Its holder is the earlier version, which ends it in its own way.
	claim := router.Claim{Keys: router.Keys{Delivery: begun}}
	if err := store.Release(t.Context(), claim, router.Token{revision}); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Reserve(t.Context(), claim, time.Hour); err != nil || got.State != router.Reserved {
		t.Errorf("state %d, %v, want a reservation", got.State, err)
	}
}
