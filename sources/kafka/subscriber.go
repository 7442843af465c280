package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

var _ message.Subscriber = (*Subscriber)(nil)

// joinPolicy is how often to join the group when that fails.
var joinPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Max: 10 * time.Second}

// Subscriber delivers the records of one or more topics as a member of a consumer group, at
// least once. It is safe for concurrent use.
//
// Of one key and partition a record follows the ack of the one before. A nacked message comes again, after a while that
// grows (Config.MaxNackDelay), before those behind it. Messages of different keys are delivered side by side, up to
// Config.MaxInFlight in each partition.
//
// The offset that is committed, every second, is that of the lowest record that is not acked.
// One that is never acked may hold back 100,000 others, or records of 32 MiB of its key or of others that are never acked;
// then its partition is paused until it is acked, and the log says so.
//
// When the group is rebalanced, no more messages of a partition are delivered, and those that are open can still be acked for
// Config.CloseTimeout while the partition is ours. Then, or at once if the partition is lost, because the coordinator says so
// or has not answered for two thirds of the session timeout, their contexts end and their acks are void.
type Subscriber struct {
	config  Config
	logger  watermill.LoggerAdapter
	life    *lifecycle.Life // counts the subscriptions
	reading reading

	// stopped ends when Close begins.
	stopped context.Context
	stop    context.CancelFunc

	maxSpan int             // how many records one may hold back
	state   readstate.State // of the latest subscription
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Subscriber) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "kafka.Subscriber("+s.config.Group+")")
}

// New returns a Subscriber, or an error that matches [ErrConfig]. It does not connect; Subscribe does. A nil logger is silent.
func New(config Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	logger = warnlog.Or(logger).With(watermill.LogFields{"group": config.Group})
	s := &Subscriber{config: config, logger: logger, life: lifecycle.New(), reading: reading{byTopic: map[string]context.Context{}, missed: map[string]bool{}}, maxSpan: defaultMaxSpan}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// subscription is one call of Subscribe, a member of the group.
type subscription struct {
	*Subscriber
	once        once // for what open warns of
	client      sarama.Client
	group       sarama.ConsumerGroup
	groupClient *readable
	topics      []string
	// missing is [ErrNoTopic] if topics are missing since the beginning.
	missing error
	// ends is where the partitions of a new group start with StartNewest; nil otherwise.
	ends   map[string]map[int32]int64
	out    chan *message.Message
	intake context.Context // ends when no more messages are to be taken
	// noted are the notes of the topics that sessions have read.
	noted map[string]string
	// errorAt is when fails was last called, in Unix nanoseconds.
	errorAt atomic.Int64
}

// Subscribe delivers the records that a sink with the same TopicPrefix publishes to a topic; of several, separated by
// commas; or of all of Config.Topics when topic is empty. The error matches [ErrConfig] if the topic is not in a
// Config.Topics that is not empty, or if a subscription that has not ended reads it: another Subscriber of the group
// shares its partitions. While the brokers are unreachable the error matches sinks.ErrUnavailable, and Subscribe can
// be called again; it then blocks for at most Connection.ConnectTimeout for each broker, three times. The same holds
// while none of the topics exists: the error also matches [ErrNoTopic]. While some are missing, or partitions have no
// leader, the subscription reads the others, and waits for them; with Connection.RetryOnFailedConnect for all topics,
// and for the brokers; ReadError says for what. [StartNewest] begins when it has connected, and after an error that
// matches [ErrConfig] the channel is closed. For a coordinator of the group it waits for half a minute.
//
// When ctx ends, no more messages are taken; those that were taken can still be acked for Config.CloseTimeout, and then the
// channel is closed. The same happens on Close. The context of a message carries the values of ctx and ends with the message,
// that timeout, or when its partition is given up. The bytes of its payload are shared with redeliveries: replace them, do
// not write to them.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	intake, stopIntake := context.WithCancel(ctx)
	sub := &subscription{
		Subscriber: s, once: once{s.logger, map[string]bool{}}, out: make(chan *message.Message),
		noted: map[string]string{}, intake: intake,
	}
	var err error
	if sub.topics, err = s.config.selected(topic); err == nil {
		err = s.reading.add(intake, sub.topics)
	}
	if err == nil {
		err = sub.open()
	}
	switch {
	case err == nil:
		s.state.Reads()
	case s.config.RetryOnFailedConnect && errors.Is(err, sinks.ErrUnavailable):
		s.logger.Error("Kafka consumer group unavailable; retrying", err, nil)
		s.state.Fails(err)
	default:
		stopIntake()
		s.life.Leave()
		return nil, err
	}
	// Ends when ctx does, or on Close, within CloseTimeout and the time that leaving takes.
	go func() {
		defer s.life.Leave()
		defer stopIntake()
		defer context.AfterFunc(s.stopped, stopIntake)()
		defer close(sub.out)
		for n := 0; errors.Is(err, sinks.ErrUnavailable) && joinPolicy.Wait(intake, n) == nil; n++ {
			if err = sub.open(); err != nil {
				s.state.Fails(err)
			} else {
				s.state.Reads()
			}
		}
		switch {
		case err == nil:
			sub.run()
		case intake.Err() == nil:
			s.logger.Error("Kafka subscription cannot work and has ended", err, nil)
		}
	}()
	return sub.out, nil
}

