// Package poisonqueue lists, shows and deletes messages of the poison queue that a Kafka sink has written, without a consumer
// group, so nothing is taken off by looking. Router.Replay and router.DeletePoisoned do the rest.
//
// Kafka cannot delete one record. What is deleted is recorded in a second topic, which is
// compacted, and is not in the queue anymore for every Queue of these topics. The record itself
// stays in Kafka, for everybody who reads the topic, until the topic's retention ends it.
package poisonqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/internal/brokers"
)

// DefaultTimeout is the default of [Config.Timeout].
const DefaultTimeout = 5 * time.Second

var (
	// ErrConfig is matched by the errors of [Config.Validate].
	ErrConfig = final.New("poisonqueue: invalid configuration")
	// ErrClosed says that the Queue was closed.
	ErrClosed = errors.New("poisonqueue: the queue is closed")
)

// Config configures a [Queue].
type Config struct {
	// Connection says how to connect. Its Brokers are required. ConnectTimeout is at most Timeout.
	kafka.Connection
	// TopicPrefix is that of the sink's Config. Empty means [kafka.DefaultTopicPrefix];
	// [kafka.NoTopicPrefix] none.
	TopicPrefix string
	// Topic is router.Config.PoisonTopic. Empty means [router.DefaultPoisonTopic].
	Topic string
	// Provision says what the first deletion does if the topic does not exist that has what was deleted, that of the queue with
	// the suffix -handled: create it, compacted, with one partition, or fail.
	Provision kafka.Provision
	// ReplicationFactor of that topic, if it is created. 0 means what the brokers are configured for; negative is an error.
	ReplicationFactor int16
	// Unmarshaler reads the messages. Nil means [kafka.Marshaler].
	Unmarshaler wmkafka.Unmarshaler
	// Timeout bounds each request to the cluster. 0 means [DefaultTimeout]; negative is an error.
	Timeout time.Duration
	// Configure changes the configuration of the Kafka client, as that of the sink's Config. Nil means no changes.
	Configure func(*sarama.Config)
}

func (c *Config) setDefaults() {
	c.Connection = c.Connection.WithDefaults()
	c.Topic = cmp.Or(c.Topic, router.DefaultPoisonTopic)
	if c.Unmarshaler == nil {
		c.Unmarshaler = kafka.Marshaler{}
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
}

// topic returns the Kafka topic of the queue, and handled that of what was deleted.
func (c *Config) topic() string   { return kafka.TopicName(c.TopicPrefix, c.Topic) }
func (c *Config) handled() string { return c.topic() + "-handled" }

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c.setDefaults()
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(kafka.ValidTopic(c.topic()) && kafka.ValidTopic(c.handled()), "Topic", kafka.TopicRule)
	e.Check(c.Provision == kafka.ProvisionCreate || c.Provision == kafka.ProvisionNone, "Provision", "must be one of the named constants")
	validate.NotNegative(&e, "ReplicationFactor", c.ReplicationFactor)
	validate.NotNegative(&e, "Timeout", c.Timeout)
	return e.Err(ErrConfig)
}

// Queue is a [router.PoisonStore]. The ID of a message is its partition, its offset and a digest, as in 0-17-3f2a9c01: a
// message that gets the place of another one has another ID. It is safe for concurrent use, and has to be closed.
//
// What is deleted is remembered as long as the topic has the record, and belongs to the topic that it was deleted from: one
// that was deleted and made again, or copied from another cluster, begins with everything that it has. Brokers before 2.8, or a
// Connection with such a Version, do not tell the difference. A record that gets the place of a deleted one, after an unclean
// election of a leader, is in the queue: after each election what was deleted is read once more and compared.
type Queue struct {
	config  Config
	topic   string
	cluster *brokers.Cluster
	handled *handled
}

var _ router.PoisonStore = (*Queue)(nil)

// Format writes what it is, for every verb, and nothing of its configuration.
func (q *Queue) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "poisonqueue.Queue") }

