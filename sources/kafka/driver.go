package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// Driver is who reads the topics.
type Driver int

const (
	// DriverAgrimill is the [Subscriber] of this package. It is the default.
	DriverAgrimill Driver = iota
	// DriverWatermill is the subscriber of watermill-kafka. Every record is still delivered at
	// least once, and those of a partition in order, with less beside that:
	//
	//   - One message of a partition is open at a time, whatever its key; Config.MaxInFlight does
	//     not apply, and one message that is stuck holds up its partition.
	//   - What is nacked is delivered again every 0.1 seconds; Config.MaxNackDelay does not apply.
	//   - A new group starts with the oldest records: Config.Start cannot be [StartNewest].
	//   - When a partition is lost, its open message stays open, while another member has it, too.
	//   - A record that cannot be read ends the session, again and again.
	//   - Shutdown abandons what is open: it comes again.
	//   - What cannot be read is in the log alone: there is no ReadError.
	//   - Nobody notices that a topic was created again, and the log does not say how many records
	//     were deleted unread.
	DriverWatermill
)

var drivers = []string{"agrimill", "watermill"}

// String returns agrimill or watermill.
func (d Driver) String() string { return enum.Text(d, drivers) }

// UnmarshalText parses what String returns.
func (d *Driver) UnmarshalText(text []byte) error { return enum.Parse(d, text, drivers) }

// Open returns the subscriber that Config.Driver says, or an error that matches [ErrConfig]. It
// does not connect; Subscribe does. Its topic is as in [Subscriber.Subscribe]. A nil logger is silent.
func Open(config Config, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	if config.Driver == DriverAgrimill {
		s, err := New(config, logger)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	m, err := newMember(config, logger)
	if err != nil {
		return nil, err
	}
	s := &stock{member: m}
	s.Subscriber, err = wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: config.Brokers, ConsumerGroup: config.Group, Unmarshaler: s, OverwriteSaramaConfig: m.config.client(),
	}, m.logger)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return s, nil
}

// stock is a subscriber of watermill-kafka, which reads one topic a subscription, for several.
type stock struct {
	*wmkafka.Subscriber
	member
	// cluster is the ID of the cluster, set by the first Subscribe.
	cluster atomic.Pointer[string]
}

// Unmarshal implements wmkafka.Unmarshaler.
func (s *stock) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	return records{s.config.Unmarshaler, *s.cluster.Load()}.Unmarshal(record)
}

// prepare finds out the ID of the cluster, and whether the group can be used.
func (s *stock) prepare(ctx context.Context, topics []string) error {
	client, err := sarama.NewClient(s.config.Brokers, s.config.client())
	if err != nil {
		return err
	}
	id, _, err := identify(client, topics)
	if err == nil {
		_, err = s.check(ctx, client, topics, s.logger)
	}
	if err == nil {
		s.cluster.Store(&id)
	}
	return errors.Join(err, client.Close())
}

// Subscribe implements message.Subscriber. While the brokers are unreachable the error matches
// sinks.ErrUnavailable, and Subscribe can be called again.
func (s *stock) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	out, topics, err := s.open(ctx, topic)
	if err != nil {
		cancel()
		topics.Wait()
		s.life.Leave()
		return nil, err
	}
	go func() { // ends with topics
		defer s.life.Leave()
		defer cancel()
		topics.Wait()
		close(out)
	}()
	return out, nil
}

// open subscribes to topics until ctx ends. Goroutines that pass on the messages run until then, also after an error.
func (s *stock) open(ctx context.Context, topic string) (chan *message.Message, *sync.WaitGroup, error) {
	running := new(sync.WaitGroup)
	topics, err := s.take(ctx, topic)
	if err != nil {
		return nil, running, err
	}
	if err := s.prepare(ctx, topics); err != nil {
		return nil, running, classified(s.config, err)
	}
	out := make(chan *message.Message)
	for _, topic := range topics {
		messages, err := s.Subscriber.Subscribe(ctx, topic)
		if err != nil {
			return nil, running, s.config.unavailable(err)
		}
		running.Go(func() { // ends with messages, which end with ctx or on Close
			for msg := range messages {
				msg.SetContext(placed(msg.Context(), *s.cluster.Load(), topic))
				select {
				case out <- msg:
				case <-msg.Context().Done(): // nobody took it
				}
			}
		})
	}
	return out, running, nil
}

// placed returns a context that also has the place of a record, named as by the [Subscriber].
func placed(ctx context.Context, cluster, topic string) context.Context {
	record := sarama.ConsumerMessage{Topic: topic}
	var partition, offset bool
	record.Partition, partition = wmkafka.MessagePartitionFromCtx(ctx)
	record.Offset, offset = wmkafka.MessagePartitionOffsetFromCtx(ctx)
	if !partition || !offset {
		return ctx
	}
	record.Timestamp, _ = wmkafka.MessageTimestampFromCtx(ctx) // that of the broker or the producer, as the topic has it
	return msgctx.With(ctx, msgctx.Value{Delivery: deliveryName(cluster, &record), Stored: record.Timestamp})
}

// Close implements message.Subscriber. It waits for the group to be left, which takes longer
// while the brokers are unreachable.
func (s *stock) Close() error {
	var err error
	s.life.Close(func() {
		err = s.Subscriber.Close()
		<-s.life.Idle()
	})
	return err
}
