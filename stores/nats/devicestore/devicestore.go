// Package devicestore keeps the device descriptions of teamsets in a NATS key-value bucket, so
// that time logs can be decoded after a restart, and by other processes than the one that received the description.
package devicestore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/fairlru"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/timeline"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
)

// Defaults of [Config].
const (
	DefaultBucket  = "agrimill-devices"
	DefaultTimeout = 5 * time.Second
)

const (
	// maxDescriptions is how many descriptions of a teamset are kept.
	maxDescriptions = 16
	// maxCached bounds the payloads that are kept in memory, in bytes.
	maxCached = 16 << 20
	// maxConflicts is how often an update is tried when others make it at the same time.
	maxConflicts = 100
)

// ErrConfig is matched by the error of [Config.Validate].
var ErrConfig = final.New("devicestore: invalid configuration")

// ErrTooLarge is matched by the error of a description that the server accepts in no message. Its
// class is [router.ClassPermanent].
var ErrTooLarge = router.Permanent(errors.New("devicestore: the description is larger than the server's max_payload"))

// ErrMissing is matched by the error of a bucket that does not exist, with [Config.ReadOnly].
var ErrMissing = errors.New("devicestore: the bucket does not exist")

// ErrReadOnly is the error of Put with [Config.ReadOnly].
var ErrReadOnly = errors.New("devicestore: the store is read only")

// Config configures a [Store].
type Config struct {
	// Conn is the connection. Required. It should reconnect without end. If it has not found its server yet, and goes on looking
	// ([natsgo.RetryOnFailedConnect]), New succeeds, and the bucket is looked for when it is needed; an error until then matches
	// [sinks.ErrNotConnected]. It is not closed by the store.
	Conn *natsgo.Conn `yaml:"-"`
	// Domain is the JetStream domain of the bucket, as [nats.Connection.Domain].
	Domain string `yaml:"-"`
	// Bucket is the name of the bucket. An existing one is left as it is; a missing one is created, also later.
	// Empty means [DefaultBucket].
	Bucket string `yaml:"bucket"`
	// TTL is how long a created bucket keeps a description after it was last sent. 0 means without end; negative is
	// an error.
	TTL time.Duration `yaml:"ttl"`
	// Replicas of a bucket that is created, 1 to 5. 0 means 1.
	Replicas int `yaml:"replicas"`
	// MaxBytes bounds a bucket that is created; a full one is an outage. 0 means no limit;
	// negative is an error.
	MaxBytes int64 `yaml:"max_bytes" unit:"bytes"`
	// Timeout bounds each call. 0 means [DefaultTimeout]; negative is an error.
	Timeout time.Duration `yaml:"-"`
	// ReadOnly is for whoever only looks: nothing is created or put. A bucket that does not exist is an
	// error that matches [ErrMissing].
	ReadOnly bool `yaml:"-"`
	// Logger gets a warning if the bucket keeps less than configured, and of what in it cannot be read. Nil means nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Bucket, c.Timeout, c.Replicas = cmp.Or(c.Bucket, DefaultBucket), cmp.Or(c.Timeout, DefaultTimeout), cmp.Or(c.Replicas, 1)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	kvbucket.Check(&e, c.Conn, c.Bucket, c.Replicas, c.Timeout)
	validate.NotNegative(&e, "TTL", c.TTL)
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	return e.Err(ErrConfig)
}

// Store is a [farm.DeviceStore] in a NATS key-value bucket. A key of a teamset has a list of
// descriptions, at most 16 of them: of those that say the same as the ones before and after them any, and else those sent
// last. Their payloads have keys of their own, by digest, and are also kept in memory, 16 MiB that tenants share, so that a time log costs
// one request. Put returns when the
// bucket's stream has stored the description.
//
// What cannot be read is logged with its key and costs itself: an entry of a list, or a payload that has another digest than
// its key says. A list that is none is empty; the next Put makes it anew.
//
// All methods are safe for concurrent use. A Store needs no Close.
type Store struct {
	config Config
	bucket *kvbucket.Handle
	cache  *fairlru.Cache[cached, []byte]
	odd    ratelog.Line
}

var _ farm.DeviceStore = (*Store)(nil)

// entry is a description in the list of a teamset.
type entry struct {
	Digest string    `json:"digest"`
	Sent   time.Time `json:"sent"`
	Tenant string    `json:"tenant,omitempty"`
}

func (e entry) compare(other entry) int {
	return cmp.Or(e.Sent.Compare(other.Sent), strings.Compare(e.Digest, other.Digest))
}

func (e entry) same(other entry) bool { return e.Digest == other.Digest }

// cached names a payload of a tenant in memory.
type cached struct{ tenant, digest string }

func (s *Store) remember(tenant, digest string, payload []byte) {
	s.cache.Put(tenant, cached{tenant, digest}, payload, int64(len(payload))+128)
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "devicestore.Store") }

// New opens the bucket. The error matches [ErrConfig], or is that of the server.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	config.Logger = warnlog.Or(config.Logger)
	s := &Store{config: config, cache: fairlru.New[cached, []byte](maxCached), odd: ratelog.Line{Burst: warnlog.PerMessage}}
	provision := kvbucket.ProvisionCreate
	if config.ReadOnly {
		provision = kvbucket.ProvisionNone
	}
	var err error
	if s.bucket, err = kvbucket.Open(ctx, config.Conn, config.Domain, kvbucket.Config{
		Store: "devicestore", Provision: provision, Timeout: config.Timeout, Logger: config.Logger,
		Opened: func(jetstream.StreamConfig, bool) error { // what another bucket had is forgotten
			s.cache.Purge()
			return nil
		},
		Bucket: jetstream.KeyValueConfig{
			Bucket: config.Bucket, Description: kvbucket.Devices, TTL: config.TTL, Replicas: config.Replicas, MaxBytes: config.MaxBytes,
		},
	}); err != nil {
		return nil, classed(err)
	}
	return s, nil
}