// New returns a Queue. It does not ask the cluster; the error matches [ErrConfig].
func New(config Config) (*Queue, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	cluster, err := brokers.New(config.Connection, config.Configure, config.Timeout, ErrClosed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Queue{config: config, topic: config.topic(), cluster: cluster, handled: newHandled(cluster, config)}, nil
}

// Depth returns how many messages are in the queue. It asks the cluster, and does not read the
// messages: a record that got the place of a deleted one counts once Oldest or Messages has come by.
func (q *Queue) Depth(ctx context.Context) (int64, error) {
	at, err := q.look(ctx)
	if err != nil {
		return 0, err
	}
	var depth int64
	for _, p := range at.Partitions {
		depth += p.Newest - p.Oldest - q.handled.count(p)
	}
	return depth, nil
}

// Oldest returns when the message that has been in the queue for longest was put there; zero if the queue is empty.
func (q *Queue) Oldest(ctx context.Context) (time.Time, error) {
	at, err := q.look(ctx)
	if err != nil {
		return time.Time{}, err
	}
	for record, err := range q.records(ctx, at, 1) {
		if err != nil {
			return time.Time{}, err
		}
		return record.Timestamp, nil
	}
	return time.Time{}, nil
}

// Messages implements [router.PoisonStore]. The records of several partitions are in the order of their timestamps.
func (q *Queue) Messages(ctx context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		at, err := q.look(ctx)
		if err != nil {
			yield(router.Poisoned{}, err)
			return
		}
		for record, err := range q.records(ctx, at, max(maxFetch/max(1, int32(len(at.Partitions))), minFetch)) {
			var poisoned router.Poisoned
			if err == nil {
				poisoned, err = q.poisoned(record)
			}
			if !yield(poisoned, err) || err != nil {
				return
			}
		}
	}
}

// Get implements [router.PoisonStore].
func (q *Queue) Get(ctx context.Context, id string) (router.Poisoned, error) {
	record, _, err := q.lookUp(ctx, id)
	if err != nil {
		return router.Poisoned{}, err
	}
	return q.poisoned(record)
}

// Delete implements [router.PoisonStore]. It returns when all in-sync replicas know that the message is not
// in the queue anymore. Of several that delete the same message at the same time, each may succeed.
func (q *Queue) Delete(ctx context.Context, id string) error {
	record, found, err := q.lookUp(ctx, id)
	if err != nil {
		return err
	}
	return q.handled.add(ctx, place{record.Partition, record.Offset}, found)
}

// Close closes the connections. It waits for no answer, and returns nil. What is under way fails with [ErrClosed].
func (q *Queue) Close() error {
	q.cluster.Close()
	return nil
}

// look returns what the topic has, with what was deleted up to now in handled.
func (q *Queue) look(ctx context.Context) (brokers.Topic, error) {
	at, err := q.cluster.Look(ctx, q.topic)
	if err == nil {
		err = q.handled.refresh(ctx, at)
	}
	return at, q.wrap(err)
}

// lookUp returns the message with an ID, and what is to be remembered if it is deleted.
func (q *Queue) lookUp(ctx context.Context, id string) (*sarama.ConsumerMessage, mark, error) {
	wanted, ok := placeOf(id)
	if !ok {
		return nil, mark{}, router.ErrNotInQueue
	}
	at, err := q.look(ctx)
	if err != nil {
		return nil, mark{}, err
	}
	i := slices.IndexFunc(at.Partitions, func(p brokers.Partition) bool {
		return p.ID == wanted.partition && p.Oldest <= wanted.offset && wanted.offset < p.Newest
	})
	if i < 0 {
		return nil, mark{}, router.ErrNotInQueue
	}
	found := mark{at.ID, at.Partitions[i].Epoch, ""}
	records, _, err := q.cluster.Fetch(ctx, q.topic, wanted.partition, wanted.offset, wanted.offset+1, 1)
	switch {
	case errors.Is(err, sarama.ErrOffsetOutOfRange):
		return nil, mark{}, router.ErrNotInQueue
	case err != nil:
		return nil, mark{}, q.wrap(err)
	case len(records) == 0 || messageID(records[0]) != id || q.handled.deleted(wanted, records[0], found.epoch):
		return nil, mark{}, router.ErrNotInQueue
	}
	found.record = digest(records[0])
	return records[0], found, nil
}

