// Package devicestore keeps the device descriptions of teamsets in a compacted Kafka topic, so
// that time logs can be decoded after a restart, and by other processes than the one that received the description.
package devicestore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// Defaults of [Config].
const (
	DefaultTopic   = "agrimill-devices"
	DefaultTimeout = 30 * time.Second
)

// ErrConfig is matched by the error of [Config.Validate].
var ErrConfig = final.New("devicestore: invalid configuration")

// ErrClosed says that the store was closed. Its class is [router.ClassOutage].
var ErrClosed = router.Outage(errors.New("devicestore: the store is closed"))

// ErrTooLarge is matched by the error of a description that the broker does not take. Its class is
// [router.ClassPermanent].
var ErrTooLarge = router.Permanent(errors.New("devicestore: the description is larger than the broker takes"))

// Config configures a [Store].
type Config struct {
	// Connection says how to connect. Its Brokers are required.
	kafka.Connection `yaml:",inline"`
	// Topic is the name of the topic. One that exists is left as it is, and should be compacted; a missing
	// one is created, compacted, with one partition. Empty means [DefaultTopic].
	Topic string `yaml:"topic"`
	// Replicas of a topic that is created. 0 means the broker's default; negative is an error.
	Replicas int16 `yaml:"replicas"`
	// Timeout bounds New and each Put. 0 means [DefaultTimeout]; negative is an error.
	Timeout time.Duration `yaml:"timeout"`
	// MaxMemory is that of [farm.MemoryDevicesConfig]: what the topic has is also in memory.
	MaxMemory int64 `yaml:"max_memory" unit:"bytes"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Connection, c.Topic, c.Timeout = c.Connection.WithDefaults(), cmp.Or(c.Topic, DefaultTopic), cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxMemory = cmp.Or(c.MaxMemory, farm.DefaultMaxMemory)
	return c
}

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(c.Replicas >= 0, "Replicas", "must not be negative")
	validate.NotNegative(&e, "Timeout", c.Timeout)
	validate.NotNegative(&e, "MaxMemory", c.MaxMemory)
	return e.Err(ErrConfig)
}

// Store is a [farm.DeviceStore] in a compacted topic: a record for each description, whose key is the
// teamset and the digest of the payload, so that compaction keeps each one. Put returns when all in-sync
// replicas have it. Get asks what was read of the topic, which New has read to its end and
// which goes on to be read: what another process puts is there a moment later, and a time log waits for
// it as for a description that is late. What does not fit into MaxMemory is unknown until it is sent again.
//
// All methods are safe for concurrent use. The store has to be closed.
type Store struct {
	config   Config
	client   sarama.Client
	producer sarama.SyncProducer
	consumer sarama.Consumer
	known    *farm.MemoryDevices

	stop    chan struct{}
	reading sync.WaitGroup
	closing sync.Once
	err     error
}

var _ farm.DeviceStore = (*Store)(nil)

// New connects and reads the topic to its end. The error matches [ErrConfig], or is that of
// Kafka. It returns when ctx ends, and may go on connecting for ConnectTimeout then.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	type result struct {
		store *Store
		err   error
	}
	opened := make(chan result)
	go func() { // ends by the timeouts of the client, at the latest
		store, err := open(ctx, config)
		select {
		case opened <- result{store, err}:
		case <-ctx.Done():
			if err == nil {
				_ = store.Close() // nobody is left to report it to
			}
		}
	}()
	select {
	case r := <-opened:
		return r.store, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("devicestore: topic %q: %w", config.Topic, context.Cause(ctx))
	}
}

func open(ctx context.Context, config Config) (_ *Store, err error) {
	s := &Store{config: config, stop: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("devicestore: topic %q: %w", config.Topic, err), s.Close())
		}
	}()
	if s.known, err = farm.NewMemoryDevices(farm.MemoryDevicesConfig{MaxMemory: config.MaxMemory}); err != nil {
		return nil, err
	}
	k := config.ClientConfig()
	k.Producer.RequiredAcks, k.Producer.Return.Successes = sarama.WaitForAll, true
	k.Producer.Timeout = config.Timeout
	if s.client, err = sarama.NewClient(config.Brokers, k); err != nil {
		return nil, err
	}
	if err = s.create(); err != nil {
		return nil, err
	}
	if s.producer, err = sarama.NewSyncProducerFromClient(s.client); err != nil {
		return nil, err
	}
	if s.consumer, err = sarama.NewConsumerFromClient(s.client); err != nil {
		return nil, err
	}
	partitions, err := s.client.Partitions(config.Topic)
	if err != nil {
		return nil, err
	}
	for _, partition := range partitions {
		if err = s.read(ctx, partition); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// create creates the topic if it is missing.
func (s *Store) create() error {
	topics, err := s.client.Topics()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if topic == s.config.Topic {
			return nil
		}
	}
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		return err
	}
	compact := "compact"
	detail := &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: cmp.Or(s.config.Replicas, -1), ConfigEntries: map[string]*string{"cleanup.policy": &compact}}
	if err = admin.CreateTopic(s.config.Topic, detail, false); err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return err
	}
	return s.client.RefreshMetadata(s.config.Topic)
}

// read takes in what a partition has, and goes on in the background.
func (s *Store) read(ctx context.Context, partition int32) error {
	end, err := s.client.GetOffset(s.config.Topic, partition, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	first, err := s.client.GetOffset(s.config.Topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	from, err := s.consumer.ConsumePartition(s.config.Topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	following := false
	defer func() {
		if !following {
			finish(from)
		}
	}()
	// The last records before the end may be gone, or none of any store, so that nobody ever gets
	// there. What comes later is taken in as well.
	quiet := time.NewTimer(s.config.Timeout / 2)
	defer quiet.Stop()
	for next := first; next < end; {
		select {
		case record := <-from.Messages():
			if record == nil {
				return sarama.ErrClosedClient
			}
			s.take(ctx, record)
			next = record.Offset + 1
			quiet.Reset(endOfCompacted)
		case <-quiet.C:
			next = end
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	following = true
	s.reading.Go(func() { s.follow(partition, from) })
	return nil
}

// follow reads a partition until the store is closed. A reader ends when what it would read next is gone, such as with a
// topic that was deleted and made again.
func (s *Store) follow(partition int32, from sarama.PartitionConsumer) {
	for {
		for ended := false; !ended; {
			select {
			case record := <-from.Messages():
				if ended = record == nil; !ended {
					s.take(context.Background(), record) // it is in memory
				}
			case <-s.stop:
				finish(from)
				return
			}
		}
		finish(from)
		for again := false; !again; {
			select {
			case <-time.After(readAgain):
			case <-s.stop:
				return
			}
			var err error
			from, err = s.consumer.ConsumePartition(s.config.Topic, partition, sarama.OffsetOldest)
			again = err == nil
		}
	}
}

// finish ends a reader.
func finish(from sarama.PartitionConsumer) {
	from.AsyncClose()
	for range from.Messages() { // until it has ended
	}
}

// readAgain is how long after it has ended a partition is read again.
const readAgain = time.Second

// endOfCompacted is how long nothing more comes at the end of a topic whose last records were
// compacted away.
const endOfCompacted = 2 * time.Second

// sentHeader is the name of the header with the time at which a description was sent.
const sentHeader = "x-router-sent-timestamp"

// take takes in a record. What is none of a store is ignored.
func (s *Store) take(ctx context.Context, record *sarama.ConsumerMessage) {
	teamset, _, ok := strings.Cut(string(record.Key), "/")
	if !ok || len(record.Value) == 0 {
		return
	}
	d := farm.DeviceDescription{Payload: record.Value}
	for _, h := range record.Headers {
		if string(h.Key) == sentHeader {
			d.Sent, _ = time.Parse(time.RFC3339Nano, string(h.Value)) // zero if it is no time
		}
	}
	_ = s.known.Put(ctx, teamset, d) // memory does not fail
}

// Put implements [farm.DeviceStore].
func (s *Store) Put(ctx context.Context, teamset string, description farm.DeviceDescription) error {
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	known, err := s.known.Get(ctx, teamset)
	if err != nil {
		return err
	}
	for _, k := range known {
		if bytes.Equal(k.Payload, description.Payload) {
			return nil
		}
	}
	digest := sha256.Sum256(description.Payload)
	message := &sarama.ProducerMessage{
		Topic: s.config.Topic, Key: sarama.StringEncoder(teamset + "/" + hex.EncodeToString(digest[:])), Value: sarama.ByteEncoder(bytes.Clone(description.Payload)),
		Headers: []sarama.RecordHeader{{Key: []byte(sentHeader), Value: description.Sent.AppendFormat(nil, time.RFC3339Nano)}},
	}
	stored := make(chan error, 1)
	go func() { // ends by the timeouts of the producer
		_, _, err := s.producer.SendMessage(message)
		stored <- err
	}()
	select {
	case err = <-stored:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case errors.Is(err, sarama.ErrMessageSizeTooLarge), errors.As(err, new(sarama.ConfigurationError)):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		return fmt.Errorf("devicestore: topic %q: %w", s.config.Topic, err)
	}
	return s.known.Put(ctx, teamset, description)
}

// Get implements [farm.DeviceStore]. It does not block.
func (s *Store) Get(ctx context.Context, teamset string) ([]farm.DeviceDescription, error) {
	return s.known.Get(ctx, teamset)
}

// Health asks a broker for the topic.
func (s *Store) Health(context.Context) error { return s.client.RefreshMetadata(s.config.Topic) }

// Close ends reading and closes the connections. Further calls return the same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		var errs []error
		s.reading.Wait()
		if s.consumer != nil {
			errs = append(errs, s.consumer.Close())
		}
		if s.producer != nil {
			errs = append(errs, s.producer.Close())
		}
		if s.client != nil {
			errs = append(errs, s.client.Close())
		}
		s.err = errors.Join(errs...)
	})
	return s.err
}
