package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/semaphore"

	"github.com/agrimill/agrimill/internal/dialer"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

var (
	_ sinks.Sink        = (*Sink)(nil)
	_ sinks.Recovering  = (*Sink)(nil)
	_ message.Publisher = (*Sink)(nil)

	// errTimeout is the cause of ErrUnavailable when PublishTimeout is over.
	errTimeout = errors.New("no acknowledgment in time")
)

// Sink stores messages in Kafka topics. It is safe for concurrent use.
type Sink struct {
	config  Config
	logger  watermill.LoggerAdapter
	dialer  *dialer.Dialer
	cluster *cluster
	opening *opening.Opening                  // of the cluster
	brokers atomic.Pointer[settings]          // of a broker when last looked
	weakest atomic.Pointer[sinks.Description] // durability of the weakest topic so far
	warned  sync.Map                          // texts of warnings

	pending   *semaphore.Weighted // bytes, see delivery.room
	deadlines deadlines

	knownTopics
	producersMu sync.Mutex
	producers   map[producerKey]*producer
	recovery
	tails tails

	life *lifecycle.Life

	// background ends when Close stops waiting: calls under way give up.
	background context.Context
	stop       func()
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Sink) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "kafka.Sink("+s.config.Name+")")
}

// New connects and returns the sink. It logs warnings where the brokers' settings promise less than "what is acknowledged is
// not lost"; those of topics follow when their first messages come. A nil logger is silent.
//
// Errors wrap [ErrConfig], or sinks.ErrUnavailable when no broker can be reached
// or the cluster refuses. With Connection.RetryOnFailedConnect they wrap ErrConfig only: whatever else is the
// matter is logged, New succeeds, and the sink goes on trying; until a broker has answered, Publish and Health
// fail with sinks.ErrUnavailable, [sinks.ErrNotConnected] and the reason. Once connected, the sink reconnects without end.
func New(config Config, logger watermill.LoggerAdapter) (*Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	config.Brokers = slices.Clone(config.Brokers)
	config.TopicConfig = maps.Clone(config.TopicConfig)
	if config.CloudEvents != nil {
		mapping, err := cloudevents.New(*config.CloudEvents)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		config.Marshaler = Marshaler{CloudEvents: mapping}
	}
	s := &Sink{
		config:      config,
		logger:      warnlog.Or(logger),
		dialer:      dialer.New(config.ConnectTimeout),
		pending:     semaphore.NewWeighted(config.MaxPendingBytes),
		knownTopics: knownTopics{byTopic: map[string]*knownTopic{}},
		producers:   map[producerKey]*producer{},
		tails:       tails{ends: map[partition]int64{}},
		life:        lifecycle.New(),
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if err := s.start(); err != nil {
		s.stop()
		s.dialer.Shut()
		return nil, err
	}
	return s, nil
}

// start connects and looks at the brokers.
func (s *Sink) start() error {
	k := s.config.sarama(s.dialer)
	k.Metadata.RefreshFrequency = 0 // asked when needed
	k.Metadata.Retry.Max = 0        // by cluster, which looks at contexts
	client, err := sarama.NewClient(s.config.Brokers, k)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err) // it does not connect yet
	}
	s.cluster = &cluster{client: client}
	s.opening = opening.New(s.open, s.logger)
	err = s.opening.Try(s.background)
	if s.config.RetryOnFailedConnect {
		s.opening.Start(s.background, func(context.Context) { s.recovered.Raise() })
		return nil
	}
	if err != nil {
		_ = client.Close()
		return sinks.NewError(s.config.Name, "", sinks.ErrUnavailable, err)
	}
	return nil
}

// open looks at the brokers. Its context does not matter: sarama knows none, and ends when the dialer is shut.
func (s *Sink) open(context.Context) error {
	have, err := s.cluster.brokers()
	if err != nil {
		return err
	}
	s.brokers.Store(&have)

	switch {
	case !have.known:
		s.warn(nil, "not allowed to read the settings of the brokers, so there are no warnings about them; grant DescribeConfigs on the cluster")
	case s.config.Provision == ProvisionCreate:
		s.warn(nil, s.newTopics().weaknesses()...)
	}
	if have.autoCreate {
		s.warn(nil, "auto.create.topics.enable: other clients create topics with the brokers' settings by mistake; set it to false")
	}
	return nil
}

// newTopics returns the settings of topics that the sink would create.
func (s *Sink) newTopics() *settings {
	have := *s.brokers.Load()
	if s.config.ReplicationFactor > 0 {
		have.replicationFactor = int(s.config.ReplicationFactor)
	}
	for name, value := range s.config.TopicConfig {
		have.set(name, value)
	}
	return &have
}

