// Package kvstore remembers handled messages in a NATS key-value bucket, so that
// several processes that share the work recognise each other's duplicates.
package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/validate"
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
	Conn *natsgo.Conn `yaml:"-"`
	// Bucket is the name of the bucket. It is created when it is missing, and
	// left as it is when it exists. Empty means [DefaultBucket].
	Bucket string `yaml:"bucket"`
	// TTL is how long a bucket that is created keeps what was handled; the time
	// that Commit is given does not count. 0 means [router.DefaultDedupTTL];
	// negative is an error.
	TTL time.Duration `yaml:"-"`
	// Replicas of a bucket that is created, 1 to 5. 0 means 1.
	Replicas int `yaml:"replicas"`
	// MaxBytes bounds a bucket that is created; a full one takes no more, which
	// is an outage. 0 means no limit; negative is an error.
	MaxBytes int64 `yaml:"max_bytes" unit:"bytes"`
	// Timeout bounds each request to the server. 0 means [DefaultTimeout];
	// negative is an error.
	Timeout time.Duration `yaml:"timeout"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
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

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Check(c.Conn != nil, "Conn", "is required")
	validate.NotNegative(&e, "TTL", c.TTL)
	e.Check(c.Replicas >= 0 && c.Replicas <= 5, "Replicas", "must be 1 to 5, or 0 for the default")
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	validate.NotNegative(&e, "Timeout", c.Timeout)
	return e.Err(ErrConfig)
}

const (
	// markerTTL is how long the server keeps the traces of deleted keys.
	markerTTL = time.Minute
	// leaseStep is the resolution of the server's clock for keys; leases are
	// rounded up to it.
	leaseStep = time.Second
)

// The values of keys. That of a reservation is followed by JSON; versions that do not
// know of it take whatever is not a commit for a reservation.
var (
	valueReserved  = []byte("r")
	valueCommitted = []byte("c")
)

// reservation is who has reserved a key, and for how long since the entry was made.
type reservation struct {
	Instance string        `json:"instance,omitempty"`
	Session  string        `json:"session,omitempty"`
	Lease    time.Duration `json:"lease"`
}

// reserved returns the value of a reserved key.
func reserved(owner router.Owner, lease time.Duration) ([]byte, error) {
	data, err := json.Marshal(reservation{Instance: owner.Instance, Session: owner.Session, Lease: lease})
	return append(slices.Clone(valueReserved), data...), err
}

// Store is a [router.DedupStore] in a NATS key-value bucket. It needs a server of
// version 2.11 or later, because the server ends the leases: the clocks of the
// processes do not matter.
//
// A commit is as durable as the bucket's stream. One that is lost by a power cut
// of the server means a duplicate, never a loss. The two keys of a message are two
// entries, and [router.DedupStore] says what may happen between them. All methods are safe for
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

// Health asks the server for the bucket. It returns at the latest when ctx ends, or
// after Config.Timeout.
func (s *Store) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("kvstore: bucket %q: %w", s.kv.Bucket(), err)
	}
	return nil
}

// Reserve implements [router.DedupStore]. The lease is rounded up to a second. The keys
// are reserved one after the other, so that two processes with a key in common may both
// find it busy once.
func (s *Store) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	if err := claim.Keys.Valid(); err != nil {
		return router.Reservation{}, err
	}
	lease = max(leaseStep, (lease+leaseStep-1)/leaseStep*leaseStep)
	value, err := reserved(claim.Owner, lease)
	if err != nil {
		return router.Reservation{}, err
	}
	var busy router.Reservation
	var token router.Token
	for kind, key := range claim.Keys.All() {
		one, err := s.reserve(ctx, key, value, lease, busy.State == 0)
		if err != nil {
			s.giveUp(ctx, claim, token)
			return router.Reservation{}, err
		}
		one.Key = kind
		switch {
		case one.State == router.Reserved:
			token[kind-1] = one.Token[0]
		case one.State == router.Committed:
			s.giveUp(ctx, claim, token)
			return one, nil
		case one.State == router.Busy && busy.State == 0:
			busy = one
		}
	}
	if busy.State != 0 {
		s.giveUp(ctx, claim, token)
		return busy, nil
	}
	return router.Reservation{State: router.Reserved, Token: token}, nil
}

// reserve is Reserve for one key. Unless take, it only looks at it, and returns no state
// if the key is free.
func (s *Store) reserve(ctx context.Context, key router.Key, value []byte, lease time.Duration, take bool) (router.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if take {
		revision, err := s.kv.Create(ctx, key.String(), value, jetstream.KeyTTL(lease))
		if err == nil {
			return router.Reservation{State: router.Reserved, Token: router.Token{revision}}, nil
		}
		if !isConflict(err) {
			return router.Reservation{}, err
		}
	}
	entry, err := s.kv.Get(ctx, key.String())
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		if !take {
			return router.Reservation{}, nil
		}
		return router.Reservation{State: router.Busy}, nil // it was there a moment ago; the next try gets it
	case err != nil:
		return router.Reservation{}, err
	case string(entry.Value()) == string(valueCommitted):
		return router.Reservation{State: router.Committed}, nil
	}
	var r reservation
	busy := router.Reservation{State: router.Busy}
	if json.Unmarshal(bytes.TrimPrefix(entry.Value(), valueReserved), &r) == nil {
		busy.Holder = router.Owner{Instance: r.Instance, Session: r.Session}
		busy.Until = entry.Created().Add(r.Lease)
	} // else it was written before reservations named their holders
	return busy, nil
}

// giveUp releases the key that Reserve has got before it could not get the other one,
// also when ctx has ended. What cannot be released ends with its lease.
func (s *Store) giveUp(ctx context.Context, claim router.Claim, token router.Token) {
	_ = s.Release(context.WithoutCancel(ctx), claim, token)
}

// Commit implements [router.DedupStore]. How long the message is remembered is
// the bucket's TTL. The keys are written one after the other, the delivery key first.
func (s *Store) Commit(ctx context.Context, claim router.Claim, _ router.Token, _ time.Duration) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	for _, key := range claim.Keys.All() {
		if err := s.commit(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) commit(ctx context.Context, key router.Key) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.kv.Put(ctx, key.String(), valueCommitted)
	return err
}

// Release implements [router.DedupStore].
func (s *Store) Release(ctx context.Context, claim router.Claim, token router.Token) error {
	if err := claim.Keys.Valid(); err != nil {
		return err
	}
	var errs []error
	for kind, key := range claim.Keys.All() {
		// Without a revision it would be deleted whatever it is.
		if revision := token[kind-1]; revision != 0 {
			errs = append(errs, s.release(ctx, key, revision))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) release(ctx context.Context, key router.Key, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.kv.Purge(ctx, key.String(), jetstream.LastRevision(revision), jetstream.PurgeTTL(markerTTL))
	if isConflict(err) {
		return nil // the reservation is not ours any more
	}
	return err
}

// isConflict reports whether err says that the key is there, or is another revision.
func isConflict(err error) bool {
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}
