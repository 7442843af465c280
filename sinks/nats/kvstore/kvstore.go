// Package kvstore remembers handled messages in a NATS key-value bucket, so that
// several processes that share the work recognise each other's duplicates.
package kvstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/router"
)

// Defaults of [Config].
const (
	DefaultBucket  = "agrimill-dedup"
	DefaultTimeout = 5 * time.Second
)

// ErrConfig is matched by the errors of [Config.Validate], and by the error of
// [New] for a bucket that exists with settings that cannot work.
var ErrConfig = errors.New("kvstore: invalid configuration")

// Config configures a [Store].
type Config struct {
	// Conn is the connection. Required. It should reconnect without end. It is
	// not closed by the store.
	Conn *natsgo.Conn
	// Bucket is the name of the bucket. It is created when it is missing, and
	// left as it is when it exists. Empty means [DefaultBucket].
	Bucket string
	// TTL is how long a bucket that is created keeps what was handled; the time
	// that Commit is given does not count. 0 means [router.DefaultDedupTTL];
	// negative is an error.
	TTL time.Duration
	// Replicas of a bucket that is created, 1 to 5. 0 means 1.
	Replicas int
	// MaxBytes bounds a bucket that is created; a full one takes no more, which
	// is an outage. 0 means no limit; negative is an error.
	MaxBytes int64
	// Timeout bounds each request to the server. 0 means [DefaultTimeout];
	// negative is an error.
	Timeout time.Duration
}

func (c *Config) setDefaults() {
	if c.Bucket == "" {
		c.Bucket = DefaultBucket
	}
	if c.TTL == 0 {
		c.TTL = router.DefaultDedupTTL
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	switch {
	case c.Conn == nil:
		return fmt.Errorf("%w: Conn is required", ErrConfig)
	case c.TTL < 0:
		return fmt.Errorf("%w: TTL is negative", ErrConfig)
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("%w: Replicas is not between 0 and 5", ErrConfig)
	case c.MaxBytes < 0:
		return fmt.Errorf("%w: MaxBytes is negative", ErrConfig)
	case c.Timeout < 0:
		return fmt.Errorf("%w: Timeout is negative", ErrConfig)
	}
	return nil
}

const (
	// markerTTL is how long the server keeps the traces of deleted keys.
	markerTTL = time.Minute
	// leaseStep is the resolution of the server's clock for keys; leases are
	// rounded up to it.
	leaseStep = time.Second
)

var (
	valueReserved  = []byte("r")
	valueCommitted = []byte("c")
)

// Store is a [router.DedupStore] in a NATS key-value bucket. It needs a server of
// version 2.11 or later, because the server ends the leases: the clocks of the
// processes do not matter.
//
// A commit is as durable as the bucket's stream. One that is lost by a power cut
// of the server means a duplicate, never a loss. All methods are safe for
// concurrent use.
type Store struct {
	kv      jetstream.KeyValue
	timeout time.Duration
}

var _ router.DedupStore = (*Store)(nil)

// New opens the bucket and creates it when it is missing. The error matches
// [ErrConfig], or is that of the server.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	js, err := jetstream.New(config.Conn)
	if err != nil {
		return nil, fmt.Errorf("kvstore: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	kv, err := js.KeyValue(ctx, config.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:         config.Bucket,
			Description:    "keys of handled messages",
			TTL:            config.TTL,
			Replicas:       config.Replicas,
			MaxBytes:       config.MaxBytes,
			LimitMarkerTTL: markerTTL,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, config.Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kvstore: bucket %q: %w", config.Bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("kvstore: bucket %q: %w", config.Bucket, err)
	}
	if status.LimitMarkerTTL() <= 0 {
		return nil, fmt.Errorf("%w: bucket %q has no TTL for single keys (LimitMarkerTTL), so leases would not end", ErrConfig, config.Bucket)
	}
	return &Store{kv: kv, timeout: config.Timeout}, nil
}

// Reserve implements [router.DedupStore]. The lease is rounded up to a second.
func (s *Store) Reserve(ctx context.Context, key router.Key, lease time.Duration) (router.ReserveResult, router.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	lease = max(leaseStep, (lease+leaseStep-1)/leaseStep*leaseStep)
	revision, err := s.kv.Create(ctx, key.String(), valueReserved, jetstream.KeyTTL(lease))
	if err == nil {
		return router.Reserved, router.Token(revision), nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, 0, err
	}
	entry, err := s.kv.Get(ctx, key.String())
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		return router.Busy, 0, nil // it was there a moment ago; the next try gets it
	case err != nil:
		return 0, 0, err
	case string(entry.Value()) == string(valueCommitted):
		return router.Committed, 0, nil
	default:
		return router.Busy, 0, nil
	}
}

// Commit implements [router.DedupStore]. How long the message is remembered is
// the bucket's TTL.
func (s *Store) Commit(ctx context.Context, key router.Key, _ router.Token, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.kv.Put(ctx, key.String(), valueCommitted)
	return err
}

// Release implements [router.DedupStore].
func (s *Store) Release(ctx context.Context, key router.Key, token router.Token) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.kv.Purge(ctx, key.String(), jetstream.LastRevision(uint64(token)), jetstream.PurgeTTL(markerTTL))
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return nil // the reservation is not ours any more
	}
	return err
}
