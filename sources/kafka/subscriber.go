package kafka

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/sinks/kafka"
)

var _ message.Subscriber = (*Subscriber)(nil)

// Subscriber delivers the records of one or more topics as a member of a consumer group. It
// is safe for concurrent use.
type Subscriber struct {
	inner  *wmkafka.Subscriber
	topics []string
}

// New returns a Subscriber, or an error that matches [ErrConfig]. It does not connect;
// Subscribe does. A nil logger is silent.
func New(config Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Unmarshaler == nil {
		config.Unmarshaler = kafka.Marshaler{}
	}
	inner, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: config.Brokers, ConsumerGroup: config.Group,
		Unmarshaler: records{config.Unmarshaler}, OverwriteSaramaConfig: config.client(),
	}, logger)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Subscriber{inner: inner, topics: config.Topics}, nil
}

// Subscribe delivers the records of all configured topics; it ignores the topic argument.
// It returns an error while the brokers are unreachable, and can then be called again. The
// channel is closed after ctx ends or Close is called.
func (s *Subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan *message.Message)
	var open sync.WaitGroup
	for _, topic := range s.topics {
		messages, err := s.inner.Subscribe(ctx, topic)
		if err != nil {
			cancel() // ends the earlier ones
			open.Wait()
			return nil, err
		}
		// Ends with the subscription, which ends with ctx.
		open.Go(func() {
			for msg := range messages {
				select {
				case out <- msg:
				case <-ctx.Done():
					msg.Nack()
				}
			}
		})
	}
	// Ends with the last subscription.
	go func() {
		open.Wait()
		cancel()
		close(out)
	}()
	return out, nil
}

// Close ends all subscriptions and leaves the consumer group. It is idempotent.
func (s *Subscriber) Close() error { return s.inner.Close() }

// records converts records to messages. A message without a UUID gets one that is the same
// for every delivery: it becomes the context ID, by which receivers recognize copies.
type records struct{ wmkafka.Unmarshaler }

// recordNamespace is the namespace of derived UUIDs.
const recordNamespace = "8f0f5d9c-6a3e-4c79-9d38-0f8d5c0f8a57"

// Unmarshal implements wmkafka.Unmarshaler.
func (r records) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := r.Unmarshaler.Unmarshal(record)
	if err == nil && msg.UUID == "" {
		// The timestamp distinguishes a recreated topic from the previous one.
		name := fmt.Sprintf("%s %d %d %d", record.Topic, record.Partition, record.Offset, record.Timestamp.UnixNano())
		msg.UUID = uuid.NewHash(sha256.New(), uuid.MustParse(recordNamespace), []byte(name), 8).String()
	}
	return msg, err
}
