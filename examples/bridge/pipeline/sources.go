package pipeline

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
)

// newNATSSource makes the subscriber of a route from JetStream. It connects when
// the router subscribes, which the router tries until it works.
func newNATSSource(route string, cfg config.NATSSource, timeouts budget, logger watermill.LoggerAdapter) (*nats.Subscriber, error) {
	secured, err := cfg.TLS.Config()
	if err != nil {
		return nil, err
	}
	return nats.NewSubscriber(nats.SubscriberConfig{
		URL: string(cfg.URL), Name: "agrimill-bridge " + route,
		User: cfg.User, Password: cfg.Password.Reveal(), Token: cfg.Token.Reveal(),
		CredentialsFile: cfg.CredentialsFile, NKeySeedFile: cfg.NKeySeedFile, TLS: secured, ConnectTimeout: cfg.ConnectTimeout,
		Stream: cfg.Stream, Durable: cfg.Durable,
		AckWait: cfg.AckWait, MaxInFlight: cfg.MaxInFlight, CloseTimeout: timeouts.router / 20,
	}, logger)
}

// newKafkaSource makes the subscriber of a route from Kafka. It connects when the
// router subscribes, which the router tries until it works.
func newKafkaSource(cfg config.KafkaSource, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	client, err := cfg.ClientConfig()
	if err != nil {
		return nil, err
	}
	client.Consumer.Return.Errors = true
	client.Consumer.Offsets.Initial = sarama.OffsetOldest
	if cfg.Start == "newest" {
		client.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: cfg.Brokers, ConsumerGroup: cfg.Group,
		Unmarshaler: records{}, OverwriteSaramaConfig: client,
	}, logger)
	if err != nil {
		return nil, err
	}
	return &topics{Subscriber: sub, topics: cfg.Topics}, nil
}

// records makes messages of records. One without a UUID of its own gets one that is
// the same at each delivery: it becomes the context ID, by which copies are
// recognised.
type records struct{ kafka.Marshaler }

// recordNamespace keeps derived UUIDs apart from those of others.
const recordNamespace = "8f0f5d9c-6a3e-4c79-9d38-0f8d5c0f8a57"

// Unmarshal implements wmkafka.Unmarshaler.
func (r records) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := r.Marshaler.Unmarshal(record)
	if err == nil && msg.UUID == "" {
		// The time tells a topic that was made anew from the one before.
		name := fmt.Sprintf("%s %d %d %d", record.Topic, record.Partition, record.Offset, record.Timestamp.UnixNano())
		msg.UUID = uuid.NewHash(sha256.New(), uuid.MustParse(recordNamespace), []byte(name), 8).String()
	}
	return msg, err
}

// topics makes one subscription of several topics.
type topics struct {
	message.Subscriber
	topics []string
}

// Subscribe subscribes to all topics, whatever topic says.
func (t *topics) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan *message.Message)
	var open sync.WaitGroup
	for _, topic := range t.topics {
		messages, err := t.Subscriber.Subscribe(ctx, topic)
		if err != nil {
			cancel() // ends those that were made before
			open.Wait()
			return nil, err
		}
		// Ends when the subscription does, which it does with ctx.
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

// backlog is how many messages wait before a route where they come from.
type backlog struct {
	ask  func(context.Context) (int64, error)
	last atomic.Pointer[int64] // nil: not known
}

// look asks for it. It returns at the latest when ctx ends.
func (b *backlog) look(ctx context.Context) {
	n, err := b.ask(ctx)
	if err != nil {
		b.last.Store(nil)
		return
	}
	b.last.Store(&n)
}
