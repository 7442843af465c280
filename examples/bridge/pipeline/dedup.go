package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
)

// memory is the memory of what was handled, and what closes it. All routers share
// it, so it has no method Close that one of them would call.
type memory struct {
	router.DedupStore
	later *later[natsMemory] // nil when it is there from the start
	shut  func(context.Context) error
}

// newMemory makes the memory of duplicates. One in a file is opened at once: that
// it cannot be is a mistake in the configuration. One in NATS is opened when it
// can be reached.
func (p *Pipeline) newMemory(cfg config.Dedup) (*memory, error) {
	m := &memory{shut: func(context.Context) error { return nil }}
	var err error
	switch cfg.Store {
	case config.DedupOff:
	case config.DedupBBolt:
		var store *boltstore.Store
		if store, err = boltstore.New(cfg.BBolt.StoreConfig()); err == nil {
			m.DedupStore, m.shut = store, func(context.Context) error { return store.Close() }
		}
	case config.DedupNATSKV:
		err = p.newNATSMemory(m, cfg)
	default:
		var in config.DedupInMemory
		if cfg.Memory != nil {
			in = *cfg.Memory
		}
		m.DedupStore, err = router.NewMemoryStore(in.StoreConfig())
	}
	if err != nil {
		return nil, fmt.Errorf("dedup: %w", err)
	}
	return m, nil
}

func (p *Pipeline) newNATSMemory(m *memory, cfg config.Dedup) error {
	if _, err := cfg.NATSKV.Options("agrimill-bridge dedup"); err != nil {
		return err
	}
	m.later = newLater(func(ctx context.Context) (natsMemory, error) {
		options, err := cfg.NATSKV.Options("agrimill-bridge dedup")
		if err != nil {
			return natsMemory{}, err
		}
		conn, err := natsgo.Connect(string(cfg.NATSKV.URL), options...)
		if err != nil {
			return natsMemory{}, err
		}
		storeConfig := cfg.NATSKV.StoreConfig(cfg)
		storeConfig.Conn = conn
		store, err := kvstore.New(ctx, storeConfig)
		if err != nil {
			conn.Close()
			return natsMemory{}, err
		}
		return natsMemory{store, conn}, nil
	}, natsMemory.Close, p.logger.With("part", "dedup"))
	m.DedupStore = laterStore{m.later}
	m.shut = func(ctx context.Context) error {
		if store, ok := m.later.shut(ctx); ok {
			return store.Close()
		}
		return nil
	}
	return nil
}

// natsMemory is a memory in NATS, and the connection to it.
type natsMemory struct {
	*kvstore.Store
	conn *natsgo.Conn
}

// Close closes the connection.
func (m natsMemory) Close() error {
	m.conn.Close()
	return nil
}

// laterStore is a memory that may not be there yet, which is an outage.
type laterStore struct{ *later[natsMemory] }

// errMemory hides the cause, which may be a context error and would be taken for the
// end of the message's own.
func errMemory(err error) error { return errors.New(router.RedactError(err, nil)) }

// Reserve implements router.DedupStore.
func (s laterStore) Reserve(ctx context.Context, key router.Key, lease time.Duration) (router.ReserveResult, router.Token, error) {
	store, err := s.get()
	if err != nil {
		return 0, 0, errMemory(err)
	}
	return store.Reserve(ctx, key, lease)
}

// Commit implements router.DedupStore.
func (s laterStore) Commit(ctx context.Context, key router.Key, token router.Token, keep time.Duration) error {
	store, err := s.get()
	if err != nil {
		return errMemory(err)
	}
	return store.Commit(ctx, key, token, keep)
}

// Release implements router.DedupStore.
func (s laterStore) Release(ctx context.Context, key router.Key, token router.Token) error {
	store, err := s.get()
	if err != nil {
		return errMemory(err)
	}
	return store.Release(ctx, key, token)
}

// keys returns the function that gives the keys of messages. [router.DefaultKey]
// knows messages from the gateway. One on its way there is recognised by its UUID or
// context ID and its payload: sources give every delivery of a message the same
// UUID.
func keys(outward map[string]bool) router.KeyFunc {
	return func(scope string, msg *message.Message) (router.Key, bool, error) {
		if !outward[scope] {
			return router.DefaultKey(scope, msg)
		}
		id := msg.Metadata[gateway.KeyContextID]
		if id == "" {
			id = msg.UUID
		}
		if id == "" {
			return router.Key{}, false, nil
		}
		digest := xxh3.Hash128(msg.Payload).Bytes()
		return router.KeyOf(scope, id, msg.Metadata[gateway.KeyTenantID], msg.Metadata[gateway.KeyEndpointID],
			msg.Metadata[gateway.KeyDirectRecipients], msg.Metadata[gateway.KeyPayloadSHA256], string(digest[:])), true, nil
	}
}