func (q *Queue) poisoned(record *sarama.ConsumerMessage) (router.Poisoned, error) {
	id := messageID(record)
	msg, err := msgctx.Unmarshaled(q.config.Unmarshaler.Unmarshal(record))
	if err != nil {
		return router.Poisoned{}, fmt.Errorf("poisonqueue: message %s: %w", id, err)
	}
	poisoned, _ := router.ParsePoisoned(msg)
	poisoned.ID = id
	return poisoned, nil
}

func (q *Queue) wrap(err error) error {
	if err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("poisonqueue: topic %s: %w", q.topic, err)
}

// place is where a record is.
type place struct {
	partition int32
	offset    int64
}

func (p place) String() string { return fmt.Sprintf("%d-%d", p.partition, p.offset) }

// parsePlace reads what String returns, and nothing else.
func parsePlace(id string) (place, bool) {
	partition, offset, _ := strings.Cut(id, "-")
	n, err1 := strconv.ParseInt(partition, 10, 32)
	o, err2 := strconv.ParseInt(offset, 10, 64)
	p := place{int32(n), o}
	return p, err1 == nil && err2 == nil && n >= 0 && o >= 0 && p.String() == id
}

// ValidID reports whether a text can be an ID of a [Queue].
func ValidID(id string) bool { _, ok := placeOf(id); return ok }

// messageID returns the ID of a record. The place alone would name another one once the topic was made again.
func messageID(r *sarama.ConsumerMessage) string {
	return place{r.Partition, r.Offset}.String() + "-" + digest(r)
}

// placeOf returns where the record with an ID was.
func placeOf(id string) (place, bool) {
	return parsePlace(id[:max(0, strings.LastIndexByte(id, '-'))])
}

const (
	// maxFetch is how many bytes are read ahead of all partitions together, and minFetch of each at least. A
	// larger batch of records comes whole.
	maxFetch int32 = 4 << 20
	minFetch int32 = 64 << 10
)

// records returns what is in the queue, what was stored first first. It fetches so many bytes of a partition at a time.
func (q *Queue) records(ctx context.Context, at brokers.Topic, size int32) iter.Seq2[*sarama.ConsumerMessage, error] {
	type reader struct {
		brokers.Partition
		next func() (*sarama.ConsumerMessage, error, bool)
		head *sarama.ConsumerMessage // nil: at the end
	}
	return func(yield func(*sarama.ConsumerMessage, error) bool) {
		var readers []*reader
		for _, p := range at.Partitions {
			next, stop := iter.Pull2(q.partition(ctx, p, size))
			defer stop()
			readers = append(readers, &reader{Partition: p, next: next})
		}
		for {
			var first *reader
			for _, r := range readers {
				for ok := true; ok && (r.head == nil || q.handled.deleted(place{r.ID, r.head.Offset}, r.head, r.Epoch)); {
					var err error
					if r.head, err, ok = r.next(); err != nil {
						yield(nil, q.wrap(err))
						return
					}
				}
				if r.head != nil && (first == nil || r.head.Timestamp.Before(first.head.Timestamp)) {
					first = r
				}
			}
			if first == nil {
				return
			}
			record := first.head
			first.head = nil
			if !yield(record, nil) {
				return
			}
		}
	}
}

// partition returns the records of a partition, without those that were surely deleted.
func (q *Queue) partition(ctx context.Context, p brokers.Partition, size int32) iter.Seq2[*sarama.ConsumerMessage, error] {
	return func(yield func(*sarama.ConsumerMessage, error) bool) {
		for next := p.Oldest; next < p.Newest; {
			marked, sure := q.handled.has(place{p.ID, next})
			if sure {
				next++
				continue
			}
			if marked { // probably one of many that have to be compared
				size = max(size, minFetch)
			}
			records, after, err := q.cluster.Fetch(ctx, q.topic, p.ID, next, p.Newest, size)
			switch {
			case errors.Is(err, sarama.ErrOffsetOutOfRange):
				return // another topic, of which nothing was to be read
			case err != nil:
				yield(nil, err)
				return
			}
			for _, record := range records {
				if record.Offset >= p.Newest || !yield(record, nil) {
					return
				}
			}
			if after == next {
				return // nothing follows, such as at the end of a compacted topic
			}
			next = after
		}
	}
}
