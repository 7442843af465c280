// Package brokers asks the brokers of Kafka what a topic has, and reads and writes it, until a context ends.
package brokers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/dialer"
	"github.com/agrimill/agrimill/internal/kafkaclient"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/sinks/kafka"
)

const (
	// attempts is how often a question is asked whose connection is lost: an outage leaves some behind.
	attempts = 5
	// pause is the first wait between them; each further one is twice as long. A topic that was just created, or changes its
	// leader, takes a while.
	pause = 50 * time.Millisecond
)

// Cluster asks the brokers. It connects when it is asked for the first time.
type Cluster struct {
	client   sarama.Client
	producer sarama.SyncProducer
	dialer   *dialer.Dialer
	timeout  time.Duration
	closed   error // after Close
	life     *lifecycle.Life
	stopped  context.Context // ends when Close begins
	stop     context.CancelFunc
}

// New returns a Cluster whose answers take at most timeout, and whose error is closed after Close. configure, unless it is
// nil, changes the configuration of the client, and may make it one that cannot work.
func New(connection kafka.Connection, configure func(*sarama.Config), timeout time.Duration, closed error) (*Cluster, error) {
	k := connection.ClientConfig()
	k.Net.ReadTimeout, k.Net.WriteTimeout = timeout, timeout
	k.Metadata.Full = false         // only what is asked for
	k.Metadata.RefreshFrequency = 0 // only when it is
	k.Metadata.Retry.Max = 0        // by again
	if configure != nil {
		configure(k)
	}
	d := dialer.New(min(connection.ConnectTimeout, timeout))
	kafkaclient.Dial(k, d)
	k.Metadata.AllowAutoTopicCreation = false
	k.Producer.RequiredAcks = sarama.WaitForAll
	k.Producer.Return.Successes, k.Producer.Return.Errors = true, true
	k.Producer.Timeout = max(timeout/2, time.Millisecond)
	client, err := sarama.NewClient(connection.Brokers, k) // it does not connect yet
	if err != nil {
		return nil, err
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	c := &Cluster{client: client, producer: producer, dialer: d, timeout: timeout, closed: closed, life: lifecycle.New()}
	c.stopped, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Close ends everything at once: it waits for no answer. Further calls wait for the first one.
func (c *Cluster) Close() {
	c.life.Close(func() {
		c.stop()
		c.dialer.Shut()
		<-c.life.Idle()
		_, _ = c.producer.Close(), c.client.Close() // what they had to do was given up
	})
}

// Ask calls f with a client, again if a connection was lost. It returns at the latest when ctx ends or the
// timeout is over; what f sets may be read only when it returns nil.
func (c *Cluster) Ask(ctx context.Context, f func(sarama.Client) error) error {
	if !c.life.Enter() {
		return c.closed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	defer context.AfterFunc(c.stopped, cancel)()
	result := make(chan error, 1)
	// sarama knows no contexts: what it does ends with its timeouts, or when the dialer is shut.
	go func() {
		defer c.life.Leave()
		result <- c.again(ctx, f)
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil && c.stopped.Err() != nil {
		return c.closed
	}
	return err
}

func (c *Cluster) again(ctx context.Context, f func(sarama.Client) error) error {
	for i := 1; ; i++ {
		if err := f(c.client); err == nil || i == attempts || !transient(err) || backoff.Sleep(ctx, pause<<(i-1)) != nil {
			return err
		}
	}
}

// transient reports whether the next attempt, which asks for the leaders again, may succeed.
func transient(err error) bool {
	var code sarama.KError
	if !errors.As(err, &code) {
		return !errors.As(err, new(sarama.ConfigurationError))
	}
	switch code {
	case sarama.ErrUnknownTopicOrPartition, sarama.ErrNotLeaderForPartition, sarama.ErrLeaderNotAvailable, sarama.ErrNotController, sarama.ErrReplicaNotAvailable,
		sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrOffsetNotAvailable, sarama.ErrRequestTimedOut, sarama.ErrNetworkException:
		return true
	}
	return false
}

// Send stores records of one topic, inside of Ask.
func (c *Cluster) Send(records []*sarama.ProducerMessage) error {
	// After three attempts without a topic or a leader, sarama's producer fails for ten seconds, whatever there is by then.
	if _, err := c.client.WritablePartitions(records[0].Topic); err != nil {
		return err
	}
	err := c.producer.SendMessages(records)
	var failures sarama.ProducerErrors
	if errors.As(err, &failures) && len(failures) > 0 {
		return failures[0].Err // it does not unwrap
	}
	return err
}

// Create creates a topic of one partition that is compacted, inside of Ask, and waits until it has a leader. No replicas are
// as many as the brokers are configured for.
func Create(ctx context.Context, client sarama.Client, topic string, replicas int16) error {
	compact := "compact"
	detail := &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: cmp.Or(replicas, -1), ConfigEntries: map[string]*string{"cleanup.policy": &compact}}
	return kafkaclient.Create(ctx, client, topic, detail, func() error { return client.RefreshMetadata(topic) })
}

// Topic is what a topic has at one moment: nothing if it does not exist.
type Topic struct {
	// ID is that of the topic, which a topic of the same name that is made later does not have; zero if it is unknown.
	ID         sarama.Uuid
	Partitions []Partition
}

// Partition is what a partition has: the offsets from Oldest up to Newest, exclusively.
type Partition struct {
	ID             int32
	Epoch          int32 // of its leader: each election makes it greater
	Oldest, Newest int64
}

// Look asks what a topic has.
func (c *Cluster) Look(ctx context.Context, topic string) (Topic, error) {
	var at Topic
	err := c.Ask(ctx, func(client sarama.Client) error {
		at = Topic{}
		switch err := client.RefreshMetadata(topic); {
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			return nil
		case err != nil:
			return err
		}
		response, err := kafkaclient.Metadata(client, topic)
		if err != nil {
			return err
		}
		if at.ID, _, err = identity(response, topic); err != nil {
			return err
		}
		partitions, err := client.Partitions(topic)
		if err != nil {
			return err
		}
		for _, partition := range partitions {
			p := Partition{ID: partition}
			if _, p.Epoch, err = client.LeaderAndEpoch(topic, partition); err != nil {
				return err
			}
			if p.Oldest, err = client.GetOffset(topic, partition, sarama.OffsetOldest); err != nil {
				return err
			}
			if p.Newest, err = client.GetOffset(topic, partition, sarama.OffsetNewest); err != nil {
				return err
			}
			at.Partitions = append(at.Partitions, p)
		}
		return nil
	})
	if err != nil {
		return Topic{}, err // at may still be written
	}
	return at, nil
}

// Identify asks the leader of a partition, since others may not answer, for the ID of a topic, see [Topic], and how many partitions it has.
func (c *Cluster) Identify(ctx context.Context, topic string, partition int32) (sarama.Uuid, int32, error) {
	var id sarama.Uuid
	var partitions int32
	err := c.askLeader(ctx, topic, partition, func(client sarama.Client, leader *sarama.Broker) error {
		response, err := leader.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, []string{topic}))
		if err != nil {
			return err
		}
		id, partitions, err = identity(response, topic)
		return err
	})
	if err != nil {
		return sarama.Uuid{}, 0, err // they may still be written
	}
	return id, partitions, nil
}

func identity(response *sarama.MetadataResponse, topic string) (id sarama.Uuid, partitions int32, err error) {
	for _, t := range response.Topics {
		if t.Name == topic && (t.Err == sarama.ErrNoError || t.Err == sarama.ErrReplicaNotAvailable) {
			return t.Uuid, int32(len(t.Partitions)), nil
		}
	}
	return id, 0, sarama.ErrIncompleteResponse
}

// askLeader is Ask with the broker that leads a partition. After an attempt that failed another one may.
func (c *Cluster) askLeader(ctx context.Context, topic string, partition int32, ask func(sarama.Client, *sarama.Broker) error) error {
	failed := false
	return c.Ask(ctx, func(client sarama.Client) error {
		if failed {
			if err := client.RefreshMetadata(topic); err != nil {
				return err
			}
		}
		failed = true
		leader, err := client.Leader(topic, partition)
		if err != nil {
			return err
		}
		_ = leader.Open(client.Config()) // an error shows when it is asked
		return ask(client, leader)
	})
}

var errBehind = errors.New("the leader has not caught up yet with the former one")

// Fetch returns records of a partition from an offset on, and the offset after them, which is the one that was
// asked for if there is none yet. What is deleted already is skipped. An offset beyond the end, as when the topic was made
// again, is [sarama.ErrOffsetOutOfRange]. A leader whose end is before that of [Partition.Newest], 0 for unknown, is asked again: it
// has just become the leader.
func (c *Cluster) Fetch(ctx context.Context, topic string, partition int32, offset, newest int64, size int32) ([]*sarama.ConsumerMessage, int64, error) {
	var records []*sarama.ConsumerMessage
	var next int64
	err := c.askLeader(ctx, topic, partition, func(client sarama.Client, leader *sarama.Broker) error {
		records, next = nil, offset
		// Version 10 is that of brokers from 2.1 on. Without a session: each request is for itself. No MinBytes: the
		// broker waits only for what it keeps elsewhere, since all that follows on the connection would wait for new records, too.
		request := &sarama.FetchRequest{Version: 10, MaxBytes: size, MaxWaitTime: int32(c.timeout / 2 / time.Millisecond), SessionEpoch: -1}
		request.AddBlock(topic, partition, offset, size, -1)
		response, err := leader.Fetch(request)
		if err != nil {
			return err
		}
		block := response.GetBlock(topic, partition)
		if block == nil {
			return sarama.ErrIncompleteResponse
		}
		if block.Err == sarama.ErrOffsetOutOfRange {
			if next, err = client.GetOffset(topic, partition, sarama.OffsetOldest); err != nil || next > offset {
				return err
			}
		}
		if block.Err != sarama.ErrNoError {
			return block.Err
		}
		if block.HighWaterMarkOffset < newest {
			return errBehind
		}
		for _, set := range block.RecordsSet {
			batch := set.RecordBatch
			if batch == nil {
				return errors.New("the records have a format of Kafka before 0.11")
			}
			if batch.PartialTrailingRecord {
				break // what did not fit
			}
			if !batch.Control {
				records = append(records, messages(topic, partition, batch, offset)...)
			}
			next = max(next, batch.FirstOffset+int64(batch.LastOffsetDelta)+1)
		}
		return nil
	})
	if err != nil {
		return nil, 0, err // they may still be written
	}
	return records, next, nil
}

// maxFetch is how many bytes Read asks for at once. A larger batch of records comes whole.
const maxFetch = 4 << 20

// Read takes the records of a partition from an offset on to its end, each time with the offset after them, and returns that
// of the last ones.
func (c *Cluster) Read(ctx context.Context, topic string, p Partition, offset int64, take func(records []*sarama.ConsumerMessage, next int64)) (int64, error) {
	for offset = max(offset, p.Oldest); offset < p.Newest; {
		records, next, err := c.Fetch(ctx, topic, p.ID, offset, p.Newest, maxFetch)
		if err != nil {
			return offset, err
		}
		if next == offset {
			next = p.Newest // the last records were compacted away
		}
		offset = next
		take(records, next)
	}
	return offset, nil
}

// messages returns the records of a batch from an offset on.
func messages(topic string, partition int32, batch *sarama.RecordBatch, from int64) []*sarama.ConsumerMessage {
	var list []*sarama.ConsumerMessage
	for _, record := range batch.Records {
		m := &sarama.ConsumerMessage{
			Topic: topic, Partition: partition, Offset: batch.FirstOffset + record.OffsetDelta,
			Key: record.Key, Value: record.Value, Headers: record.Headers, Timestamp: batch.FirstTimestamp.Add(record.TimestampDelta),
		}
		if batch.LogAppendTime {
			m.Timestamp = batch.MaxTimestamp
		}
		if m.Offset >= from {
			list = append(list, m)
		}
	}
	return list
}
