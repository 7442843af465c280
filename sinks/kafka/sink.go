package kafka

import (
	"bytes"
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
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/semaphore"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

var (
	_ sinks.Sink        = (*Sink)(nil)
	_ sinks.Recovering  = (*Sink)(nil)
	_ message.Publisher = (*Sink)(nil)

	// errTimeout is the cause of ErrUnavailable when PublishTimeout is over.
	errTimeout = errors.New("no acknowledgement in time")
)

// Sink stores messages in Kafka topics. It is safe for concurrent use.
type Sink struct {
	config  Config
	logger  watermill.LoggerAdapter
	dialer  *dialer
	cluster *cluster
	brokers atomic.Pointer[settings] // of a broker when last looked

	pending      *semaphore.Weighted // messages
	pendingBytes *semaphore.Weighted
	deadlines    deadlines

	topicsMu sync.Mutex
	topics   map[string]*topic
	names    map[string]string // of those that were found, by the topic of the call
	lanes    map[string]*lane  // the last ones
	flights  map[string]*flight
	alone    map[string]time.Time

	producersMu sync.Mutex
	producers   map[producerKey]*producer

	durabilityMu sync.Mutex
	weakest      *sinks.Description // durability of the weakest topic so far
	warned       map[string]bool

	recovered wakeup.Signal
	watching  atomic.Bool  // a goroutine looks whether the cluster is back
	unreached atomic.Bool  // a message failed since without an answer
	told      atomic.Int32 // how often it was told since the last success
	watchers  sync.WaitGroup

	life *lifecycle.Life

	// background ends when Close stops waiting: calls under way give up.
	background context.Context
	stop       context.CancelFunc
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Sink) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "kafka.Sink("+s.config.Name+")")
}

