// Package devicestore keeps the device descriptions of teamsets in a compacted Kafka topic, so
// that time logs can be decoded after a restart, and by other processes than the one that received the description.
package devicestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/stores/kafka/internal/brokers"
)

// Defaults of [Config].
const (
	DefaultTopic   = "agrimill-devices"
	DefaultTimeout = 30 * time.Second
)

// ErrClosed says that the store was closed. Its class is [router.ClassOutage].
var ErrClosed = router.Outage(errors.New("devicestore: the store is closed"))

// ErrTooLarge is matched by the error of a description that the broker does not take. Its class is
// [router.ClassPermanent].
var ErrTooLarge = router.Permanent(errors.New("devicestore: the description is larger than the broker takes"))

// ErrMissing is matched by the error of a topic that does not exist, with [Config.ReadOnly].
var ErrMissing = errors.New("the topic does not exist")

// ErrReadOnly is the error of Put with [Config.ReadOnly].
var ErrReadOnly = errors.New("devicestore: the store is read only")

// Store is a [farm.DeviceStore] in a compacted topic: a record for each payload, whose key is the
// teamset and the digest of the payload, so that compaction keeps each one, with the times at which it was sent. Put returns when all in-sync
// replicas have it. Get asks what was read of the topic, which New has read to its end and
// which goes on to be read: what another process puts is there a moment later, and a time log waits for
// it as for a description that is late. What does not fit into MaxMemory is unknown until it is sent again.
//
// Of a payload that several processes put at the same moment, the last record stays, which may lack times of the
// others. Whoever reads one that lacks times that it knows writes them again, also after a restart.
//
// A record without a time that can be read counts as sent when it was stored. One whose value has another digest than its key
// says, or whose key is none of a store, is left out. The log names both.
//
// All methods are safe for concurrent use. The store has to be closed.
type Store struct {
	config  Config
	opening *opening.Opening // of the topic
	cluster *brokers.Cluster
	known   *farm.MemoryDevices
	odd     ratelog.Line

	ctx     context.Context // ends when Close begins
	stop    context.CancelFunc
	reading sync.WaitGroup // what goes on in the background
}

// recordKey is the key of a record.
type recordKey struct {
	teamset string
	digest  [sha256.Size]byte
}

// String returns it as the topic has it.
func (k recordKey) String() string { return k.teamset + "/" + hex.EncodeToString(k.digest[:]) }

var _ farm.DeviceStore = (*Store)(nil)

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "devicestore.Store") }

// New connects and reads the topic to its end, or until ctx ends. The error matches [ErrConfig], or is that of Kafka. With
// Connection.RetryOnFailedConnect it matches ErrConfig only: New tries once, and goes on trying in the background until Close.
// Until it has connected, Put, Get and Health fail with an error that matches sinks.ErrNotConnected, and says why.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	known, err := farm.NewMemoryDevices(farm.MemoryDevicesConfig{MaxMemory: config.MaxMemory})
	if err != nil {
		return nil, err
	}
	cluster, err := brokers.New(config.Connection, nil, config.Timeout, ErrClosed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s := &Store{config: config, cluster: cluster, known: known, odd: ratelog.Line{Burst: warnlog.PerMessage}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.opening = opening.New(s.open, warnlog.Or(config.Logger))
	err = s.opening.Try(ctx)
	if err != nil && !config.RetryOnFailedConnect {
		_ = s.Close()
		return nil, err
	}
	if err != nil {
		s.opening.Start(context.WithoutCancel(ctx), nil)
	}
	return s, nil
}

// Get implements [farm.DeviceStore]. It does not block.
func (s *Store) Get(ctx context.Context, teamset string) ([]farm.DeviceDescription, error) {
	if err := s.opening.Err(); err != nil {
		return nil, err
	}
	return s.known.Get(ctx, teamset)
}

// Health asks a broker for the topic.
func (s *Store) Health(ctx context.Context) error {
	if err := s.opening.Err(); err != nil {
		return err
	}
	at, err := s.cluster.Look(ctx, s.config.Topic)
	if err == nil && len(at.Partitions) == 0 {
		err = ErrMissing
	}
	return err
}

// Close ends reading and closes the connections. It waits for no answer, and returns nil. What is under way fails with [ErrClosed].
func (s *Store) Close() error {
	s.stop()
	s.cluster.Close()
	s.opening.Stop(context.Background())
	s.reading.Wait()
	return nil
}

// open reads the topic to its end, and goes on in the background.
func (s *Store) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("devicestore: topic %q: %w", s.config.Topic, err)
		}
	}()
	at, err := s.provided(ctx)
	if err != nil {
		return err
	}
	var followers []func()
	for i, p := range at.Partitions {
		lacking := map[recordKey]bool{}
		end, err := s.cluster.Read(ctx, s.config.Topic, p, p.Oldest, func(records []*sarama.ConsumerMessage, _ int64) {
			for _, record := range records {
				s.take(record, lacking)
			}
		})
		if err != nil {
			return err
		}
		followers = append(followers, func() { s.follow(at.ID, p.ID, i == len(at.Partitions)-1, end, lacking) })
	}
	for _, follow := range followers {
		s.reading.Go(follow)
	}
	return nil
}