// once is a logger that gives each warning once.
type once struct {
	watermill.LoggerAdapter
	said map[string]bool
}

// Warn implements [warnlog.Warner].
func (o once) Warn(msg string, fields watermill.LogFields) {
	if said := fmt.Sprint(msg, fields); !o.said[said] {
		o.said[said] = true
		warnlog.Warn(o.LoggerAdapter, msg, fields)
	}
}

// open connects for a subscription.
func (s *subscription) open() error {
	client, err := sarama.NewClient(s.config.Brokers, s.config.client())
	if err != nil {
		return s.config.unavailable(err)
	}
	s.missing, err = s.reading.exist(client, s.config, s.topics, s.once)
	if err == nil {
		err = checkGroup(s.intake, client, s.config, s.topics, s.once)
	}
	if err == nil && s.config.Start == StartNewest {
		s.ends, err = newestOffsets(s.intake, client, s.config.Group, s.reading.older(s.topics))
	}
	if err == nil {
		s.groupClient = &readable{Client: client}
		s.group, err = sarama.NewConsumerGroupFromClient(s.config.Group, s.groupClient)
	}
	if err != nil {
		return classified(s.config, errors.Join(err, client.Close()))
	}
	s.client = client
	return nil
}

// selected returns the Kafka topics that Subscribe reads for its argument.
func (c Config) selected(topic string) ([]string, error) {
	var all, topics []string
	for _, topic := range c.Topics {
		all = append(all, kafka.TopicName(c.TopicPrefix, topic))
	}
	switch {
	case topic != "":
	case len(all) == 0:
		return nil, fmt.Errorf("%w: neither Subscribe nor Topics names a topic", ErrConfig)
	default:
		return all, nil
	}
	for topic := range strings.SplitSeq(topic, ",") {
		name := kafka.TopicName(c.TopicPrefix, topic)
		switch {
		case !kafka.ValidTopic(name):
			return nil, fmt.Errorf("%w: topic of Subscribe: "+kafka.TopicRule+", not %q", ErrConfig, topic)
		case len(all) > 0 && !slices.Contains(all, name):
			return nil, fmt.Errorf("%w: Subscribe asks for the topic %s, which is not one of Topics (%s)", ErrConfig, topic, strings.Join(c.Topics, ", "))
		case slices.Contains(topics, name):
			return nil, fmt.Errorf("%w: Subscribe names the topic %s twice", ErrConfig, topic)
		}
		topics = append(topics, name)
	}
	return topics, nil
}

// reading is which topics are read by subscriptions, and until when.
type reading struct {
	mu      sync.Mutex
	byTopic map[string]context.Context // of the subscription, or the one before
	missed  map[string]bool            // were not there when a subscription asked for them
}

