package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
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

// The keys are those of the KeyFunc, and all routes of a Router are one owner.
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
				keys := testkit.Must(router.DefaultKeys(route, msg))(t)
				from.deliver(t, msg)
				reserved, committed := <-store.claims, <-store.claims
				if reserved.Keys != keys || committed != reserved {
					t.Errorf("reserved %+v and committed %+v, want %v", reserved, committed, keys)
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
