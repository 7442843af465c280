package kvstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// A bucket of another domain is reserved, taken over, committed and released in, with an account that may
// subscribe to one prefix only.
func TestStoreInDomain(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	conn := natstest.ConnectLeaf(t, leaf)
	if _, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn}); !errors.Is(err, nats.ErrNoJetStream) {
		t.Errorf("without the domain: got %v, want %v", err, nats.ErrNoJetStream)
	}
	config := kvstore.Config{Conn: conn, Domain: natstest.LeafDomain, SessionTTL: sessionTTL}
	first, second := open(t, config), open(t, config)
	claim := deliveryOf("a")
	claim.Owner = router.Owner{Instance: "one", Session: "first"}
	if got, err := first.Reserve(t.Context(), claim, time.Minute); err != nil || got.State != router.Reserved {
		t.Fatalf("reserve: %v, %v", got, err)
	}
	claim.Owner.Session = "second" // replaces the first
	var got router.Reservation
	var err error
	testkit.Eventually(t, "the second one is answered", func() bool { // busy if the first one's session is renewed at that moment
		got, err = second.Reserve(t.Context(), claim, time.Minute)
		return err != nil || got.State != router.Busy
	})
	if err != nil || got.State != router.Reserved {
		t.Fatalf("take over: %v, %v", got, err)
	}
	testkit.NoError(t, second.Commit(t.Context(), claim, got.Token, time.Hour))
	if got, err := first.Reserve(t.Context(), claim, time.Minute); err != nil || got.State != router.Committed {
		t.Errorf("after the commit: %v, %v", got, err)
	}
	other := deliveryOf("b")
	if got, err = second.Reserve(t.Context(), other, time.Minute); err != nil || got.State != router.Reserved {
		t.Fatalf("reserve: %v, %v", got, err)
	}
	testkit.NoError(t, second.Release(t.Context(), other, got.Token))
	if got, err := first.Reserve(t.Context(), other, time.Minute); err != nil || got.State != router.Reserved {
		t.Errorf("after the release: %v, %v", got, err)
	}
	testkit.NoError(t, first.Health(t.Context()))
}
