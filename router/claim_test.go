package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
)

// claimRecorder is a store that notes what was claimed.
type claimRecorder struct {
	router.DedupStore
	claims chan router.Claim
}

func (s *claimRecorder) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	s.claims <- claim
	return s.DedupStore.Reserve(ctx, claim, lease)
}

func (s *claimRecorder) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	s.claims <- claim
	return s.DedupStore.Commit(ctx, claim, token, ttl)
}

// The key of the KeyFunc is the delivery key, and all routes of a Router are one owner.
func TestClaims(t *testing.T) {
	for name, given := range map[string]router.Owner{
		"named": {Instance: "mill", Session: "morning"}, "instance": {Instance: "mill"}, "nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			store := &claimRecorder{DedupStore: newStore(t, 0), claims: make(chan router.Claim, 2)}
			first, second := newSource(), newSource()
			one, two := farmRoute(first, newSink(nil)), farmRoute(second, newSink(nil))
			two.Name = "second"
			start(t, router.Config{Poison: newSink(nil), Dedup: router.DedupSettings{Store: store, Owner: given}}, one, two)
			var owners []router.Owner
			for route, from := range map[string]*source{one.Name: first, two.Name: second} {
				msg := farmMessage("1", "e", "c", "p")
				key, _, err := router.DefaultKey(route, msg)
				if err != nil {
					t.Fatal(err)
				}
				from.messages <- msg
				if got := verdict(t, msg); got != "ack" {
					t.Fatalf("verdict %q", got)
				}
				reserved, committed := <-store.claims, <-store.claims
				if reserved.Keys != (router.Keys{Delivery: key}) || committed != reserved {
					t.Errorf("reserved %+v and committed %+v, want delivery key %v", reserved, committed, key)
				}
				owners = append(owners, reserved.Owner)
			}
			if owners[0] != owners[1] || owners[0].Session == "" || owners[0].Instance != given.Instance ||
				given.Session != "" && owners[0].Session != given.Session {
				t.Errorf("owners %+v, given %+v", owners, given)
			}
		})
	}
}

// A zero key is none: the message is handled, and no store has to refuse it.
func TestZeroKeyIsNone(t *testing.T) {
	calls := 0
	keyless := func(string, *message.Message) (router.Key, bool, error) { return router.Key{}, true, nil }
	h := newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{KeyFunc: keyless}}).Middleware(counting(&calls, nil))
	for range 2 {
		if _, err := h(farmMessage("1", "e", "c", "p")); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
}
