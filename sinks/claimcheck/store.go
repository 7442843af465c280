package claimcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
)

// Config configures a [Store]. Either Bucket or URL is required.
type Config struct {
	// Bucket is an open bucket. The caller closes it, after the Store.
	Bucket *blob.Bucket `yaml:"-"`
	// URL is the address of the bucket. The Store closes it. Its scheme names a driver that
	// the program has imported; its query may hold secrets and is told in no
	// error. For file:// buckets no_tmp_dir=true and metadata=skip are set unless
	// the URL says otherwise: temporary files are made in the bucket, which may
	// be on another disk than others, and a payload is one file.
	URL string `yaml:"url" address:"true"`
	// Prefix begins the name of every object, e.g. "payloads/". Default: none.
	Prefix string `yaml:"-"`
}

// ErrConfig is matched by the errors of [Config.Validate] and [New].
var ErrConfig = errors.New("claim check: invalid configuration")

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Check((c.Bucket == nil) != (c.URL == ""), "", "needs either %s or %s", validate.Field("Bucket"), validate.Field("URL"))
	u, err := url.Parse(c.URL)
	e.Check(c.URL == "" || err == nil && u.Scheme != "", "URL", "must be an absolute URL such as file:///var/lib/payloads")
	if err := filesync.CheckURL(c.URL); err != nil {
		e.Add("URL", "%s", err)
	}
	e.Check(c.Prefix == "" || validKey(strings.TrimSuffix(c.Prefix, "/")), "Prefix", "must follow the rules for keys")
	return e.Err(ErrConfig)
}

// String formats the configuration without what is secret.
func (c Config) String() string { return redact.Struct(c) }

// Format writes String for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// MarshalText returns String: a configuration is never written with what is secret.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Store stores payloads in a bucket. Its methods are safe for concurrent use.
type Store struct {
	bucket *blob.Bucket
	prefix string
	owned  bool
	files  bool // a file bucket, which tells its directory

	closed atomic.Bool
}

var _ gateway.ClaimCheck = (*Store)(nil)

// New returns a Store. ctx bounds the opening of a bucket by its URL, which does
// not tell yet whether the bucket exists and may be written to: see
// [Store.Check].
func New(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{bucket: cfg.Bucket, prefix: cfg.Prefix, owned: cfg.Bucket == nil}
	if s.owned {
		bucket, err := blob.OpenBucket(ctx, filesync.URL(cfg.URL))
		if err != nil {
			return nil, bucketError(ctx, "open bucket", err)
		}
		s.bucket = bucket
	}
	s.files = filesync.IsFiles(s.bucket)
	return s, nil
}

// Check returns nil when the bucket is there and can be listed. It asks the
// bucket. The error is an [*Error] or that of ctx.
func (s *Store) Check(ctx context.Context) error {
	if err := s.ready(ctx, "check"); err != nil {
		return err
	}
	if s.missing(ctx) {
		return &Error{Op: "check", Kind: gateway.ErrUnavailable, Cause: errors.New("the bucket does not exist")}
	}
	if _, err := s.bucket.IsAccessible(ctx); err != nil {
		return bucketError(ctx, "check", err)
	}
	return nil
}

// missing reports whether the bucket itself is known not to be there, which is
// an outage or a wrong configuration: no payload is to blame.
func (s *Store) missing(ctx context.Context) bool {
	if s.files {
		var dir os.FileInfo
		return !s.bucket.As(&dir) || !dir.IsDir()
	}
	ok, err := s.bucket.IsAccessible(ctx)
	return err == nil && !ok
}

const (
	// partSize is how much a cloud driver buffers before it sends a part, and
	// maxParts how many it sends at a time.
	partSize = 8 << 20
	maxParts = 2
)

// Put stores everything that r yields under key and returns the reference by
// which Open finds it: the key. It returns nil only when everything is stored as
// durably as the bucket does it; a file is forced to the disk. When r or the
// bucket fails, or ctx ends, nothing is visible under the reference, or what was
// there before; never a part. A second Put with the same key replaces the first.
//
// An error of r is returned as it is; all others are an [*Error] or that of ctx.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) (reference string, err error) {
	if err := s.readyFor(ctx, "put", key); err != nil {
		return "", err
	}
	source := &source{r: r}
	err = filesync.Write(ctx, s.bucket, s.prefix+key, blob.WriterOptions{
		// Given, so that nobody guesses it from the content.
		ContentType: "application/octet-stream",
		BufferSize:  partSize, MaxConcurrency: maxParts,
	}, func(w io.Writer) error {
		_, err := io.Copy(w, source)
		return err
	})
	switch {
	case source.err != nil:
		return "", source.err
	case err != nil:
		return "", bucketError(ctx, "put", err)
	}
	// It is there now: the end of ctx comes too late.
	ctx = context.WithoutCancel(ctx)
	if err := filesync.Directories(ctx, s.bucket, s.prefix+key); err != nil {
		return "", bucketError(ctx, "put", err)
	}
	return key, nil
}