// New connects and returns the sink. It logs warnings where the brokers'
// settings promise less than "what is acknowledged is not lost"; those of topics
// follow when their first messages come. A nil logger is silent.
//
// Errors wrap [ErrConfig], or sinks.ErrUnavailable when no broker can be reached
// or the cluster refuses; then calling New again later may help. Once New
// succeeded, the sink reconnects without end.
func New(config Config, logger watermill.LoggerAdapter) (*Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	config.Brokers = slices.Clone(config.Brokers)
	config.TopicConfig = maps.Clone(config.TopicConfig)
	if config.CloudEvents != nil {
		mapping, err := cloudevents.New(*config.CloudEvents)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		config.Marshaler = Marshaler{CloudEvents: mapping}
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	s := &Sink{
		config:       config,
		logger:       logger,
		dialer:       newDialer(context.Background(), config.ConnectTimeout),
		pending:      semaphore.NewWeighted(int64(config.MaxPending)),
		pendingBytes: semaphore.NewWeighted(config.MaxPendingBytes),
		topics:       map[string]*topic{},
		names:        map[string]string{},
		lanes:        map[string]*lane{},
		flights:      map[string]*flight{},
		alone:        map[string]time.Time{},
		producers:    map[producerKey]*producer{},
		warned:       map[string]bool{},
		life:         lifecycle.New(),
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if err := s.start(); err != nil {
		s.stop()
		s.dialer.shut()
		return nil, err
	}
	return s, nil
}

// start connects and looks at the brokers.
func (s *Sink) start() error {
	k := s.config.sarama(s.dialer)
	k.Metadata.RefreshFrequency = 0 // asked when needed
	k.Metadata.Retry.Max = 0        // by cluster, which looks at contexts
	if err := k.Validate(); err != nil {
		return fmt.Errorf("%w: Configure: %w", ErrConfig, err)
	}
	client, err := sarama.NewClient(s.config.Brokers, k)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err) // it does not connect yet
	}
	s.cluster = &cluster{client: client}
	have, err := s.cluster.brokers()
	if err != nil {
		_ = client.Close()
		return sinks.NewError(s.config.Name, "", sinks.ErrUnavailable, err)
	}
	s.brokers.Store(&have)

	switch {
	case !have.known:
		s.warn("not allowed to read the settings of the brokers, so there are no warnings about them; grant DescribeConfigs on the cluster", nil)
	case s.config.Provision == ProvisionCreate:
		s.warnSettings(s.newTopics(), nil)
	}
	if have.autoCreate {
		s.warn("auto.create.topics.enable: other clients create topics with the brokers' settings by mistake; set it to false", nil)
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
// the first message, that of topics to be created.
func (s *Sink) Describe() sinks.Description {
	_, ours := s.config.Marshaler.(Marshaler) // another one may change messages
	d := sinks.Description{
		Name: s.config.Name, ReadOnly: ours, Ordered: true, Pipelined: s.config.Ingest == sinks.IngestPipelined,
		MaxMessageSize: int64(s.maxMessageSize(s.brokers.Load())),
	}
	s.durabilityMu.Lock()
	weakest := s.weakest
	s.durabilityMu.Unlock()
	d.Synced = s.config.Synced
	switch {
	case weakest != nil:
		d.Durability, d.DurabilityNote = weakest.Durability, weakest.DurabilityNote
		d.Synced = synced(weakest.Durability, s.config.Synced)
	case s.config.Provision == ProvisionCreate:
		d.Durability, d.DurabilityNote = durability(s.newTopics(), "a new topic")
	}
	return d
}

// TopicSegment is the function [TopicSegment].
func (s *Sink) TopicSegment(value string) string { return TopicSegment(value) }

// CheckTopic implements [sinks.Topics].
func (s *Sink) CheckTopic(topic string) error { return s.config.CheckTopic(topic) }

// Publish stores the messages in the topic TopicPrefix.topic, in their order as
// far as they go to the same partition, and returns nil when every replica in
// sync has each of them. They are sent without waiting for each other's
// acknowledgement, like those of concurrent calls, so an error may leave a gap in
// the order.
//
// Without a leader, without an acknowledgement within Config.PublishTimeout, and
// for whatever the cluster's state is to blame, the error is
// sinks.ErrUnavailable. A topic that Kafka does not take as a name, and a message
// that the topic's settings forbid, are sinks.ErrRejected; a message above the
// topic's limit is sinks.ErrTooLarge. Names and sizes of all messages of the
// call are checked before the first is sent. See [sinks.Sink] for the rest.
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

// PublishAsync gives the message its place behind all others of its partition, and
// blocks while as many are under way as Config.MaxPending and Config.MaxPendingBytes
// allow, until the topic is known, and for Config.PublishTimeout at most. The receipt
// has topic, partition and offset. After a batch was refused, and when the topic's
// limit has changed, messages go through another producer, as soon as the one before has
// nothing left of the topic; see [sinks.Description].Ordered for what holds after a failure.
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

// begin checks all messages before it gives the first its place. Its error is the
// reason why there are fewer publications than messages.
func (s *Sink) begin(topic string, messages []*message.Message, publications []*sinks.Publication) ([]*sinks.Publication, error) {
	w := wait{sink: s, topic: topic}
	if err := w.begin(messages); err != nil {
		return nil, err
	}
	defer w.end()
	var room [1]*delivery
	deliveries, t, err := s.prepare(&w, topic, messages, room[:0])
	if err == nil {
		defer t.lane.life.Leave()
	}
	for _, d := range deliveries {
		if err != nil {
			break
		}
		d.known = t
		if err = s.send(&w, d); err == nil {
			publications = append(publications, &d.Publication)
		}
	}
	if err != nil {
		err = s.noteFailure(w.err(err))
	}
	return publications, err
}

// noteFailure has the cluster watched when err is an outage.
func (s *Sink) noteFailure(err error) error {
	if errors.Is(err, sinks.ErrUnavailable) {
		if unanswered(err) {
			s.unreached.Store(true)
		}
		s.watch()
	}
	return err
}

const (
	// watchEvery is how often the sink looks in an outage whether the cluster is back.
	watchEvery = time.Second
	// maxTold is how often it tells that it is, when messages still cannot be stored:
	// a broker that has just started is not ready for everything at once.
	maxTold = 10
)

// Recovered implements [sinks.Recovering]: after a Publish that failed with
// [sinks.ErrUnavailable], the sink asks the cluster once a second whether messages
// can be stored, as Health does, until they can.
func (s *Sink) Recovered() <-chan struct{} { return s.recovered.Next() }

// watch looks until the cluster is back, in the background. If it has been there all
// the time, it signals nothing: something else fails. The first look may come too late to
// see that it was away, so an error that came without an answer counts as one that did.
func (s *Sink) watch() {
	if !s.watching.CompareAndSwap(false, true) {
		return
	}
	s.watchers.Go(func() { // ends with background, and a look that is under way
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		pause := func() bool {
			select {
			case <-tick.C:
				return true
			case <-s.background.Done():
				return false
			}
		}
		told := s.told.Load()
		away := told > 0 // a moment ago, and it may not be all there yet
		if away && !pause() {
			return
		}
		for s.look() != nil {
			away = true
			if !pause() {
				return
			}
		}
		s.watching.Store(false) // first: who is woken and fails starts another one
		if (s.unreached.Swap(false) || away) && told < maxTold {
			s.told.Add(1)
			s.recovered.Raise()
		}
	})
}

// prepare makes the records and looks whether the topic takes them. The caller is in the
// topic's lane then, and has to leave it. Errors are as they came; wait.err makes those of
// Publish.
func (s *Sink) prepare(w *wait, topic string, messages []*message.Message, deliveries []*delivery) ([]*delivery, *topic, error) {
	name, err := s.topicName(topic)
	if err != nil {
		return nil, nil, err
	}
	largest := 0
	for _, msg := range messages {
		d := &delivery{sink: s, topic: topic, deadline: w.deadline}
		if err := s.marshal(d, name, msg); err != nil {
			return nil, nil, fmt.Errorf("marshaler: %w", sinks.NewError(s.config.Name, name, sinks.ErrRejected, err))
		}
		d.size = recordSize(&d.record)
		deliveries = append(deliveries, d)
		largest = max(largest, d.size)
	}
	t, err := s.waitForTopic(w, name)
	if err != nil {
		return nil, nil, err
	}
	if largest > t.lane.limits.limit && time.Since(t.looked) > staleAfter {
		t.lane.life.Leave()
		s.forget(t) // the limit may have been raised
		if t, err = s.waitForTopic(w, name); err != nil {
			return nil, nil, err
		}
	}
	if largest > t.lane.limits.limit {
		t.lane.life.Leave()
		return nil, nil, sinks.NewError(s.config.Name, name, sinks.ErrTooLarge, tooLarge(largest+batchOverhead, t.limit))
	}
	return deliveries, t, nil
}

// topicName returns the Kafka topic for a topic of the sink.
func (s *Sink) topicName(topic string) (string, error) {
	s.topicsMu.Lock()
	name, ok := s.names[topic]
	s.topicsMu.Unlock()
	if ok {
		return name, nil
	}
	name = s.config.topic(topic)
	return name, checkTopic(name)
}

// marshal makes the record of a message. It shares nothing with the message: the
// producer may still have it when the caller has its message back.
func (s *Sink) marshal(d *delivery, name string, msg *message.Message) error {
	own, ok := s.config.Marshaler.(Marshaler)
	if !ok {
		if err := copyForeign(d, s.config.Marshaler, name, msg); err != nil {
			return err
		}
	}
	// No key is nil, not an empty one: that would be a key like any other,
	// and send all such messages to one partition.
	var key string
	if d.record.Key == nil {
		key = s.config.PartitionKey(msg)
	}
	if ok {
		d.record.Headers, d.value, d.key = own.marshal(msg, key)
		d.record.Value = &d.value
	} else {
		d.key = encoded(key)
	}
	if key != "" {
		d.record.Key = &d.key
	}
	d.record.Topic, d.record.Metadata = name, d
	return nil
}

// copyForeign makes the record with a marshaler whose records may share something with the message, or
// with each other.
func copyForeign(d *delivery, marshaler wmkafka.Marshaler, name string, msg *message.Message) error {
	record, err := marshaler.Marshal(name, msg)
	if err != nil {
		return err
	}
	d.record = *record // what the marshaler returned is its own
	if d.record.Value != nil {
		value, err := record.Value.Encode()
		if err != nil {
			return err
		}
		if value == nil {
			d.record.Value = nil
		} else {
			d.value = append(encoded{}, value...)
			d.record.Value = &d.value
		}
	}
	headers := make([]sarama.RecordHeader, len(record.Headers))
	for i, header := range record.Headers {
		headers[i] = sarama.RecordHeader{Key: bytes.Clone(header.Key), Value: bytes.Clone(header.Value)}
	}
	d.record.Headers = headers
	return nil
}

// waitForTopic returns what is known about a topic, once it is, and enters its lane.
func (s *Sink) waitForTopic(w *wait, name string) (*topic, error) {
	for {
		t, f := s.lookUp(name)
		if f != nil {
			if err := w.until(f.done); err != nil {
				return nil, err
			}
			if f.err != nil {
				return nil, f.err
			}
			t = f.topic
		}
		if t.lane.life.Enter() {
			return t, nil
		}
		// Somebody looks at the topic again, and has closed the lane since.
	}
}

// send hands a message to the producer.
func (s *Sink) send(w *wait, d *delivery) error {
	room := d.room()
	if err := w.acquire(s.pending, 1); err != nil {
		return err
	}
	if err := w.acquire(s.pendingBytes, room); err != nil {
		s.pending.Release(1)
		return err
	}
	// The context may have ended during the waits, and while the record was made.
	if err := w.cause(); err != nil {
		s.pendingBytes.Release(room)
		s.pending.Release(1)
		return err
	}
	s.life.Fork()            // until it is resolved
	d.known.lane.life.Fork() // until the producer is done with it
	s.deadlines.add(d)
	stoppoint.At(stoppoint.Write)
	if err := w.put(d.known.lane.producer.async.Input(), &d.record); err != nil {
		s.deadlines.remove(d)
		d.known.lane.life.Leave()
		s.pendingBytes.Release(room)
		s.pending.Release(1)
		d.end(sinks.Receipt{}, err) // it was not returned
		return err
	}
	return nil
}

// release gives up what a message holds while it is under way, except for its place in the lane.
func (s *Sink) release(d *delivery) {
	s.deadlines.remove(d)
	s.pendingBytes.Release(d.room())
	s.pending.Release(1)
}

// finish is called by the producers for each message they are done with.
func (s *Sink) finish(record *sarama.ProducerMessage, err error) {
	d := record.Metadata.(*delivery)
	s.release(d)
	if err == nil {
		if s.told.Load() != 0 {
			s.told.Store(0)
		}
		d.known.lane.life.Leave()
		stoppoint.At(stoppoint.Stored)
		d.end(sinks.Receipt{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset}, nil)
		return
	}
	err = s.judge(d.known, d.size, err)
	d.known.lane.life.Leave() // now the next look at the topic knows what the error says of it
	d.end(sinks.Receipt{}, s.noteFailure(s.classed(d.topic, err)))
}

// judge looks at what a producer said about a message of this size.
func (s *Sink) judge(t *topic, size int, err error) error {
	if blamesBatch(err) && !t.lane.limits.alone {
		// One message spoils a batch for all others in it, which may be anybody's.
		// What is to blame shows when they come again, one by one. A limit that
		// was lowered shows then too, before anything is sent.
		s.sendAlone(t)
		return sinks.NewError(s.config.Name, t.name, sinks.ErrUnavailable,
			fmt.Errorf("batch refused; its messages are sent individually: %v", err)) //nolint:errorlint // has to match one class only
	}
	if isTooLarge(err) {
		s.forget(t)
		return sinks.NewError(s.config.Name, t.name, sinks.ErrTooLarge, fmt.Errorf("%w: %d bytes", err, size+batchOverhead))
	}
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		s.forget(t) // deleted, so to be created again
	}
	return err
}

// Health asks the brokers for the topics written to so far. It returns nil when
// all their partitions have a leader and enough replicas in sync, or a broker
// answers when there are none; sinks.ErrUnavailable when not, sinks.ErrClosed
// after Close.
func (s *Sink) Health(ctx context.Context) error { return s.ask(ctx, s.look) }

// ask calls f, which asks the cluster, and returns at the latest when ctx ends.
func (s *Sink) ask(ctx context.Context, f func() error) error {
	if !s.life.Enter() {
		return sinks.NewError(s.config.Name, "", sinks.ErrClosed, nil)
	}
	result := make(chan error, 1)
	// sarama knows no contexts; it ends by its time-outs or by Close.
	go func() {
		defer s.life.Leave()
		result <- f()
	}()
	select {
	case err := <-result:
		if err == nil {
			return nil
		}
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		return sinks.NewError(s.config.Name, "", sinks.ErrUnavailable, err)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.background.Done():
		return sinks.NewError(s.config.Name, "", sinks.ErrClosed, nil)
	}
}

// Depth returns how many messages the brokers keep of a topic: of each partition the
// high watermark less the oldest offset. A topic that does not exist has none. In a
// compacted topic, and in one that others write in transactions, there are fewer. It returns at the
// latest when ctx ends; errors are those of Health.
func (s *Sink) Depth(ctx context.Context, topic string) (int64, error) {
	var depth int64
	err := s.ask(ctx, func() (err error) {
		depth, err = s.cluster.depth(s.config.topic(topic))
		return err
	})
	if err != nil {
		return 0, err // depth may still be written
	}
	return depth, nil
}

func (s *Sink) look() error {
	have, err := s.cluster.brokers()
	if err != nil {
		return err
	}
	s.brokers.Store(&have)
	s.topicsMu.Lock()
	topics := slices.Collect(maps.Values(s.topics))
	s.topicsMu.Unlock()
	fresh := s.cluster.refreshAll(topics) == nil // otherwise one by one, to know which
	for _, t := range topics {
		var err error
		if !fresh {
			err = s.cluster.refresh(t.name)
		}
		if err == nil {
			err = s.cluster.writable(t.name, max(1, t.settings.minInSync))
		}
		if errors.Is(err, errNoTopic) && s.config.Provision == ProvisionCreate {
			s.forget(t) // it will be created again
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close waits up to Config.CloseTimeout for calls that are under way; those that
// are not done then return sinks.ErrClosed, and their messages may or may not be
// stored. It always returns nil; all calls wait for the first one. A nil Sink has
// nothing to close.
func (s *Sink) Close() error {
	if s == nil {
		return nil
	}
	s.life.Close(s.end)
	return nil
}

// end is Close, once.
func (s *Sink) end() {
	timer := time.NewTimer(s.config.CloseTimeout)
	defer timer.Stop()
	idle := s.life.Idle() // stop makes the last call give up
	select {
	case <-idle:
	case <-timer.C:
		s.logger.Info("Kafka sink closing with publishes in flight", nil)
		s.stop()
		s.dialer.shut()
		<-idle
	}

	// A producer may still have messages whose callers gave up.
	drained := make(chan struct{})
	// Ends when the producers are drained, at the latest without connections.
	go func() {
		defer close(drained)
		var group sync.WaitGroup
		for _, p := range s.producers { // nobody else is left
			group.Go(p.close)
		}
		group.Wait()
	}()
	select {
	case <-drained:
	case <-timer.C:
	case <-s.background.Done():
	}
	s.stop()
	select {
	case <-drained:
	default:
		s.dialer.shut()
		<-drained
	}
	s.dialer.shut() // ends a look that is under way
	s.watchers.Wait()
	s.deadlines.stop()
	_ = s.cluster.client.Close()
}
