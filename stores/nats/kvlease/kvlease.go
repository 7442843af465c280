// Package kvlease is a lease in a NATS key-value bucket, for several processes of which one at a
// time may work.
package kvlease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
	"github.com/agrimill/agrimill/subscriber"
)

// Defaults of [Config].
const (
	DefaultBucket  = "agrimill-lease"
	DefaultName    = "agrimill"
	DefaultTTL     = 5 * time.Second
	DefaultTimeout = 5 * time.Second
)

// MinTTL is the shortest TTL: it leaves room for renewals over a network.
const MinTTL = time.Second

const (
	// lookEvery is how often a standby looks at the record: a release is seen that soon.
	lookEvery = 100 * time.Millisecond
	// slack is the part of the TTL that a standby waits in addition: clocks do not run equally fast.
	slack = 20
)

var (
	// ErrConfig is matched by the errors of [Config.Validate], and of [New] for a configuration
	// that is not valid.
	ErrConfig = errors.New("kvlease: invalid configuration")
	// ErrClosed says that the lease was closed.
	ErrClosed = errors.New("kvlease: the lease is closed")
)

// Provision is what a [Lease] does about a bucket that is missing, at the start or later: [ProvisionCreate] creates it, and
// with [ProvisionNone], without a bucket New fails, and later nobody gets the lease until it is there again.
type Provision = kvbucket.Provision

// Values of [Provision].
const (
	ProvisionCreate = kvbucket.ProvisionCreate
	ProvisionNone   = kvbucket.ProvisionNone
)

// Config configures a [Lease]. Only Conn is required.
type Config struct {
	// Conn is the connection. It should reconnect without end. If it has not found its server yet, and goes on looking
	// ([natsgo.RetryOnFailedConnect]), New succeeds, and the bucket is looked for when it is needed; an error until then matches
	// [sinks.ErrNotConnected]. It is not closed by the lease.
	Conn *natsgo.Conn `yaml:"-"`
	// Domain is the JetStream domain of the bucket, as [nats.Connection.Domain].
	Domain string `yaml:"-"`
	// Bucket is the name of the bucket. An existing one is left as it is; not that of another store. Empty means
	// [DefaultBucket].
	Bucket string `yaml:"bucket"`
	// Name is the key of the lease in the bucket: processes with the same one compete. It may
	// have letters, digits and - _ = . in it. Empty means [DefaultName].
	Name string `yaml:"name"`
	// Instance is the name of this process for people, which the record has while it holds the lease; see [Lease.Holder].
	// Empty: none.
	Instance string `yaml:"-"`
	// TTL is how long the lease is held without renewal. Processes should have the same one; while it
	// is being changed in one after the other, who waits goes by the longer of its own and the holder's.
	// 0 means [DefaultTTL]; less than a second and more than a week are errors.
	TTL time.Duration `yaml:"-"`
	// Provision says whether a missing bucket is created, also one that vanishes
	// later. Default [ProvisionCreate].
	Provision Provision `yaml:"provision" enum:"create,none"`
	// Replicas of a bucket that is created, 1 to 5. 0 means 1.
	Replicas int `yaml:"replicas"`
	// Timeout bounds each request to the server; it never exceeds half of the TTL. 0 means
	// [DefaultTimeout]; negative is an error.
	Timeout time.Duration `yaml:"-"`
	// Logger gets what happens to the bucket. Nil means nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Bucket = cmp.Or(c.Bucket, DefaultBucket)
	c.Name = cmp.Or(c.Name, DefaultName)
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Timeout = min(c.Timeout, c.TTL/2)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	kvbucket.Check(&e, c.Conn, c.Bucket, c.Replicas, c.Timeout)
	kvbucket.CheckProvision(&e, c.Provision)
	e.Check(strings.Trim(c.Name, kvbucket.NameBytes+"=.") == "" && strings.Trim(c.Name, ".") == c.Name, "Name", "may have letters, digits and - _ = . in it")
	e.Check(c.TTL == 0 || c.TTL >= MinTTL && c.TTL <= maxTTL, "TTL", "must be %v to %v, or 0 for the default", MinTTL, maxTTL)
	return e.Err(ErrConfig)
}