// source remembers the reader's own error, to tell it from the bucket's. It
// hides whatever else the reader can do: a WriteTo would mix them again.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// Open returns the payload and its size in bytes. The caller closes the reader,
// which stops giving bytes when ctx ends, and may close it while it is being
// read. An error while reading is an [*Error] or that of ctx.
func (s *Store) Open(ctx context.Context, reference string) (payload io.ReadCloser, size int64, err error) {
	if err := s.readyFor(ctx, "open", reference); err != nil {
		return nil, 0, err
	}
	reading, abandon := context.WithCancel(ctx)
	r, err := s.bucket.NewReader(reading, s.prefix+reference, nil)
	if err != nil {
		abandon()
		kind := gateway.ErrUnavailable
		// Below a file there is no file either.
		absent := gcerrors.Code(err) == gcerrors.NotFound || s.files && errors.Is(err, syscall.ENOTDIR)
		if absent && !s.missing(ctx) {
			kind = gateway.ErrNotFound
		}
		return nil, 0, kindError(ctx, "open", kind, err)
	}
	return &reader{ctx: ctx, abandon: abandon, r: r}, r.Size(), nil
}

// reader classifies the errors of reading, and may be closed while it is read,
// which the reader of a bucket does not allow.
type reader struct {
	ctx     context.Context // the caller's
	abandon context.CancelFunc

	mu     sync.Mutex // held by Read
	r      *blob.Reader
	closed bool
}

func (r *reader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, &Error{Op: "read", Kind: gateway.ErrClosed}
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = bucketError(r.ctx, "read", err)
	}
	return n, err
}

// Close ends a Read that is under way and waits for it.
func (r *reader) Close() error {
	r.abandon()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if err := r.r.Close(); err != nil {
		return bucketError(r.ctx, "close", err)
	}
	return nil
}

// Delete removes the payload. It returns nil when there is none.
func (s *Store) Delete(ctx context.Context, reference string) error {
	if err := s.readyFor(ctx, "delete", reference); err != nil {
		return err
	}
	err := s.bucket.Delete(ctx, s.prefix+reference)
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return bucketError(ctx, "delete", err)
	}
	return nil
}

// Close closes the bucket when New opened it. Close what uses the Store before:
// what is under way fails. It is idempotent.
func (s *Store) Close() error {
	if s.closed.Swap(true) || !s.owned {
		return nil
	}
	if err := s.bucket.Close(); err != nil {
		return bucketError(context.Background(), "close", err)
	}
	return nil
}

// ready tells what keeps a call from starting.
func (s *Store) ready(ctx context.Context, op string) error {
	if s.closed.Load() {
		return &Error{Op: op, Kind: gateway.ErrClosed}
	}
	return ctx.Err()
}

// readyFor is ready for a call about a key. It does not tell the key: a sender may have chosen it.
func (s *Store) readyFor(ctx context.Context, op, key string) error {
	if err := s.ready(ctx, op); err != nil || validKey(key) {
		return err
	}
	return &Error{Op: op, Kind: gateway.ErrInvalid, Cause: &gateway.ValidationError{
		Field: "reference", Rule: "must be a key of letters, digits and - _ . = + / without empty or hidden segments",
	}}
}

// maxKey and maxSegment bound keys and what is between their slashes, in bytes,
// below what all drivers and file systems take, prefix and temporary names
// included.
const (
	maxKey     = 400
	maxSegment = 200
)

// validKey reports whether a key is one that Put takes.
func validKey(key string) bool {
	if len(key) > maxKey {
		return false
	}
	for segment := range strings.SplitSeq(key, "/") {
		// File buckets keep files of their own with these endings.
		if segment == "" || len(segment) > maxSegment || segment[0] == '.' || strings.HasSuffix(segment, ".attrs") || strings.HasSuffix(segment, ".tmp") {
			return false
		}
	}
	return strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=+/") == ""
}
