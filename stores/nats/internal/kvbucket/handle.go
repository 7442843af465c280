package kvbucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/enum"
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

// NameRule says in an error what [ValidName] holds.
const NameRule = "must have letters, digits, - and _ only"

// ValidName reports whether a bucket can have the name. An empty one stands for the default.
func ValidName(name string) bool {
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// Config configures a [Handle].
type Config struct {
	Store     string                   // the package of the store, with which errors begin
	Bucket    jetstream.KeyValueConfig // a bucket that is created
	Provision Provision
	Timeout   time.Duration // of each request
	Logger    watermill.LoggerAdapter
	// Opened is called with each bucket that was found or created, before it is used; its error refuses the bucket.
	Opened func(status jetstream.KeyValueStatus, created bool) error
}

// Handle is the bucket of a store. One that is gone is looked for again, and created if that is allowed. All methods are
// safe for concurrent use.
type Handle struct {
	config Config
	conn   *natsgo.Conn
	domain string // as [nats.Connection.Domain]
	// JS is where the bucket is.
	JS      jetstream.JetStream
	latest  atomic.Pointer[Bucket]
	opening chan struct{} // holds one token while the bucket is being opened
}

// Bucket is a bucket as it was found. One that was made again is another one.
type Bucket struct {
	jetstream.KeyValue
	Created time.Time // by the server's clock
}

// Open looks for the bucket, and creates it if it may. With a connection that has not found its server yet, and goes on looking
// ([natsgo.RetryOnFailedConnect]), that is left to the first request that can.
func Open(ctx context.Context, conn *natsgo.Conn, domain string, config Config) (*Handle, error) {
	js, err := nats.JetStream(conn, domain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.Store, err)
	}
	h := &Handle{config: config, conn: conn, domain: domain, JS: js, opening: make(chan struct{}, 1)}
	if conn.Opts.RetryOnFailedConnect && !conn.IsConnected() {
		return h, nil
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	return h, h.open(ctx)
}

func (h *Handle) open(ctx context.Context) error {
	kv, err := h.JS.KeyValue(ctx, h.config.Bucket.Bucket)
	created := false
	if errors.Is(err, jetstream.ErrBucketNotFound) && h.config.Provision == ProvisionCreate {
		kv, err = h.JS.CreateKeyValue(ctx, h.config.Bucket)
		created = err == nil
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = h.JS.KeyValue(ctx, h.config.Bucket.Bucket)
		}
	}
	if err != nil {
		return h.failed(err)
	}
	status, err := Compare(ctx, kv, h.config.Bucket, h.config.Logger)
	if err != nil {
		return h.failed(err)
	}
	if h.config.Opened != nil {
		if err := h.config.Opened(status, created); err != nil {
			return err
		}
	}
	h.latest.Store(&Bucket{kv, CreatedAt(status)})
	return nil
}

func (h *Handle) failed(err error) error {
	return fmt.Errorf("%s: bucket %q: %w", h.config.Store, h.config.Bucket.Bucket, nats.Explain(h.conn, h.domain, err))
}

// CreatedAt returns when a bucket was created, which tells it from another one of that name.
func CreatedAt(status jetstream.KeyValueStatus) time.Time {
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		return s.StreamInfo().Created
	}
	return time.Time{}
}

// Latest returns the bucket as it was found last; nil before.
func (h *Handle) Latest() *Bucket { return h.latest.Load() }

// Do makes a request, and makes it once more if the bucket was gone and is there again.
func (h *Handle) Do(ctx context.Context, request func(context.Context, *Bucket) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	b := h.Latest()
	if b == nil {
		if err := h.Reopen(ctx, nil); err != nil {
			return fmt.Errorf("%w: %w", sinks.ErrNotConnected, err)
		}
		b = h.Latest()
	}
	err := request(ctx, b)
	if !errors.Is(err, jetstream.ErrNoStreamResponse) && !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, natsgo.ErrNoResponders) {
		return nats.Explain(h.conn, h.domain, err)
	}
	if failure := h.Reopen(ctx, b); failure != nil {
		return fmt.Errorf("%w: %w", failure, err)
	}
	return request(ctx, h.Latest())
}

// Reopen looks for the bucket again, unless somebody has done so since b was found. A server that is still starting does
// not answer for a bucket either.
func (h *Handle) Reopen(ctx context.Context, b *Bucket) error {
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

// Health asks the server for the bucket.
func (h *Handle) Health(ctx context.Context) error {
	err := h.Do(ctx, func(ctx context.Context, b *Bucket) error {
		_, err := b.Status(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: bucket %q: %w", h.config.Store, h.config.Bucket.Bucket, err)
	}
	return nil
}

// IsConflict reports whether err says that a key is there, or is another revision.
func IsConflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) ||
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
