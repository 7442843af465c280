package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	gcblob "gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/logsink"
	"github.com/agrimill/agrimill/sinks/nats"
	kafkaqueue "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
	natsqueue "github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

// sink is one configured sink. All routes share it, across reloads, so its Close does
// nothing; close does. open opens it; until that succeeds, publishing to it is an outage.
type sink struct {
	*opening.Later[sinks.Sink]
	sinks.Topics
	logger             *slog.Logger
	name, kind, target string
	config             config.Sink
	made               piece      // what it was made of
	watched            sinks.Sink // itself, with metrics and tracing: what routers get

	opened wakeup.Signal

	queuesMu sync.Mutex
	queues   map[string]*kafkaqueue.Queue // by topic; closed with the sink
	closed   bool
}

var (
	_ sinks.Sink       = (*sink)(nil)
	_ sinks.Recovering = (*sink)(nil)
)

// opener opens a sink, and says how to close it.
type opener func(context.Context) (sinks.Sink, func() error, error)

// newSink checks the configuration of a sink without connecting.
func (p *Pipeline) newSink(name string, cfg config.Sink) (*sink, error) {
	s := &sink{name: name, kind: cfg.Kind(), config: cfg, Topics: cfg.Topics()}
	s.logger = p.logger.With("sink", name)
	library := p.libraryLogger(s.logger)
	var open opener
	var err error
	switch {
	case cfg.NATS != nil:
		s.target = config.Hosts(cfg.NATS.URL)
		var config nats.Config
		config, err = cfg.NATS.SinkConfig(name)
		config.RetryOnFailedConnect = true
		config.Lost = func(first, last uint64) {
			p.lost(name, journal.Location{Stream: config.WithDefaults().Stream, Sequence: first}, last)
		}
		open = func(context.Context) (sinks.Sink, func() error, error) { return closing(nats.New(config, library)) }
	case cfg.Kafka != nil:
		var config kafka.Config
		config, err = cfg.Kafka.SinkConfig(name)
		config.RetryOnFailedConnect = true
		config.Lost = func(topic string, partition int32, first, last int64) {
			p.lost(name, journal.Location{Topic: topic, Partition: partition, Offset: first}, uint64(last))
		}
		open = func(context.Context) (sinks.Sink, func() error, error) { return closing(kafka.New(config, library)) }
		s.target = strings.Join(cfg.Kafka.Brokers, ",")
	case cfg.Blob != nil:
		open = p.blobOpener(name, *cfg.Blob)
		s.target = cfg.Blob.URL.String()
	default:
		config := *cfg.Log
		config.Writer = p.options.Stdout
		open = func(context.Context) (sinks.Sink, func() error, error) { return closing(logsink.New(config)) }
	}
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	s.Later = opening.NewLater(open, library)
	s.watched = p.tracing.Sink(s.kind, p.sinkMetrics.Wrap(name, s))
	return s, nil
}

// lost has the journal list what a sink had stored from a place on.
func (p *Pipeline) lost(sink string, from journal.Location, last uint64) {
	p.journal.Lost(from, last, func(route string, poisoned bool) bool {
		stores := p.now().config.SinkOf(route, poisoned)
		return stores == sink || stores == "" // or it did, perhaps
	})
}

func (p *Pipeline) blobOpener(name string, cfg config.Blob) opener {
	return func(ctx context.Context) (sinks.Sink, func() error, error) {
		bucket, err := gcblob.OpenBucket(context.WithoutCancel(ctx), filesync.URL(string(cfg.URL)))
		if err != nil {
			return nil, nil, err
		}
		config := cfg.Config
		config.Name, config.Bucket, config.ClaimCheck = name, bucket, p.claims
		sink, err := blob.New(config)
		if err != nil {
			return nil, nil, errors.Join(err, bucket.Close())
		}
		// The sink first, because it may still write to the bucket.
		return sink, func() error { return errors.Join(sink.Close(), bucket.Close()) }, nil
	}
}

// open opens the sink in the background, until ctx ends or close is called.
func (s *sink) open(ctx context.Context) {
	s.Start(ctx, func(ctx context.Context) {
		s.opened.Raise()
		for {
			recovered := s.Recovered() // before looking
			if !errors.Is(s.Health(ctx), sinks.ErrNotConnected) {
				break
			}
			select {
			case <-recovered:
			case <-ctx.Done():
				return
			}
		}
		d := s.Describe()
		s.logger.Info("sink opened", "kind", s.kind, "target", s.target, "durability", d.Durability.String(), "note", d.DurabilityNote)
	})
}