// Health asks the server for the bucket.
func (s *Store) Health(ctx context.Context) error {
	return classed(s.bucket.Health(ctx))
}

// classed says what an error of the server means to callers.
func classed(err error) error {
	switch {
	case errors.Is(err, natsgo.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, jetstream.ErrBucketNotFound): // it is not created
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return err
}

func listKey(teamset string) string   { return "teamset." + teamset }
func payloadKey(digest string) string { return "payload." + digest }

// list returns what is known of a teamset, and the revision to update.
func (s *Store) list(ctx context.Context, kv *kvbucket.Bucket, teamset string) (entries []entry, found jetstream.KeyValueEntry, err error) {
	found, err = kv.Get(ctx, listKey(teamset))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(found.Value(), &all); err != nil {
		s.unreadable(listKey(teamset), err.Error())
		return nil, found, nil
	}
	for i, raw := range all {
		var e entry
		err := json.Unmarshal(raw, &e)
		switch digest, bad := hex.DecodeString(e.Digest); {
		case err != nil:
			s.unreadable(listKey(teamset), fmt.Sprintf("entry %d: %v", i, err))
		case bad != nil || len(digest) != sha256.Size:
			s.unreadable(listKey(teamset), fmt.Sprintf("entry %d: no digest", i))
		case e.Sent.IsZero() && !bytes.Contains(raw, []byte(`"sent"`)):
			s.unreadable(listKey(teamset), fmt.Sprintf("entry %d: no time", i))
		default:
			entries = append(entries, e)
		}
	}
	return entries, found, nil
}

// unreadable logs what costs itself.
func (s *Store) unreadable(key, reason string) {
	warnlog.Limited(&s.odd, s.config.Logger, "a part of the device descriptions cannot be read; it is left out",
		watermill.LogFields{"bucket": s.config.Bucket, "key": key, "reason": reason})
}

// payload returns the payload of an entry, if it is there: its TTL may have ended.
func (s *Store) payload(ctx context.Context, kv *kvbucket.Bucket, e entry) (payload []byte, there bool, err error) {
	if payload, there = s.cache.Get(cached{e.Tenant, e.Digest}); there {
		return payload, true, nil
	}
	found, err := kv.Get(ctx, payloadKey(e.Digest))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	payload = found.Value()
	if sum := sha256.Sum256(payload); hex.EncodeToString(sum[:]) != e.Digest {
		s.unreadable(payloadKey(e.Digest), "another digest")
		return nil, false, nil
	}
	s.remember(e.Tenant, e.Digest, payload)
	return payload, true, nil
}

// Put implements [farm.DeviceStore].
func (s *Store) Put(ctx context.Context, teamset string, description farm.DeviceDescription) error {
	if s.config.ReadOnly {
		return ErrReadOnly
	}
	sum := sha256.Sum256(description.Payload)
	digest := hex.EncodeToString(sum[:])
	err := s.bucket.Do(ctx, func(ctx context.Context, kv *kvbucket.Bucket) error {
		for range maxConflicts {
			entries, found, err := s.list(ctx, kv, teamset)
			if err != nil {
				return err
			}
			one := entry{digest, description.Sent, description.Tenant}
			known := false
			if slices.ContainsFunc(entries, one.same) {
				if _, known, err = s.payload(ctx, kv, one); err != nil {
					return err
				}
			}
			list, added := timeline.Add(entries, one, entry.compare, entry.same, maxDescriptions)
			if known && !added && (kv.TTL == 0 || time.Since(found.Created()) < kv.TTL/4) {
				return nil
			}
			// The list never names a payload that is not there: one that expires is put again with the list.
			if !known || kv.TTL != 0 {
				if _, err := kv.Put(ctx, payloadKey(digest), description.Payload); err != nil {
					return err
				}
			}
			value, err := json.Marshal(list)
			if err != nil {
				return err
			}
			revision := uint64(0)
			if found != nil {
				revision = found.Revision()
			}
			_, err = s.bucket.Write(ctx, kv, listKey(teamset), value, revision, 0)
			if !kvbucket.IsConflict(err) {
				return err
			}
		}
		return errors.New("too many updates of the teamset at the same time")
	})
	if err == nil {
		s.remember(description.Tenant, digest, bytes.Clone(description.Payload))
	}
	return classed(err)
}

// Get implements [farm.DeviceStore].
func (s *Store) Get(ctx context.Context, teamset string) (descriptions []farm.DeviceDescription, err error) {
	err = s.bucket.Do(ctx, func(ctx context.Context, kv *kvbucket.Bucket) error {
		descriptions = nil
		entries, _, err := s.list(ctx, kv, teamset)
		if err != nil {
			return err
		}
		for _, e := range entries {
			payload, there, err := s.payload(ctx, kv, e)
			if err != nil {
				return err
			}
			if there {
				descriptions = append(descriptions, farm.DeviceDescription{Sent: e.Sent, Payload: payload, Tenant: e.Tenant})
			}
		}
		return nil
	})
	return descriptions, classed(err)
}