// Lease is a [subscriber.Lease] in a NATS key-value bucket. The holder renews its record by the
// revision that it wrote last; who waits looks at it ten times a second, and takes over when it has
// not changed for a TTL and a twentieth, by its own clock, or says that the lease was released; the record says the holder's TTL.
// Neither the clocks of the machines nor the server's, which ends keys by the second, play a role.
//
// A record that is missing may be that of a holder that lives, since somebody may have removed the
// bucket: so the very first process waits for the TTL as well. The holder writes its record again
// if its time is not over. Epochs count up in the record, and go on above the highest one that a
// process has seen. A server that lost its latest writes may have an older record: whoever has seen the later one waits for its
// holder; a process that has not, and finds that the lease is released, takes it, and works until the holder's next renewal beside that one.
//
// All methods are safe for concurrent use.
type Lease struct {
	config Config
	logger watermill.LoggerAdapter
	id     string // of this Lease, another one for each process
	bucket *kvbucket.Handle

	closed    chan struct{}
	closeOnce sync.Once

	mu     sync.Mutex
	epoch  uint64 // the highest one that was seen
	seen   sight
	theirs time.Duration // the TTL of the holder that was seen last; 0 if it did not say
	holder string        // see Holder
	last   *Term         // of Acquire
	away   bool          // the latest request of Acquire failed
	odd    ratelog.Line  // records that cannot be read
}

var _ subscriber.Lease = (*Lease)(nil)

// Format writes what it is, for every verb, and nothing of its configuration.
func (l *Lease) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "kvlease.Lease") }

// New opens the bucket. The error matches [ErrConfig], or is that of the server. The lease has to
// be closed.
func New(ctx context.Context, config Config) (*Lease, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	l := &Lease{
		config: config, id: uuid.NewString(), closed: make(chan struct{}),
		logger: warnlog.Or(config.Logger).With(watermill.LogFields{"bucket": config.Bucket, "lease": config.Name}),
	}
	var err error
	if l.bucket, err = kvbucket.Open(ctx, config.Conn, config.Domain, kvbucket.Config{
		Store: "kvlease", Provision: config.Provision, Timeout: config.Timeout, Logger: l.logger, Opened: l.opened,
		Bucket: jetstream.KeyValueConfig{Bucket: config.Bucket, Description: kvbucket.Lease, Replicas: config.Replicas},
	}); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Lease) opened(_ jetstream.StreamConfig, created bool) error {
	if created {
		warnlog.Warn(l.logger, "the lease bucket was missing and was created; the lease is free after its TTL", nil)
	}
	return nil
}

// do makes a request, and makes it once more if the bucket was gone and is there again.
func (l *Lease) do(ctx context.Context, request func(context.Context, *kvbucket.Bucket) error) error {
	if wakeup.Raised(l.closed) {
		return ErrClosed
	}
	return l.bucket.Do(ctx, request)
}

// TTL implements [subscriber.Lease].
func (l *Lease) TTL() time.Duration { return l.config.TTL }

// Holder returns the Config.Instance of the process that has the lease, as Acquire saw it last; empty if nobody has it, if
// its holder says none, or if the record cannot be looked at.
func (l *Lease) Holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Health asks the server for the bucket. It returns at the latest when ctx ends, or after
// Config.Timeout.
func (l *Lease) Health(ctx context.Context) error {
	if wakeup.Raised(l.closed) {
		return ErrClosed
	}
	return l.bucket.Health(ctx)
}

// Close lets go of the bucket. A term that was not released ends with its time. The other methods
// then fail with [ErrClosed]. It is idempotent and does not block.
func (l *Lease) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return nil
}