// close closes the sink. It returns at the latest when ctx ends; a Close that has not
// returned by then is abandoned.
func (s *sink) close(ctx context.Context) error {
	var errs []error
	s.queuesMu.Lock()
	queues := s.queues
	s.queues, s.closed = nil, true // no more are opened
	s.queuesMu.Unlock()
	for _, queue := range queues {
		errs = append(errs, opening.Within(ctx, queue.Close))
	}
	if err := errors.Join(append(errs, s.Later.Close(ctx))...); err != nil {
		return fmt.Errorf("sink %s: %w", s.name, err)
	}
	return nil
}

// poisonStore is a poison queue that knows its size.
type poisonStore interface {
	router.PoisonStore
	Depth(ctx context.Context) (int64, error)
	Oldest(ctx context.Context) (time.Time, error)
}

// poisonStore returns the poison queue that the sink writes to a topic; nil if it cannot be read, or if the sink is
// not open yet. It is valid until the sink is closed.
func (s *sink) poisonStore(topic string) poisonStore {
	opened, err := s.Get()
	if err != nil {
		return nil
	}
	switch opened := opened.(type) {
	case *nats.Sink:
		config := s.config.NATS.PoisonQueueConfig(topic)
		config.Conn = opened.Conn()
		if queue, err := natsqueue.New(config); err == nil {
			return queue
		}
	case *kafka.Sink:
		if queue := s.kafkaQueue(topic); queue != nil {
			return queue
		}
	}
	return nil
}

// kafkaQueue returns the poison queue in Kafka, which has connections of its own.
func (s *sink) kafkaQueue(topic string) *kafkaqueue.Queue {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	if queue := s.queues[topic]; queue != nil || s.closed {
		return queue
	}
	config, err := s.config.Kafka.PoisonQueueConfig(topic)
	if err != nil {
		return nil
	}
	queue, err := kafkaqueue.New(config)
	if err != nil {
		return nil
	}
	if s.queues == nil {
		s.queues = map[string]*kafkaqueue.Queue{}
	}
	s.queues[topic] = queue
	return queue
}

// Publish implements [sinks.Sink].
func (s *sink) Publish(topic string, messages ...*message.Message) error {
	inner, err := s.Get()
	if err != nil {
		return sinks.NewError(s.name, topic, sinks.ErrUnavailable, err)
	}
	return inner.Publish(topic, messages...)
}

// PublishAsync implements [sinks.Sink].
func (s *sink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	inner, err := s.Get()
	if err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrUnavailable, err)
	}
	return inner.PublishAsync(topic, msg)
}

// Describe implements [sinks.Sink].
func (s *sink) Describe() sinks.Description {
	// Needed before it is open: blob sinks open payloads themselves, and routes subscribe by what
	// their sinks can do.
	var ingest sinks.Ingest
	switch {
	case s.config.NATS != nil:
		ingest = s.config.NATS.Ingest
	case s.config.Kafka != nil:
		ingest = s.config.Kafka.Ingest
	}
	d := sinks.Description{
		OpensPayloads: s.config.Blob != nil, Pipelined: ingest == sinks.IngestPipelined,
	}
	if s.config.NATS != nil || s.config.Kafka != nil { // which have no marshalers of their own here
		d.ReadOnly = s
	}
	if inner, err := s.Get(); err == nil {
		d = sinks.DescribeAs(s, inner)
	}
	d.Name = s.name
	return d
}

// Health implements [sinks.Sink].
func (s *sink) Health(ctx context.Context) error {
	inner, err := s.Get()
	if err != nil {
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	return inner.Health(ctx)
}

// Recovered implements [sinks.Recovering]: it signals that the sink was opened, and then
// what the open sink signals. Blob sinks signal nothing.
func (s *sink) Recovered() <-chan struct{} {
	opened := s.opened.Next() // before checking whether it is
	inner, err := s.Get()
	if err != nil {
		return opened
	}
	if recovering, ok := sinks.As[sinks.Recovering](inner); ok {
		return recovering.Recovered()
	}
	return nil
}

// Survives implements [sinks.Syncing]: the sink has to be open.
func (s *sink) Survives(began, acked time.Time) (bool, error) {
	inner, err := s.Get()
	if err != nil {
		return false, nil //nolint:nilerr // nobody knows yet
	}
	if syncing, ok := sinks.As[sinks.Syncing](inner); ok {
		return syncing.Survives(began, acked)
	}
	return false, nil
}

// Close does nothing: routers close what they publish to, and the sink outlives them.
func (s *sink) Close() error { return nil }

// libraryLogger returns the logger for the packages of agrimill and Watermill. What they
// log at level info the pipeline logs itself, once per change of state.
func (p *Pipeline) libraryLogger(logger *slog.Logger) watermill.LoggerAdapter {
	return warnlog.New(logger, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
}

func closing[T interface{ Close() error }](value T, err error) (T, func() error, error) {
	return value, func() error { return value.Close() }, err
}