// provided returns what the topic has. It creates the topic if it is missing.
func (s *Store) provided(ctx context.Context) (brokers.Topic, error) {
	for {
		at, err := s.cluster.Look(ctx, s.config.Topic)
		switch {
		case err != nil || len(at.Partitions) > 0:
			return at, err
		case s.config.ReadOnly:
			return at, ErrMissing
		}
		err = s.cluster.Ask(ctx, func(client sarama.Client) error {
			return brokers.Create(ctx, client, s.config.Topic, s.config.Replicas)
		})
		if err != nil {
			return at, err
		}
	}
}

// sentHeader is the name of the headers with the times at which a description was sent, tenantHeader of that with its tenant.
const (
	sentHeader   = "x-router-sent-timestamp"
	tenantHeader = "x-router-tenant-id"
)

// mend writes again what records lack. Processes that have read the same know the same, so that one that does so is
// enough, and none goes on.
func (s *Store) mend(lacking map[recordKey]bool) error {
	for key := range lacking {
		if err := s.writeAgain(key); err != nil && !errors.Is(err, ErrTooLarge) {
			return err
		}
		delete(lacking, key) // reading the record that is written now says whether it lacks anything
	}
	return nil
}

// writeAgain writes the record of a key with all times that are known.
func (s *Store) writeAgain(key recordKey) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.Timeout)
	defer cancel()
	known := s.descriptions(key)
	if len(known) == 0 {
		return nil // it was forgotten
	}
	return s.write(ctx, key, known[0], times(known))
}

// Put implements [farm.DeviceStore].
func (s *Store) Put(ctx context.Context, teamset string, description farm.DeviceDescription) error {
	if err := s.opening.Err(); err != nil {
		return err
	}
	if s.config.ReadOnly {
		return ErrReadOnly
	}
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	key := recordKey{teamset, sha256.Sum256(description.Payload)}
	written := times(s.descriptions(key)) // what is known is written again: the topic may have been made again since
	if !slices.ContainsFunc(written, description.Sent.Equal) {
		written = append(written, description.Sent)
	}
	for {
		if err := s.write(ctx, key, description, written); err != nil {
			return err
		}
		if err := s.known.Put(ctx, teamset, description); err != nil {
			return err
		}
		// Of records that are written at the same time, the last one stays, so whoever sees the other's time writes both.
		now := times(s.descriptions(key))
		if !lacks(written, now) {
			return nil
		}
		written = now
	}
}

// descriptions returns what is known of a payload of a teamset.
func (s *Store) descriptions(key recordKey) []farm.DeviceDescription {
	known, _ := s.known.Get(context.Background(), key.teamset) // memory does not fail
	return slices.DeleteFunc(known, func(d farm.DeviceDescription) bool { return sha256.Sum256(d.Payload) != key.digest })
}

// times returns when descriptions were sent.
func times(known []farm.DeviceDescription) (list []time.Time) {
	for _, d := range known {
		list = append(list, d.Sent)
	}
	return list
}

// lacks reports whether a record with some times lacks one that is known.
func lacks(written, known []time.Time) bool {
	return slices.ContainsFunc(known, func(at time.Time) bool { return !slices.ContainsFunc(written, at.Equal) })
}

// write writes the record of a payload with the times at which it was sent.
func (s *Store) write(ctx context.Context, key recordKey, description farm.DeviceDescription, times []time.Time) error {
	message := &sarama.ProducerMessage{
		Topic: s.config.Topic, Key: sarama.StringEncoder(key.String()), Value: sarama.ByteEncoder(bytes.Clone(description.Payload)),
	}
	if description.Tenant != "" {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(tenantHeader), Value: []byte(description.Tenant)})
	}
	for _, at := range times {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(sentHeader), Value: at.AppendFormat(nil, time.RFC3339Nano)})
	}
	err := s.cluster.Ask(ctx, func(sarama.Client) error { return s.cluster.Send([]*sarama.ProducerMessage{message}) })
	switch {
	case errors.Is(err, sarama.ErrMessageSizeTooLarge), errors.As(err, new(sarama.ConfigurationError)):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err == nil || errors.Is(err, ErrClosed) || ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("devicestore: topic %q: %w", s.config.Topic, err)
}
