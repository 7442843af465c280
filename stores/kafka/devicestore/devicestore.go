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
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/wakeup"
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
// Of a payload that several processes put at the same moment, the last record stays, and that may be of one that did not know the
// times of the others yet. Whoever reads a record that lacks times that it knows writes them again, also after a restart.
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

	lacks chan struct{} // there is something in lacking
	gone  atomic.Bool   // there was no topic for a while: it need not have what is known

	mu      sync.Mutex
	lacking map[recordKey]bool // of which the last record lacks times that are known
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
// Connection.RetryOnFailedConnect it matches ErrConfig only: New tries once, and goes on trying in the background. Until
// then Put, Get and Health fail with an error that matches sinks.ErrNotConnected, and says why.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	known, err := farm.NewMemoryDevices(farm.MemoryDevicesConfig{MaxMemory: config.MaxMemory})
	if err != nil {
		return nil, err
	}
	s := &Store{
		config: config, cluster: brokers.New(config.Connection, nil, config.Timeout, ErrClosed), known: known,
		odd: ratelog.Line{Burst: warnlog.PerMessage}, lacks: make(chan struct{}, 1), lacking: map[recordKey]bool{},
	}
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
	ends := map[int32]int64{}
	for _, p := range at.Partitions {
		ends[p.ID], err = s.cluster.Read(ctx, s.config.Topic, p, p.Oldest, func(records []*sarama.ConsumerMessage, _ int64) {
			for _, record := range records {
				s.take(ctx, record)
			}
		})
		if err != nil {
			return err
		}
	}
	for partition, end := range ends {
		s.reading.Go(func() { s.follow(partition, end) })
	}
	if !s.config.ReadOnly {
		s.reading.Go(s.mend)
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

// sentHeader is the name of the headers with the times at which a description was sent, tenantHeader of that with
// its tenant.
const (
	sentHeader   = "x-router-sent-timestamp"
	tenantHeader = "x-router-tenant-id"
)

const (
	// mendAfter is how long at least nobody writes again what a record lacks: who wrote it may do so, or another
	// process, each after another time.
	mendAfter = 100 * time.Millisecond
	// maxLacking bounds what is to be written again. More of it waits for a restart or its next record.
	maxLacking = 10_000
)

// note notes whether the last record of a key lacks times.
func (s *Store) note(key recordKey, lacks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !lacks {
		delete(s.lacking, key)
		return
	}
	if len(s.lacking) < maxLacking {
		s.lacking[key] = true
	}
	wakeup.Token(s.lacks)
}

// mend writes again what records lack, until the store is closed. Processes that have read the same know the same, so that one
// that does so is enough, and none goes on.
func (s *Store) mend() {
	for {
		select {
		case <-s.lacks:
		case <-s.ctx.Done():
			return
		}
		if backoff.Sleep(s.ctx, mendAfter+rand.N(2*mendAfter)) != nil {
			return
		}
		s.mu.Lock()
		lacking := slices.Collect(maps.Keys(s.lacking))
		clear(s.lacking) // reading the record that is written now says whether it lacks anything
		s.mu.Unlock()
		for _, key := range lacking {
			if err := s.writeAgain(key); err != nil && !errors.Is(err, ErrTooLarge) {
				s.note(key, true)
				_ = backoff.Sleep(s.ctx, readAgain)
			}
		}
	}
}

// writeAgain writes the record of a key with all times that are known.
func (s *Store) writeAgain(key recordKey) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.Timeout)
	defer cancel()
	known, err := s.descriptions(ctx, key.teamset, key.digest)
	if err != nil || len(known) == 0 {
		return err // it was forgotten
	}
	times := make([]time.Time, len(known))
	for i, d := range known {
		times[i] = d.Sent
	}
	return s.write(ctx, key, known[0], times)
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
	written, err := s.times(ctx, key)
	known := slices.ContainsFunc(written, description.Sent.Equal)
	if err != nil || known && !s.gone.Load() {
		return err
	}
	if !known {
		written = append(written, description.Sent)
	}
	for {
		if err := s.write(ctx, key, description, written); err != nil {
			return err
		}
		if err := s.known.Put(ctx, teamset, description); err != nil {
			return err
		}
		// Of records that are written at the same time, the last one stays, so whoever sees the other's time
		// writes both.
		now, err := s.times(ctx, key)
		if err != nil || !slices.ContainsFunc(now, func(at time.Time) bool { return !slices.ContainsFunc(written, at.Equal) }) {
			return err
		}
		written = now
	}
}

// descriptions returns what is known of a payload of a teamset.
func (s *Store) descriptions(ctx context.Context, teamset string, digest [sha256.Size]byte) ([]farm.DeviceDescription, error) {
	known, err := s.known.Get(ctx, teamset)
	return slices.DeleteFunc(known, func(d farm.DeviceDescription) bool { return sha256.Sum256(d.Payload) != digest }), err
}

// times returns when a payload was sent, as far as it is known.
func (s *Store) times(ctx context.Context, key recordKey) (list []time.Time, err error) {
	known, err := s.descriptions(ctx, key.teamset, key.digest)
	for _, k := range known {
		list = append(list, k.Sent)
	}
	return list, err
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
