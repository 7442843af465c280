// Package boltstore remembers handled messages in a file (bbolt), so that they
// are recognised after a crash or a restart of the process. One process at a
// time has the file open; for several processes see package
// sinks/nats/kvstore.
package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/agrimill/agrimill/router"
)

// Defaults of [Config].
const (
	DefaultMaxEntries  = 1 << 22
	DefaultOpenTimeout = 5 * time.Second
)

// ErrConfig is matched by the errors of [Config.Validate].
var ErrConfig = errors.New("boltstore: invalid configuration")

// ErrLocked says that another process has the file open.
var ErrLocked = errors.New("boltstore: the file is open in another process")

// Config configures a [Store].
type Config struct {
	// Path is the file. It is created when it is missing, readable by its owner
	// only; its directory has to exist. Required.
	Path string
	// MaxEntries is how many handled messages are remembered at most; the one
	// that would be forgotten first anyway is forgotten first. The file grows to
	// about 200 bytes per entry and does not shrink. 0 means
	// [DefaultMaxEntries]; negative is an error.
	MaxEntries int
	// OpenTimeout is how long New waits for another process to close the file.
	// 0 means [DefaultOpenTimeout]; negative is an error.
	OpenTimeout time.Duration
}

func (c *Config) setDefaults() {
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxEntries
	}
	if c.OpenTimeout == 0 {
		c.OpenTimeout = DefaultOpenTimeout
	}
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	switch {
	case c.Path == "":
		return fmt.Errorf("%w: Path is required", ErrConfig)
	case c.MaxEntries < 0:
		return fmt.Errorf("%w: MaxEntries is negative", ErrConfig)
	case c.OpenTimeout < 0:
		return fmt.Errorf("%w: OpenTimeout is negative", ErrConfig)
	}
	return nil
}

// The buckets. commits maps a key to the time until which it is remembered;
// expiry has that time and the key as its key, so that the oldest come first.
var (
	commits = []byte("commits")
	expiry  = []byte("expiry")
)

// sweepLimit is how many expired or surplus entries one commit removes at most.
// It is more than it adds, so the store shrinks back in steps.
const sweepLimit = 8

// Store is a [router.DedupStore] in a file. Commit returns after the file is
// synced; commits that come at the same time share one sync.
//
// Reservations are kept in memory: the file belongs to one process, so they have
// nobody to tell when it has died. All methods are safe for concurrent use.
type Store struct {
	db         *bbolt.DB
	maxEntries int
	reserved   *router.MemoryStore
}

var _ router.DedupStore = (*Store)(nil)

// New opens the file. The error matches [ErrConfig], [ErrLocked], or is that of
// the file system.
func New(config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	reserved, err := router.NewMemoryStore(router.MemoryStoreConfig{})
	if err != nil {
		return nil, err
	}
	db, err := bbolt.Open(config.Path, 0o600, &bbolt.Options{
		Timeout:      config.OpenTimeout,
		FreelistType: bbolt.FreelistMapType,
		OpenFile:     os.OpenFile,
	})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, config.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("boltstore: %w", err)
	}
	// The wait for company before a sync; more than a sync takes is a loss.
	db.MaxBatchDelay = time.Millisecond
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{commits, expiry} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("boltstore: %w", err), db.Close())
	}
	return &Store{db: db, maxEntries: config.MaxEntries, reserved: reserved}, nil
}

// Close closes the file, after waiting for calls that are under way. It is
// idempotent; the other methods fail afterwards.
func (s *Store) Close() error { return s.db.Close() }

// Reserve implements [router.DedupStore].
func (s *Store) Reserve(ctx context.Context, key router.Key, lease time.Duration) (router.ReserveResult, router.Token, error) {
	// The reservation comes first: Commit writes before it lets go of it, so
	// whoever gets it afterwards sees what was written.
	result, token, err := s.reserved.Reserve(ctx, key, lease)
	if err != nil {
		return 0, 0, err
	}
	known := false
	err = s.db.View(func(tx *bbolt.Tx) error {
		until := tx.Bucket(commits).Get(key[:])
		known = until != nil && time.Now().UnixNano() < decodeTime(until)
		return nil
	})
	if err == nil && !known {
		return result, token, nil
	}
	if result == router.Reserved {
		err = errors.Join(err, s.reserved.Release(ctx, key, token))
	}
	if err != nil {
		return 0, 0, err
	}
	return router.Committed, 0, nil
}

// Commit implements [router.DedupStore]. It does not look at ctx once the
// writing has begun.
func (s *Store) Commit(ctx context.Context, key router.Key, token router.Token, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	until := time.Now().Add(ttl).UnixNano()
	err := s.db.Batch(func(tx *bbolt.Tx) error { return s.put(tx, key, until) })
	if err != nil {
		return err
	}
	return s.reserved.Release(ctx, key, token)
}

// Release implements [router.DedupStore].
func (s *Store) Release(ctx context.Context, key router.Key, token router.Token) error {
	return s.reserved.Release(ctx, key, token)
}

// put records a commit and removes what is to be forgotten.
func (s *Store) put(tx *bbolt.Tx, key router.Key, until int64) error {
	byKey, byTime := tx.Bucket(commits), tx.Bucket(expiry)
	if old := byKey.Get(key[:]); old != nil {
		if err := byTime.Delete(timeKey(decodeTime(old), key)); err != nil {
			return err
		}
	} else if err := byTime.SetSequence(byTime.Sequence() + 1); err != nil {
		return err // the sequence of the bucket counts its entries
	}
	if err := byKey.Put(key[:], encodeTime(until)); err != nil {
		return err
	}
	if err := byTime.Put(timeKey(until, key), nil); err != nil {
		return err
	}

	now := time.Now().UnixNano()
	cursor := byTime.Cursor()
	for range sweepLimit {
		oldest, _ := cursor.First()
		if oldest == nil || decodeTime(oldest) > now && byTime.Sequence() <= uint64(s.maxEntries) {
			return nil
		}
		// Deleting invalidates what the cursor gave.
		forgotten := append([]byte(nil), oldest[8:]...)
		if err := cursor.Delete(); err != nil {
			return err
		}
		if err := byKey.Delete(forgotten); err != nil {
			return err
		}
		if err := byTime.SetSequence(byTime.Sequence() - 1); err != nil {
			return err
		}
	}
	return nil
}

func encodeTime(t int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

func decodeTime(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

func timeKey(t int64, key router.Key) []byte { return append(encodeTime(t), key[:]...) }
