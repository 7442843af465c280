package kvstore_test

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// Who waits for one key asks again and again. That writes nothing, and does not make
// the other key busy for anyone in between.
func TestBusyKeyWritesNothing(t *testing.T) {
	server := natstest.Start(t)
	conn := connect(t, server)
	store := open(t, kvstore.Config{Conn: conn})
	js := testkit.Must(natstest.JetStream(conn))(t)
	written := func() uint64 {
		stream := testkit.Must(js.Stream(t.Context(), "KV_"+kvstore.DefaultBucket))(t)
		return stream.CachedInfo().State.LastSeq
	}
	if got, err := store.Reserve(t.Context(), deliveryOf("busy"), time.Hour); err != nil || got.State != router.Reserved {
		t.Fatalf("state %d, %v", got.State, err)
	}
	before := written()
	claim := router.Claim{Keys: router.Keys{Delivery: router.KeyOf("busy"), Content: router.KeyOf("free")}}
	for range 3 {
		if got, err := store.Reserve(t.Context(), claim, time.Hour); err != nil || got.State != router.Busy {
			t.Fatalf("state %d, %v", got.State, err)
		}
	}
	if after := written(); after != before {
		t.Errorf("%d entries were written", after-before)
	}
}
