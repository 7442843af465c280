package poisonqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
)

const (
	// attempts is how often a question is asked whose connection is lost: an outage leaves some behind.
	attempts = 5
	// pause is the wait between them.
	pause = 50 * time.Millisecond
	// maxWait is how long a broker may wait for records that it does not have.
	maxWait = 100 * time.Millisecond
)

// cluster asks the brokers. It connects when it is asked for the first time.
type cluster struct {
	brokers []string
	config  *sarama.Config
	timeout time.Duration
	life    *lifecycle.Life
	stopped chan struct{}

	mu       sync.Mutex
	client   sarama.Client       // nil before it is asked for; it does not change then
	producer sarama.SyncProducer // made with the client
	sending  sync.WaitGroup      // calls of the producer
	err      error               // of close
}

func newCluster(c Config) *cluster {
	k := c.ClientConfig()
	k.Net.DialTimeout = min(c.ConnectTimeout, c.Timeout)
	k.Net.ReadTimeout, k.Net.WriteTimeout = c.Timeout, c.Timeout
	k.Metadata.Full = false         // only what is asked for
	k.Metadata.RefreshFrequency = 0 // only when it is
	k.Metadata.Retry.Max = 0        // by again
	if c.Configure != nil {
		c.Configure(k)
	}
	k.Metadata.AllowAutoTopicCreation = false
	k.Producer.RequiredAcks = sarama.WaitForAll
	k.Producer.Return.Successes, k.Producer.Return.Errors = true, true
	k.Producer.Timeout = max(c.Timeout/2, time.Millisecond)
	return &cluster{brokers: c.Brokers, config: k, timeout: c.Timeout, life: lifecycle.New(), stopped: make(chan struct{})}
}

// close ends everything. A connection that is being made is waited for.
func (c *cluster) close() error {
	c.life.Close(func() {
		c.mu.Lock()
		close(c.stopped)
		client, producer := c.client, c.producer
		c.mu.Unlock()
		c.sending.Wait()
		if client != nil {
			c.err = errors.Join(producer.Close(), client.Close())
		}
		<-c.life.Idle()
	})
	return c.err
}

// ask calls f with a client, again if a connection was lost. It returns at the latest when ctx ends or the
// timeout is over; what f sets may be read only when it returns nil.
func (c *cluster) ask(ctx context.Context, f func(sarama.Client) error) error {
	if !c.life.Enter() {
		return ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	result := make(chan error, 1)
	// sarama knows no contexts: what it does ends with its timeouts, or when the client is closed.
	go func() {
		defer c.life.Leave()
		result <- c.again(ctx, f)
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.stopped:
		return ErrClosed
	}
	if errors.Is(err, sarama.ErrClosedClient) {
		return ErrClosed
	}
	return err
}

func (c *cluster) again(ctx context.Context, f func(sarama.Client) error) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	for i := 1; ; i++ {
		if err = f(client); err == nil || i == attempts || !transient(err) || backoff.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// transient reports whether the next attempt, which asks for the leaders again, may succeed.
func transient(err error) bool {
	var code sarama.KError
	if !errors.As(err, &code) {
		return !errors.Is(err, sarama.ErrClosedClient) && !errors.As(err, new(sarama.ConfigurationError))
	}
	switch code {
	case sarama.ErrUnknownTopicOrPartition, sarama.ErrNotLeaderForPartition, sarama.ErrLeaderNotAvailable, sarama.ErrNotController, sarama.ErrReplicaNotAvailable,
		sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrRequestTimedOut, sarama.ErrNetworkException:
		return true
	}
	return false
}

// open returns the client. It does not connect yet.
func (c *cluster) open() (sarama.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.stopped:
		return nil, ErrClosed
	default:
	}
	if c.client == nil {
		client, err := sarama.NewClient(c.brokers, c.config)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		producer, err := sarama.NewSyncProducerFromClient(client)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrConfig, err), client.Close())
		}
		c.client, c.producer = client, producer
	}
	return c.client, nil
}