// Describe returns the name, the size limit (headers included) that topics have
// by default, and the durability of the weakest topic written to so far; before
// the first message, that of topics to be created. Limit and durability are unknown until a broker has answered.
func (s *Sink) Describe() sinks.Description {
	d := sinks.Description{
		Name: s.config.Name, Ordered: true, Pipelined: s.config.Ingest == sinks.IngestPipelined,
	}
	if _, ours := s.config.Marshaler.(Marshaler); ours { // another one may change messages
		d.ReadOnly = s
	}
	if s.opening.Err() != nil {
		return d
	}
	d.MaxMessageSize = int64(s.maxMessageSize(s.brokers.Load()))
	d.Synced = s.config.Synced
	switch weakest := s.weakest.Load(); {
	case weakest != nil:
		d.Durability, d.DurabilityNote = weakest.Durability, weakest.DurabilityNote
		d.Synced = synced(weakest.Durability, s.config.Synced)
	case s.config.Provision == ProvisionCreate:
		d.Durability, d.DurabilityNote = s.newTopics().durability("a new topic")
	}
	return d
}

// TopicSegment is the function [TopicSegment].
func (s *Sink) TopicSegment(value string) string { return TopicSegment(value) }

// CheckTopic implements [sinks.Topics].
func (s *Sink) CheckTopic(topic string) error { return s.config.CheckTopic(topic) }

// Publish stores the messages in the topic TopicPrefix.topic, in their order as far as they go to the same partition, and
// returns nil when every replica in sync has each of them. They are sent without waiting for each other's acknowledgment, so an
// error may leave a gap in the order.
//
// Without an acknowledgment within Config.PublishTimeout, and for whatever the cluster's state is to blame, the error is
// sinks.ErrUnavailable. A topic that Kafka does not take as a name, and a message that the topic's settings forbid, are
// sinks.ErrRejected; a message above the topic's limit is sinks.ErrTooLarge. All messages of the call are checked before the
// first is sent.
func (s *Sink) Publish(topic string, messages ...*message.Message) error {
	if !s.life.Enter() {
		return sinks.NewError(s.config.Name, topic, sinks.ErrClosed, nil)
	}
	defer s.life.Leave()
	if len(messages) == 0 {
		return nil
	}
	var room [1]*sinks.Publication
	publications, err := s.begin(topic, messages, room[:0])
	return sinks.Await(messages, publications, err)
}

// PublishAsync gives the message its place behind all others of its partition, and blocks while as many are under way as
// Config.MaxPending and Config.MaxPendingBytes allow, until the topic is known, and for Config.PublishTimeout at most. The
// receipt has topic, partition and offset. See [sinks.Description].Ordered for what holds after a failure.
func (s *Sink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	if !s.life.Enter() {
		return nil, sinks.NewError(s.config.Name, topic, sinks.ErrClosed, nil)
	}
	defer s.life.Leave()
	var room [1]*sinks.Publication
	publications, err := s.begin(topic, []*message.Message{msg}, room[:0])
	if err != nil {
		return nil, err
	}
	return publications[0], nil
}

// Recovered implements [sinks.Recovering]: after an error that is [sinks.ErrUnavailable], the sink asks the cluster once
// a second whether messages can be stored, as Health does, until they can.
func (s *Sink) Recovered() <-chan struct{} { return s.recovered.Next() }

// Close waits up to Config.CloseTimeout for calls that are under way; those that are not done then return sinks.ErrClosed, and
// their messages may or may not be stored. It always returns nil; all calls wait for the first one. A nil Sink has nothing to
// close.
func (s *Sink) Close() error {
	if s == nil {
		return nil
	}
	s.life.Close(s.end)
	return nil
}

// end is Close, once.
func (s *Sink) end() {
	giveUp := func() {
		s.stop() // makes the last call give up
		s.dialer.Shut()
	}
	timer := time.AfterFunc(s.config.CloseTimeout, func() {
		s.logger.Info("Kafka sink closing with publishes in flight", nil)
		giveUp()
	})
	<-s.life.Idle()
	// A producer may still have messages whose callers gave up. It ends without connections at the latest.
	var producers sync.WaitGroup
	for _, p := range s.producers { // nobody else is left
		producers.Go(p.close)
	}
	producers.Wait()
	timer.Stop()
	giveUp() // ends a look that is under way
	s.opening.Stop(context.Background())
	s.watchers.Wait()
	s.deadlines.stop()
	_ = s.cluster.client.Close()
}
