// Package kvstore remembers handled messages in a NATS key-value bucket, so that
// several processes that share the work recognize each other's duplicates.
package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
)

// Defaults of [Config].
const (
	DefaultBucket     = "agrimill-dedup"
	DefaultTimeout    = 5 * time.Second
	DefaultSessionTTL = 10 * time.Second
)

// MinSessionTTL is the shortest [Config.SessionTTL]. It leaves room for renewals: the server's clock
// for keys ticks in seconds.
const MinSessionTTL = 2 * time.Second

// ErrConfig is matched by the errors of [Config.Validate], and by the error of
// [New] for a bucket that exists with settings that cannot work.
var ErrConfig = errors.New("kvstore: invalid configuration")

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("kvstore: the store is closed")

// Provision is what a [Store] does about a bucket that is missing, at the start or later: [ProvisionCreate] creates it, and
// with [ProvisionNone], without a bucket New fails, and later everything else until it is there again.
type Provision = kvbucket.Provision

// Values of [Provision].
const (
	ProvisionCreate = kvbucket.ProvisionCreate
	ProvisionNone   = kvbucket.ProvisionNone
)

// Config configures a [Store].
type Config struct {
	// Conn is the connection. Required. It should reconnect without end. If it has not found its server yet, and goes on looking
	// ([natsgo.RetryOnFailedConnect]), New succeeds, and the bucket is looked for when it is needed; an error until then matches
	// [sinks.ErrNotConnected]. It is not closed by the store.
	Conn *natsgo.Conn `yaml:"-"`
	// Domain is the JetStream domain of the bucket, as [nats.Connection.Domain].
	Domain string `yaml:"-"`
	// Bucket is the name of the bucket. An existing one is left as it is. Empty means [DefaultBucket].
	Bucket string `yaml:"bucket"`
	// Provision says whether a missing bucket is created, also one that vanishes
	// later. Default [ProvisionCreate].
	Provision Provision `yaml:"provision" enum:"create,none"`
	// TTL is how long a bucket that is created keeps what was handled; the time
	// that Commit is given does not count. 0 means [router.DefaultDedupTTL];
	// negative is an error.
	TTL time.Duration `yaml:"-"`
	// Replicas of a bucket that is created, 1 to 5. 0 means 1.
	Replicas int `yaml:"replicas"`
	// MaxBytes bounds a bucket that is created; a full one is an outage. 0 means no limit;
	// negative is an error.
	MaxBytes int64 `yaml:"max_bytes" unit:"bytes"`
	// Timeout bounds each request to the server. 0 means [DefaultTimeout];
	// negative is an error.
	Timeout time.Duration `yaml:"-"`
	// SessionTTL is how long the session of a process that was killed lives on; see [Store]. A
	// process that lives renews its session four times in that time. 0 means
	// [DefaultSessionTTL]; less than two seconds is an error.
	SessionTTL time.Duration `yaml:"-"`
	// Logger gets what happens to bucket and session. Nil means nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Bucket = cmp.Or(c.Bucket, DefaultBucket)
	c.TTL = cmp.Or(c.TTL, router.DefaultDedupTTL)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.SessionTTL = cmp.Or(c.SessionTTL, DefaultSessionTTL)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	kvbucket.Check(&e, c.Conn, c.Bucket, c.Replicas, c.Timeout)
	kvbucket.CheckProvision(&e, c.Provision)
	validate.NotNegative(&e, "TTL", c.TTL)
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	e.Check(c.SessionTTL == 0 || c.SessionTTL >= MinSessionTTL, "SessionTTL", "must be at least %v, or 0 for the default", MinSessionTTL)
	return e.Err(ErrConfig)
}