// send sends records, unless the producer is being closed: in sarama that panics.
func (c *cluster) send(records []*sarama.ProducerMessage) error {
	c.mu.Lock()
	select {
	case <-c.stopped:
		c.mu.Unlock()
		return ErrClosed
	default:
	}
	c.sending.Add(1)
	c.mu.Unlock()
	defer c.sending.Done()
	return c.producer.SendMessages(records)
}

// state is what a topic has at one moment: nothing if it does not exist.
type state struct {
	// id is that of the topic, which a topic of the same name that is made later does not have; zero if it is
	// unknown.
	id         sarama.Uuid
	partitions []extent
}

// extent is what a partition has: the offsets from oldest up to newest, exclusively.
type extent struct {
	id             int32
	epoch          int32 // of its leader: each election makes it greater; unknownEpoch if it is unknown
	oldest, newest int64
}

// unknownEpoch is that of a partition whose brokers do not tell.
const unknownEpoch = -1

// look asks what a topic has.
func (c *cluster) look(ctx context.Context, topic string) (state, error) {
	var at state
	err := c.ask(ctx, func(client sarama.Client) error {
		at = state{}
		switch err := client.RefreshMetadata(topic); {
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			return nil
		case err != nil:
			return err
		}
		var err error
		var epochs map[int32]int32
		if at.id, epochs, err = describe(client, topic); err != nil {
			return err
		}
		partitions, err := client.Partitions(topic)
		if err != nil {
			return err
		}
		for _, partition := range partitions {
			p := extent{id: partition, epoch: unknownEpoch}
			if epoch, ok := epochs[partition]; ok {
				p.epoch = epoch
			}
			if p.oldest, err = client.GetOffset(topic, partition, sarama.OffsetOldest); err != nil {
				return err
			}
			if p.newest, err = client.GetOffset(topic, partition, sarama.OffsetNewest); err != nil {
				return err
			}
			at.partitions = append(at.partitions, p)
		}
		return nil
	})
	if err != nil {
		return state{}, err // at may still be written
	}
	return at, nil
}

// describe asks for the ID of a topic, and for the epochs of the leaders of its partitions.
func describe(client sarama.Client, topic string) (id sarama.Uuid, epochs map[int32]int32, err error) {
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return id, nil, sarama.ErrBrokerNotFound
	}
	_ = broker.Open(client.Config()) // an error shows below
	response, err := broker.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, []string{topic}))
	if err != nil {
		return id, nil, err
	}
	for _, t := range response.Topics {
		switch {
		case t.Name != topic:
		case t.Err != sarama.ErrNoError && t.Err != sarama.ErrReplicaNotAvailable:
			return id, nil, t.Err
		default:
			epochs = make(map[int32]int32, len(t.Partitions))
			for _, p := range t.Partitions {
				epochs[p.ID] = p.LeaderEpoch
			}
			return t.Uuid, epochs, nil
		}
	}
	return id, nil, sarama.ErrIncompleteResponse
}

// fetch returns records of a partition from an offset on, and the offset after them, which is the one that was
// asked for if there is none. What is deleted already is [sarama.ErrOffsetOutOfRange].
func (c *cluster) fetch(ctx context.Context, topic string, partition int32, offset int64, size int32) ([]*sarama.ConsumerMessage, int64, error) {
	var records []*sarama.ConsumerMessage
	var next int64
	failed := false
	err := c.ask(ctx, func(client sarama.Client) error {
		records, next = nil, offset
		if failed {
			if err := client.RefreshMetadata(topic); err != nil {
				return err
			}
		}
		failed = true
		broker, err := client.Leader(topic, partition)
		if err != nil {
			return err
		}
		_ = broker.Open(client.Config()) // an error shows below
		// Version 10 is that of brokers from 2.1 on. Without a session: each request is for itself.
		request := &sarama.FetchRequest{Version: 10, MinBytes: 1, MaxBytes: size, MaxWaitTime: int32(maxWait / time.Millisecond), SessionEpoch: -1}
		request.AddBlock(topic, partition, offset, size, -1)
		response, err := broker.Fetch(request)
		if err != nil {
			return err
		}
		block := response.GetBlock(topic, partition)
		if block == nil {
			return sarama.ErrIncompleteResponse
		}
		if block.Err != sarama.ErrNoError {
			return block.Err
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
