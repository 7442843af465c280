package devicestore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
)

func TestStoreInDomain(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	conn := natstest.ConnectLeaf(t, leaf)
	if _, err := devicestore.New(t.Context(), devicestore.Config{Conn: conn}); !errors.Is(err, nats.ErrNoJetStream) {
		t.Errorf("without the domain: got %v, want %v", err, nats.ErrNoJetStream)
	}
	config := devicestore.Config{Conn: conn, Domain: natstest.LeafDomain}
	store := testkit.Must(devicestore.New(t.Context(), config))(t)
	for i := range 2 {
		testkit.NoError(t, store.Put(t.Context(), "team", farm.DeviceDescription{Sent: time.Unix(int64(i), 0), Payload: []byte{byte(i)}}))
	}
	store = testkit.Must(devicestore.New(t.Context(), config))(t)
	if list, err := store.Get(t.Context(), "team"); err != nil || len(list) != 2 {
		t.Errorf("got %d descriptions, %v, want 2", len(list), err)
	}
}
