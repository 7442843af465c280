// Package boltstore is a dedup store in a file (bbolt): handled messages are recognized
// after a crash or a restart of the process. Only one process at a time can have the file
// open; for several processes see package stores/nats/kvstore.
package boltstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.etcd.io/bbolt"

	"github.com/agrimill/agrimill/internal/boltfile"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
)

// Defaults of [Config].
const (
	DefaultMaxEntries  = 1 << 22
	DefaultOpenTimeout = 5 * time.Second
)

var (
	// ErrConfig is matched by the errors of [Config.Validate], and by the error of [New]
	// for a path that cannot be a file.
	ErrConfig = errors.New("boltstore: invalid configuration")
	// ErrLocked says that another process has the file open.
	ErrLocked = errors.New("boltstore: the file is open in another process")
	// ErrDamaged says that the file can no longer be read. It cannot be repaired: restore it, or move it away and start
	// with an empty one, which recognizes no earlier messages.
	ErrDamaged = errors.New("boltstore: the file is damaged")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("boltstore: the store is closed")
)

// Config configures a [Store].
type Config struct {
	// Path is the file, readable only by its owner. Its directory must exist. Required.
	Path string `yaml:"path" required:"true" file:"true"`
	// MaxEntries is how many handled messages are remembered; the closest to expiry are
	// forgotten first. The file grows to about 200 bytes per entry and does not shrink. 0
	// means [DefaultMaxEntries]; negative is an error.
	MaxEntries int `yaml:"-"`
	// OpenTimeout is how long New waits for another process to close the file.
	// 0 means [DefaultOpenTimeout]; negative is an error.
	OpenTimeout time.Duration `yaml:"-"`
	// RetryOnFailedOpen is for a program that may start before its file can be opened, such as while another process has
	// it: New tries once, and goes on trying in the background. Until it is open, what asks the store fails with an error that
	// matches sinks.ErrNotConnected, and says why. Default: that is an error of New.
	RetryOnFailedOpen bool `yaml:"-"`
	// Logger gets how many records could not be read, and what keeps the file from being opened. Nil means nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.MaxEntries = cmp.Or(c.MaxEntries, DefaultMaxEntries)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, DefaultOpenTimeout)
	return c
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Check(c.Path != "", "Path", "is required")
	validate.NotNegative(&e, "MaxEntries", c.MaxEntries)
	validate.NotNegative(&e, "OpenTimeout", c.OpenTimeout)
	return e.Err(ErrConfig)
}

// The buckets. commits maps a key to the time until which it is remembered;
// expiry has that time and the key as its key, so that the oldest come first.
var (
	commits = []byte("commits")
	expiry  = []byte("expiry")
)

const (
	// sweepLimit is the maximum number of expired or surplus entries that one commit
	// removes. It is more than a commit adds, so the store shrinks back step by step.
	sweepLimit = 8
	// batchLimit is the maximum number of lookups or commits in one transaction.
	batchLimit = 1000
	timeSize   = 8 // of a time in the file
)

// Store is a [router.DedupStore] in a file. Commit returns after the file is synced; concurrent commits share one sync. Each
// call is atomic for both keys of a message, a commit even if the process or the machine crashes.
//
// Reservations are kept in memory: the file belongs to one process, so no one needs them after it has died. So is what could
// not be written, for example because the disk is full.
//
// No method panics because of the contents of the file: once it turns out to be damaged, all of them return an error that
// matches [ErrDamaged], until the file is replaced and reopened. All methods are safe for concurrent use.
type Store struct {
	opening    *opening.Opening
	db         *bbolt.DB // set once it is open
	file       *os.File  // of db
	path       string
	maxEntries int
	memory     *router.MemoryStore

	// One goroutine reads the file and one writes it. After a panic bbolt may hold its
	// locks forever, so that the other goroutine may never return; callers therefore wait
	// for damaged, too.
	lookups chan *lookup
	writes  chan *commit
	closing chan struct{} // closed by Close
	running sync.WaitGroup
	damaged chan struct{} // closed once damage is set
	damage  atomic.Pointer[error]
	failing atomic.Bool // commits have failed and not been retried successfully by Health
	failed  []*commit   // the newest of those commits; owned by the writing goroutine

	beginning sync.Mutex // held while a transaction begins

	closeOnce sync.Once
	closeErr  error
}

var _ router.DedupStore = (*Store)(nil)

// lookup asks which of the keys is committed, the first one if both are; 0 for none.
type lookup struct {
	keys  router.Keys
	known router.KeyKind
	done  chan error
}

// commit holds keys to be written, or requests a retry of those that failed.
type commit struct {
	keys  router.Keys
	until int64
	retry bool
	done  chan error
}