// Store is a [router.DedupStore] in a NATS key-value bucket. It needs a server of version
// 2.11 or later, because the server ends leases and sessions: the clocks of the processes
// do not matter.
//
// A commit is as durable as the bucket's stream. One that is lost by a power cut of the
// server means a duplicate, never a loss. The two keys of a message are two entries, and
// [router.DedupStore] says what may happen between them. Commits and releases that fail
// while the server is unreachable are queued and retried once it is back, as long as the
// store is open.
//
// Each Store has a session in the bucket, which it renews in the background from its first
// reservation until Close. A reservation names the session, and ends before its lease if
//
//   - this Store made it and nobody holds it, because the request timed out after the
//     server had stored it: this Store takes it over at once;
//   - its [router.Owner] has the same Instance, and another Store made it: that process
//     was replaced by this one, which ends its session and takes over at once. Two
//     processes at the same time need two names, or none: the one that finds that its
//     session was ended logs it and goes on without a name;
//   - its session is gone: others take over. A session that was closed is gone at once, that
//     of a process that was killed after SessionTTL and at most half of it more.
//
// A session that is there is never taken for dead, and one that is missing only by a Store
// that has kept its own for SessionTTL without a gap: after an outage or pause of the
// server everybody has that long to come back. So a living process is taken for dead only
// if it alone cannot renew its session for at least three quarters of SessionTTL: it was
// suspended, say, or cut off from a server that others reach. What it was handling may
// then be handled twice. When it goes on, its commits are recorded, since its messages are
// handled, and logged if somebody took over meanwhile; its releases leave the reservations
// of others alone.
//
// An entry that nobody can read counts as reserved by somebody for as long as the lease that is asked
// for, since this Store has seen it first, and is then taken over; a session record as that of a living process. Both
// are logged.
//
// All methods are safe for concurrent use.
type Store struct {
	config Config
	logger watermill.LoggerAdapter
	bucket *kvbucket.Handle // nil before it was opened

	session session
	mu      sync.Mutex
	held    map[router.Key]*hold        // what callers have reserved or are about to
	unsent  map[router.Key]pendingWrite // commits and releases to retry
	peers   map[string]*peer            // the sessions of others, by ID
	lost    ratelog.Line                // commits of reservations that others took over
	odd     map[string]sight            // entries that cannot be read, by key
	oddLine ratelog.Line

	life       *lifecycle.Life
	background context.Context // ends with Close
	stop       context.CancelFunc
	keeping    sync.Once
	keeper     sync.WaitGroup
	closeErr   error
}

var _ router.DedupStore = (*Store)(nil)

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "kvstore.Store") }

// New opens the bucket. The error matches [ErrConfig], or is that of the server. The
// store has to be closed.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	s := &Store{
		config: config, logger: config.Logger, session: newSession(),
		held: map[router.Key]*hold{}, unsent: map[router.Key]pendingWrite{}, peers: map[string]*peer{}, odd: map[string]sight{}, oddLine: ratelog.Line{Burst: warnlog.PerMessage}, life: lifecycle.New(),
	}
	s.logger = warnlog.Or(s.logger).With(watermill.LogFields{"bucket": config.Bucket})
	var err error
	if s.bucket, err = kvbucket.Open(ctx, config.Conn, config.Domain, kvbucket.Config{
		Store: "kvstore", Provision: config.Provision, Timeout: config.Timeout, Logger: s.logger, Opened: s.opened,
		Bucket: jetstream.KeyValueConfig{
			Bucket: config.Bucket, Description: kvbucket.Dedup, TTL: config.TTL, Replicas: config.Replicas,
			MaxBytes: config.MaxBytes, LimitMarkerTTL: markerTTL,
		},
	}); err != nil {
		return nil, err
	}
	s.background, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func (s *Store) opened(stream jetstream.StreamConfig, created bool) error {
	if stream.SubjectDeleteMarkerTTL <= 0 {
		return fmt.Errorf("%w: bucket %q has no TTL for single keys (limit markers), so leases would not end", ErrConfig, s.config.Bucket)
	}
	if created && s.bucket != nil && s.bucket.Latest() != nil {
		warnlog.Warn(s.logger, "the dedup bucket was gone and was created again; messages handled before are not recognized", nil)
	}
	return nil
}

// Health asks the server for the bucket. It returns at the latest when ctx ends, or
// after Config.Timeout.
func (s *Store) Health(ctx context.Context) error { return s.bucket.Health(ctx) }

// Close ends the session, so that others can take over at once what is still reserved, and
// retries queued commits and releases; it returns the error if that fails. Calls in
// progress fail. Close waits for the server for at most Config.Timeout, and not at all
// without a connection. It is idempotent; the other methods then fail with [ErrClosed].
func (s *Store) Close() error {
	s.life.Close(func() {
		idle := s.life.Idle()
		s.stop()
		<-idle
		s.keeping.Do(func() {}) // nothing was reserved, so there is nothing to keep
		s.keeper.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		if !s.config.Conn.IsConnected() {
			cancel()
		}
		if err := s.retryUnsent(ctx); err != nil {
			s.closeErr = fmt.Errorf("kvstore: handled messages could not be recorded, or reservations not released: %w", err)
		}
		if err := s.endSession(ctx); err != nil {
			s.logger.Debug("dedup session not ended; it expires", watermill.LogFields{"error": err.Error()})
		}
	})
	return s.closeErr
}

// enter begins a call about the claim; leave ends it. Its context also ends with Close.
func (s *Store) enter(ctx context.Context, claim router.Claim) (_ context.Context, leave func(), err error) {
	if err := claim.Keys.Valid(); err != nil {
		return nil, nil, err
	}
	if !s.life.Enter() {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.background, cancel)
	return ctx, func() { stop(); cancel(); s.life.Leave() }, nil
}