// exist returns [ErrNoTopic] if none of the topics exists, or as wait if the subscription has to wait for some.
func (r *reading) exist(client sarama.Client, config Config, topics []string, logger watermill.LoggerAdapter) (wait, err error) {
	partitions, missing, err := partitionsOf(client, topics)
	if err != nil || len(missing) == 0 {
		return nil, nil //nolint:nilerr // the session says it, and tries again
	}
	err = noTopic(client, missing)
	if len(partitions) > 0 || config.RetryOnFailedConnect {
		warnlog.Warn(logger, "Kafka subscription waits for what does not exist", watermill.LogFields{"error": err.Error()})
		return err, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range missing {
		r.missed[topic] = true
	}
	return nil, config.unavailable(err)
}

// older returns the topics that were there when a subscription asked for them first. What is stored in the others was
// stored after it, and [StartNewest] skips nothing of it.
func (r *reading) older(topics []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return r.missed[topic] })
}

// add notes that topics are read until ctx ends, or refuses: each of two subscriptions would get a part of the records.
func (r *reading) add(ctx context.Context, topics []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range topics {
		if reads := r.byTopic[topic]; reads != nil && reads.Err() == nil {
			return fmt.Errorf("%w: another subscription reads the topic %s and would get some of its records; use a Subscriber with another group, or with the same one to share the partitions", ErrConfig, topic)
		}
	}
	for _, topic := range topics {
		r.byTopic[topic] = ctx //nolint:fatcontext // the same for each of them
	}
	return nil
}

// run is a member of the group until intake ends.
func (s *subscription) run() {
	told := make(chan struct{})
	go func() { // ends when the group is closed
		defer close(told)
		for err := range s.group.Errors() {
			s.logger.Info("Kafka consumer group reports an error", watermill.LogFields{"error": err.Error()})
			if notReady(err) {
				continue // it has ended the session, and there is an error of Consume if there is no next one
			}
			s.fails(err)
		}
	}()
	since, reported := time.Now(), false // when there was a session last, and whether its end was
	for n := 0; s.intake.Err() == nil; {
		session, endSession := context.WithCancel(s.intake)
		h := &handler{
			subscription: s, endSession: endSession, missing: s.missing,
			lost: make(chan struct{}), end: make(chan struct{}),
		}
		s.groupClient.planned.Clear()
		err := s.group.Consume(session, s.topics, h)
		endSession()
		if s.intake.Err() != nil {
			break
		}
		if h.begun {
			n, since, reported = 0, time.Now(), false
		}
		if err == nil {
			continue
		}
		if !passes(err, since) {
			s.state.Fails(s.config.unavailable(err))
			if !reported {
				s.logger.Error("Kafka consumer group unavailable; retrying", err, nil)
			}
			reported = true
		}
		_ = joinPolicy.Wait(s.intake, n)
		n++
	}
	if err := errors.Join(s.group.Close(), s.client.Close()); err != nil {
		s.logger.Info("Kafka consumer group was not left; it will miss this member", watermill.LogFields{"reason": err.Error()})
	}
	<-told
}

// quietAfter is for how long there is no error until the group reads again: that of a partition that cannot be read comes
// every two seconds, and nothing says when it is over.
const quietAfter = 10 * time.Second

// fails takes note that something cannot be read although there is a session.
func (s *subscription) fails(err error) {
	s.errorAt.Store(time.Now().UnixNano())
	s.state.Fails(s.config.unavailable(err))
}

// alive takes note that the coordinator knows this member.
func (s *subscription) alive() {
	if time.Since(time.Unix(0, s.errorAt.Load())).Abs() >= quietAfter { // the clock may have been set back
		s.state.Reads()
	}
}

// ReadError returns why nothing can be read, or a partition cannot be, although there is a subscription, which
// retries, and since when. It is nil as long as the group works, and for a subscription that has just begun. It does
// not wait for the brokers.
func (s *Subscriber) ReadError() (since time.Time, err error) { return s.state.ReadError() }

// Close ends all subscriptions: it takes no more messages, waits for those that are open for at most Config.CloseTimeout,
// commits the offsets and leaves the consumer group. What was not acknowledged is delivered again. It is idempotent, all calls
// wait for the first one, and it returns nil.
func (s *Subscriber) Close() error {
	s.life.Close(func() {
		s.stop()
		<-s.life.Idle()
	})
	return nil
}