// New opens the file after reading all of it: a gigabyte takes about a second. Records that cannot be read, in a file that is
// sound otherwise, are logged and removed. The error
// matches [ErrConfig], [ErrLocked] or [ErrDamaged], or is that of the file system, e.g.
// [fs.ErrPermission]; with Config.RetryOnFailedOpen it matches ErrConfig.
func New(config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	memory, err := router.NewMemoryStore(router.MemoryStoreConfig{})
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: config.Path, maxEntries: config.MaxEntries, memory: memory,
		lookups: make(chan *lookup), writes: make(chan *commit),
		closing: make(chan struct{}), damaged: make(chan struct{}),
	}
	s.opening = opening.New(func(context.Context) error { return s.open(config) }, warnlog.Or(config.Logger))
	err = s.opening.Try(context.Background())
	if err != nil && (!config.RetryOnFailedOpen || errors.Is(err, ErrConfig)) {
		return nil, err
	}
	if err != nil {
		s.opening.Start(context.Background(), nil) // until Close
	}
	return s, nil
}

// open opens the file.
func (s *Store) open(config Config) error {
	unreadable, err := inspect(config)
	if err != nil {
		return openError(config.Path, err)
	}
	db, file, err := boltfile.Open(config.Path, config.OpenTimeout, false)
	if err != nil {
		return openError(config.Path, err)
	}
	err = boltfile.Guarded(ErrDamaged, func() error {
		return update(db.Begin, func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{commits, expiry} {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			if unreadable > 0 {
				return mend(tx)
			}
			return nil
		})
	})
	if err != nil {
		closing := db.Close // and what is mapped, with which the file would stay locked
		if errors.Is(err, ErrDamaged) {
			closing = file.Close // the database would wait for the transaction that failed
		}
		return errors.Join(openError(config.Path, err), closing())
	}
	s.db, s.file = db, file
	if unreadable > 0 {
		warnlog.Warn(warnlog.Or(config.Logger), "records of the dedup file cannot be read and were removed; a copy of their messages is not recognized",
			watermill.LogFields{"path": config.Path, "records": unreadable})
	}
	// Both end with Close.
	s.running.Go(func() { serve(s, s.lookups, s.read) })
	s.running.Go(func() { serve(s, s.writes, s.write) })
	return nil
}

// Close closes the file after waiting for calls in progress. It is idempotent; the other
// methods then fail with [ErrClosed]. A damaged file stays locked until the process ends.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.opening.Stop(context.Background()) // an attempt ends by OpenTimeout
		if s.db == nil {
			return
		}
		select {
		case <-lifecycle.Ended(&s.running): // in a damaged file the goroutines may not end
		case <-s.damaged:
		}
		if s.damage.Load() != nil {
			s.closeErr = s.file.Close() // bbolt's Close might not return
			return
		}
		s.closeErr = s.db.Close()
	})
	return s.closeErr
}

// Health returns nil if the file can be read and all commits were written. It retries those
// that failed. It returns at the latest when ctx ends.
func (s *Store) Health(ctx context.Context) error {
	if _, err := s.known(ctx, router.Keys{Delivery: router.KeyOf("health")}); err != nil {
		return err
	}
	if !s.failing.Load() {
		return nil
	}
	return s.put(ctx, &commit{retry: true})
}

// Reserve implements [router.DedupStore].
func (s *Store) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	// The reservation comes first: Commit writes before it releases the reservation, so the
	// next holder sees what was written.
	reservation, err := s.memory.Reserve(ctx, claim, lease)
	if err != nil || reservation.State == router.Committed {
		return reservation, err
	}
	known, err := s.known(ctx, claim.Keys)
	if err == nil && known == 0 {
		return reservation, nil
	}
	if reservation.State == router.Reserved {
		err = errors.Join(err, s.memory.Release(ctx, claim, reservation.Token))
	}
	if err != nil {
		return router.Reservation{}, err
	}
	return router.Reservation{State: router.Committed, Key: known}, nil
}

// Commit implements [router.DedupStore]. When ctx ends first, the keys may be
// written or not, both of them.
func (s *Store) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	if err := errors.Join(ctx.Err(), claim.Keys.Valid()); err != nil {
		return err
	}
	if err := s.put(ctx, &commit{keys: claim.Keys, until: time.Now().Add(ttl).UnixNano()}); err != nil {
		return errors.Join(err, s.memory.Commit(ctx, claim, token, ttl))
	}
	return s.memory.Release(ctx, claim, token)
}

// Release implements [router.DedupStore].
func (s *Store) Release(ctx context.Context, claim router.Claim, token router.Token) error {
	return s.memory.Release(ctx, claim, token)
}

// known looks keys up in the file.
func (s *Store) known(ctx context.Context, keys router.Keys) (router.KeyKind, error) {
	l := &lookup{keys: keys, done: make(chan error, 1)}
	if err := ask(ctx, s, s.lookups, l, l.done); err != nil {
		return 0, err
	}
	return l.known, nil
}

