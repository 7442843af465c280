// Package kvbucket opens the key-value buckets of stores in NATS, and compares those that exist with what a store needs.
package kvbucket

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Provision is what a store does about a bucket that is missing, at the start or later.
type Provision int

const (
	// ProvisionCreate creates it.
	ProvisionCreate Provision = iota
	// ProvisionNone only looks: without a bucket New fails, and later everything else until it is there again.
	ProvisionNone
)

var provisions = []string{"create", "none"}

// String returns create or none.
func (p Provision) String() string { return enum.Text(p, provisions) }

// UnmarshalText reads what String returns.
func (p *Provision) UnmarshalText(text []byte) error { return enum.Parse(p, text, provisions) }

// NameBytes are what the name of a bucket may have in it.
const NameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// Check adds what is wrong with the fields that the configurations of all stores have. Empty ones stand for the defaults.
func Check(e *validate.Errors, conn *natsgo.Conn, bucket string, replicas int, timeout time.Duration) {
	e.Check(conn != nil, "Conn", "is required")
	e.Check(strings.Trim(bucket, NameBytes) == "", "Bucket", "must have letters, digits, - and _ only")
	e.Check(replicas >= 0 && replicas <= 5, "Replicas", "must be 1 to 5, or 0 for the default")
	validate.NotNegative(e, "Timeout", timeout)
}

// CheckProvision adds a value that is none.
func CheckProvision(e *validate.Errors, p Provision) {
	e.Check(p == ProvisionCreate || p == ProvisionNone, "Provision", "must be one of the named constants")
}

// Config configures a [Handle].
type Config struct {
	Store     string                   // the package of the store, with which errors begin
	Bucket    jetstream.KeyValueConfig // a bucket that is created
	Provision Provision
	Timeout   time.Duration // of each request
	Logger    watermill.LoggerAdapter
	// Opened is called with each bucket that was found or created, before it is used; its error refuses the bucket.
	Opened func(stream jetstream.StreamConfig, created bool) error
}

// Handle is the bucket of a store. One that is gone is looked for again, and created if that is allowed. All methods are
// safe for concurrent use.
type Handle struct {
	config  Config
	conn    *natsgo.Conn
	domain  string // as [nats.Connection.Domain]
	js      jetstream.JetStream
	latest  atomic.Pointer[Bucket]
	opening chan struct{} // holds one token while the bucket is being opened
}

// Bucket is a bucket as it was found. One that was made again is another one.
type Bucket struct {
	jetstream.KeyValue
	Created time.Time     // by the server's clock
	TTL     time.Duration // of its keys, whatever a created one would have
	config  jetstream.StreamConfig
}

// Open looks for the bucket, and creates it if it may. With a connection that has not found its server yet, and goes on looking
// ([natsgo.RetryOnFailedConnect]), that is left to the first request that can.
func Open(ctx context.Context, conn *natsgo.Conn, domain string, config Config) (*Handle, error) {
	js, err := nats.JetStream(conn, domain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.Store, err)
	}
	h := &Handle{config: config, conn: conn, domain: domain, js: js, opening: make(chan struct{}, 1)}
	if conn.Opts.RetryOnFailedConnect && !conn.IsConnected() {
		return h, nil
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	return h, h.open(ctx)
}

func (h *Handle) open(ctx context.Context) error {
	kv, err := h.js.KeyValue(ctx, h.config.Bucket.Bucket)
	created := false
	if errors.Is(err, jetstream.ErrBucketNotFound) && h.config.Provision == ProvisionCreate {
		kv, err = h.js.CreateKeyValue(ctx, h.config.Bucket)
		created = err == nil
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = h.js.KeyValue(ctx, h.config.Bucket.Bucket)
		}
	}
	if err != nil {
		return h.failed(err)
	}
	info, err := h.stream(ctx)
	if err == nil {
		err = Compare(info.Config, h.config.Bucket, h.config.Logger)
	}
	if err != nil {
		return h.failed(err)
	}
	if err := h.config.Opened(info.Config, created); err != nil {
		return err
	}
	h.latest.Store(&Bucket{kv, info.Created, info.Config.MaxAge, info.Config})
	return nil
}

// stream asks the server for the bucket.
func (h *Handle) stream(ctx context.Context) (*jetstream.StreamInfo, error) {
	stream, err := h.js.Stream(ctx, "KV_"+h.config.Bucket.Bucket)
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	info.Config.Metadata = nil // which the server changes, too
	return info, nil
}

func (h *Handle) failed(err error) error {
	return fmt.Errorf("%s: bucket %q: %w", h.config.Store, h.config.Bucket.Bucket, nats.Explain(h.conn, h.domain, err))
}

// Latest returns the bucket as it was found last; nil before.
func (h *Handle) Latest() *Bucket { return h.latest.Load() }

// Do makes a request, and makes it once more if the bucket was gone and is there again. An error says which bucket it is.
func (h *Handle) Do(ctx context.Context, request func(context.Context, *Bucket) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	b := h.Latest()
	if b == nil {
		if err := h.reopen(ctx, nil); err != nil {
			return fmt.Errorf("%w: %w", sinks.ErrNotConnected, err)
		}
		b = h.Latest()
	}
	err := request(ctx, b)
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, natsgo.ErrNoResponders) {
		if failure := h.reopen(ctx, b); failure != nil {
			return fmt.Errorf("%w: %w", failure, err)
		}
		err = request(ctx, h.Latest())
	}
	if err != nil {
		return h.failed(err)
	}
	return nil
}

// reopen looks for the bucket again, unless somebody has done so since b was found. A server that is still starting does
// not answer for a bucket either.
func (h *Handle) reopen(ctx context.Context, b *Bucket) error {
	select {
	case h.opening <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.opening }()
	if h.Latest() != b {
		return nil
	}
	return h.open(ctx)
}

// Replaced looks whether b is still the bucket, and finds the one that is there instead.
func (h *Handle) Replaced(ctx context.Context, b *Bucket) (bool, error) {
	info, err := h.stream(ctx)
	if err != nil || info.Created.Equal(b.Created) {
		return false, err
	}
	return true, h.reopen(ctx, b)
}

// Health asks the server for the bucket. One that somebody has changed since it was opened is opened again, which says what it keeps less.
func (h *Handle) Health(ctx context.Context) error {
	return h.Do(ctx, func(ctx context.Context, b *Bucket) error {
		info, err := h.stream(ctx)
		if err == nil && !reflect.DeepEqual(info.Config, b.config) {
			err = h.reopen(ctx, b)
		}
		return err
	})
}

// Write writes the value of a key whose last revision is known, 0 if it has none, and returns its own revision. Without a ttl
// it stays as long as the bucket says.
func (h *Handle) Write(ctx context.Context, b *Bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if revision == 0 {
		return b.Create(ctx, key, value, jetstream.KeyTTL(ttl))
	}
	if ttl == 0 {
		return b.Update(ctx, key, value, revision)
	}
	// KeyValue.Update takes no TTL, and as it does, another domain is reached through its API.
	subject := "$KV." + b.Bucket() + "." + key
	if h.domain != "" {
		subject = nats.APIPrefix(h.domain) + subject
	}
	ack, err := h.js.PublishMsg(ctx, &natsgo.Msg{Subject: subject, Data: value, Header: natsgo.Header{}},
		jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithMsgTTL(ttl))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// IsConflict reports whether err says that a key is there, or is another revision.
func IsConflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) ||
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
