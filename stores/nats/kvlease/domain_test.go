package kvlease_test

import (
	"errors"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// A lease of another domain is acquired, renewed and released, with an account that may subscribe to one
// prefix only.
func TestLeaseInDomain(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	conn := natstest.ConnectLeaf(t, leaf)
	if _, err := kvlease.New(t.Context(), kvlease.Config{Conn: conn}); !errors.Is(err, nats.ErrNoJetStream) {
		t.Errorf("without the domain: got %v, want %v", err, nats.ErrNoJetStream)
	}
	config := kvlease.Config{Conn: conn, Domain: natstest.LeafDomain, TTL: ttl}
	for range 2 {
		term, err := open(t, config).Acquire(t.Context())
		if err == nil {
			err = term.Renew(t.Context())
		}
		if err == nil {
			err = term.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