// put writes a commit to the file.
func (s *Store) put(ctx context.Context, c *commit) error {
	c.done = make(chan error, 1)
	return ask(ctx, s, s.writes, c, c.done)
}

// ask passes a request to its goroutine and waits for the result.
func ask[T any](ctx context.Context, s *Store, to chan<- T, request T, answer <-chan error) error {
	if err := s.opening.Err(); err != nil {
		select {
		case <-s.closing:
			return ErrClosed
		default:
			return err
		}
	}
	select {
	case to <- request:
	case <-s.closing:
		return ErrClosed
	case <-s.damaged:
		return *s.damage.Load()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-s.damaged:
		return *s.damage.Load()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve handles requests until Close, or until the file is damaged. Waiting requests are
// handled in one batch.
func serve[T any](s *Store, requests <-chan T, handle func([]T)) {
	batch := make([]T, 0, batchLimit)
	for s.damage.Load() == nil {
		select {
		case <-s.damaged:
			return
		case <-s.closing:
			return
		case request := <-requests:
			batch = append(batch[:0], request)
		}
	company:
		for len(batch) < batchLimit {
			select {
			case request := <-requests:
				batch = append(batch, request)
			default:
				break company
			}
		}
		handle(batch)
		clear(batch)
	}
}

// read looks keys up.
func (s *Store) read(batch []*lookup) {
	err := s.guarded(func() error {
		tx, err := s.begin(false)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a panic as well; a second time it does nothing
		bucket, now := tx.Bucket(commits), time.Now().UnixNano()
		for _, l := range batch {
			for kind, key := range l.keys.All() {
				if until := bucket.Get(key[:]); until != nil && now < decodeTime(until) {
					l.known = kind
					break
				}
			}
		}
		return tx.Rollback()
	})
	for _, l := range batch {
		l.done <- err
	}
}

// begin starts a transaction. They begin one at a time, and none after the file has turned
// out to be damaged: bbolt holds its locks forever after a panic in here, and the other
// goroutine would wait for them.
func (s *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	err = s.guarded(func() (err error) {
		tx, err = s.db.Begin(writable)
		return err
	})
	return tx, err
}

// maxFailed is the maximum number of failed commits that are kept to be retried: as many as
// the memory remembers.
const maxFailed = 1 << 18

// write records commits and syncs the file. With a retry among them it also records those
// that failed before: a successful write alone would not prove anything, because the file
// may have room for the next commit but not for a thousand.
func (s *Store) write(batch []*commit) {
	isRetry := func(c *commit) bool { return c.retry }
	err := s.record(slices.DeleteFunc(slices.Clone(batch), isRetry))
	if err == nil && slices.ContainsFunc(batch, isRetry) {
		if err = s.recordFailed(); err == nil {
			s.failing.Store(false)
		}
	}
	for _, c := range batch {
		c.done <- err
	}
}

// record writes commits in one transaction. They are retried later if it fails.
func (s *Store) record(all []*commit) error {
	err := s.transact(all)
	if err == nil || errors.Is(err, ErrDamaged) {
		return err
	}
	s.failed = append(s.failed, all...)
	s.failed = s.failed[max(0, len(s.failed)-maxFailed):]
	s.failing.Store(true)
	return err
}

// recordFailed writes the commits that failed before, step by step.
func (s *Store) recordFailed() error {
	for len(s.failed) > 0 {
		n := min(len(s.failed), batchLimit)
		if err := s.transact(s.failed[:n]); err != nil {
			return err
		}
		s.failed = s.failed[n:]
	}
	s.failed = nil
	return nil
}

// transact writes commits in one transaction.
func (s *Store) transact(all []*commit) error {
	err := s.guarded(func() error {
		return update(s.begin, func(tx *bbolt.Tx) error {
			for _, c := range all {
				for _, key := range c.keys.All() {
					if err := s.enter(tx, key, c.until); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("boltstore: %w", err)
	}
	return err
}

// guarded calls bbolt. Once the file is damaged, bbolt is not
// called again.
func (s *Store) guarded(f func() error) error {
	if damage := s.damage.Load(); damage != nil {
		return *damage
	}
	err := boltfile.Guarded(ErrDamaged, f)
	if errors.Is(err, ErrDamaged) {
		if damage := s.damage.Load(); damage != nil {
			return *damage
		}
		err = fmt.Errorf("%w (%s)", err, s.path)
		if s.damage.CompareAndSwap(nil, &err) {
			close(s.damaged)
		}
	}
	return err
}

// enter writes a commit and removes expired and surplus entries.
func (s *Store) enter(tx *bbolt.Tx, key router.Key, until int64) error {
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
		// Deleting invalidates what the cursor returned.
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
