package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/zeebo/xxh3"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

// memory is the dedup store of all routers, which close what they are given: it has no Close, and the pipeline closes it at the end.
type memory struct {
	kind, target string
	direct       router.DedupStore            // in memory, or in a file, which it opens itself; nil: there is none
	later        *opening.Later[durableStore] // nil: there is nothing to open; with neither, deduplication is off

	mu       sync.Mutex
	failure  error // of the last commit
	failedAt time.Time
}

var _ router.DedupStore = (*memory)(nil)

type durableStore interface {
	router.DedupStore
	Health(ctx context.Context) error
}

// commitFailedFor is how long a failed commit counts if no other commit follows.
const commitFailedFor = time.Minute

func (m *memory) on() bool { return m.direct != nil || m.later != nil }

// store returns the store; one that is not open yet is an outage.
func (m *memory) store() (router.DedupStore, error) {
	if m.later == nil {
		return m.direct, nil
	}
	return m.later.Get()
}

// Reserve implements [router.DedupStore].
func (m *memory) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	store, err := m.store()
	if err != nil {
		return router.Reservation{}, err
	}
	return store.Reserve(ctx, claim, lease)
}

// Commit implements [router.DedupStore].
func (m *memory) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	store, err := m.store()
	if err == nil {
		err = store.Commit(ctx, claim, token, ttl)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure = err; err != nil {
		m.failedAt = time.Now()
	}
	return err
}

// Release implements [router.DedupStore].
func (m *memory) Release(ctx context.Context, claim router.Claim, token router.Token) error {
	store, err := m.store()
	if err != nil {
		return err
	}
	return store.Release(ctx, claim, token)
}

// health checks the store and the result of the last commit: a store that cannot be read is
// an outage of the routes, but one that only fails to write is not, and would go unnoticed.
func (m *memory) health(ctx context.Context) error {
	store, err := m.store()
	durable, ok := store.(durableStore)
	if err == nil && ok {
		err = durable.Health(ctx)
	}
	if err != nil || !ok {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil && time.Since(m.failedAt) < commitFailedFor {
		return m.failure
	}
	return nil
}

func (m *memory) close(ctx context.Context) error {
	err := m.later.Close(ctx)
	if file, ok := m.direct.(*boltstore.Store); ok {
		err = opening.Within(ctx, file.Close)
	}
	if err != nil {
		return fmt.Errorf("dedup: %w", err)
	}
	return nil
}

func (p *Pipeline) newMemory(cfg config.Dedup) (*memory, error) {
	m := &memory{kind: cfg.Store}
	logger := p.libraryLogger(p.logger.With("part", "dedup"))
	var err error
	switch cfg.Store {
	case config.DedupOff:
	case config.DedupBBolt:
		m.target = cfg.BBolt.Path
		settings := *cfg.BBolt
		settings.MaxEntries, settings.Logger = cfg.MaxEntries, logger
		settings.RetryOnFailedOpen = true // locked, forbidden or damaged may be temporary
		m.direct, err = boltstore.New(settings)
	case config.DedupNATSKV:
		m.target = config.Hosts(cfg.NATSKV.URL) + " " + cfg.NATSKV.Bucket
		how := config.Opening{Client: "agrimill dedup", Logger: logger}
		m.later = opening.NewLater(func(ctx context.Context) (durableStore, func() error, error) { return cfg.OpenNATS(ctx, how) }, logger)
	default:
		m.direct, err = router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: cfg.MaxEntries})
	}
	if err != nil {
		return nil, fmt.Errorf("dedup: %w", err)
	}
	return m, nil
}

// newOwner returns what the process reserves messages as, through all reloads.
func newOwner(cfg *config.Config) router.Owner {
	owner := router.Owner{Instance: cfg.Dedup.Owner.Instance, Session: uuid.NewString()}
	switch owner.Instance {
	case config.NoInstance:
		owner.Instance = ""
	case "":
		_, port, err := net.SplitHostPort(cfg.Admin.Address)
		if host, _ := os.Hostname(); host != "" && err == nil && port != "" && port != "0" {
			owner.Instance = host + " " + cfg.Admin.Address
		}
	}
	return owner
}

// keys returns the function that computes the dedup keys of messages: inward of those from the gateway. A message to the gateway is
// recognized by its UUID or context ID, what it is sent as and its payload, and by the name that its source has for it, if it has one.
func keys(inward router.KeyFunc, outward map[string]bool) router.KeyFunc {
	return func(scope string, msg *message.Message) (router.Keys, error) {
		if !outward[scope] {
			return inward(scope, msg)
		}
		var named router.Keys
		if msgctx.Delivery(msg.Context()) != "" {
			var err error
			if named, err = router.DefaultKeys(scope, msg); err != nil {
				return router.Keys{}, err
			}
		}
		id := cmp.Or(msg.Metadata[gateway.KeyContextID], msg.UUID)
		if id == "" {
			return named, nil
		}
		digest := xxh3.Hash128(msg.Payload).Bytes()
		parts := []string{scope, id, string(digest[:])}
		for _, sent := range [...]string{ // what the same payload may be sent with and be another message
			gateway.KeyTenantID, gateway.KeyEndpointID, gateway.KeyDirectRecipients, gateway.KeyIsPublish, gateway.KeyPayloadSHA256,
			gateway.KeyMessageType, gateway.KeyFilename, gateway.KeyTeamsetContextID,
		} {
			parts = append(parts, msg.Metadata[sent])
		}
		key := router.KeyOf(parts...)
		if named.Delivery == (router.Key{}) {
			return router.Keys{Delivery: key}, nil
		}
		named.Content = key // what its producer has stored twice
		return named, nil
	}
}
