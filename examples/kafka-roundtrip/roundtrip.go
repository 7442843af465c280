package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	taskType   = "iso:11783:-10:taskdata:zip"
	reportType = "app:example:report:json"
)

// report is what the office sends back for each task file.
type report struct {
	Context string `json:"context"`
	Bytes   int    `json:"bytes"`
	SHA256  string `json:"sha256"`
}

// roundtripConfig says between whom the messages travel.
type roundtripConfig struct {
	gateway     gateway.Config
	tenant      string
	office      string // the endpoint that receives task files and sends reports
	terminal    string // the endpoint that reports go to
	brokers     []string
	topicPrefix string
	logger      watermill.LoggerAdapter
}

// roundtrip carries task files from the gateway into Kafka, and what a handler
// makes of them from Kafka to the gateway, until ctx ends. A task file is
// confirmed once Kafka has it; its offset in Kafka is committed once the gateway
// has the report.
func roundtrip(ctx context.Context, cfg roundtripConfig) error {
	client, err := gateway.New(cfg.gateway)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // only idle connections are left
	fromGateway, err1 := subscriber.New(subscriber.Config{Client: client}, cfg.logger)
	toGateway, err2 := publisher.New(publisher.Config{Client: client, TenantID: cfg.tenant, EndpointID: cfg.office}, cfg.logger)
	toKafka, err3 := kafka.New(kafka.Config{Brokers: cfg.brokers, TopicPrefix: cfg.topicPrefix}, cfg.logger)
	fromKafka, err4 := newKafkaSubscriber(cfg)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: toKafka}, cfg.logger)
	if err != nil {
		return err
	}
	err = errors.Join(
		r.Add(router.Route{Name: "gateway to Kafka", From: fromGateway, Topic: taskType, To: toKafka, ToTopic: "{type}"}),
		r.Add(router.Route{
			Name: "Kafka to gateway", From: fromKafka, Topic: kafkaTopic(cfg.topicPrefix),
			Transform: func(msg *message.Message) ([]*message.Message, error) { return makeReport(msg, cfg.terminal) },
			To:        sinks.FromPublisher("gateway", toGateway),
			TopicFunc: func(*message.Message) (string, error) { return reportType, nil },
		}),
	)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// kafkaTopic is where the first route writes and the second one reads.
func kafkaTopic(prefix string) string { return prefix + "." + kafka.TopicSegment(taskType) }

func newKafkaSubscriber(cfg roundtripConfig) (*wmkafka.Subscriber, error) {
	config := wmkafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: cfg.brokers, ConsumerGroup: cfg.topicPrefix, Unmarshaler: kafka.Marshaler{}, OverwriteSaramaConfig: config,
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1},
	}, cfg.logger)
	if err != nil {
		return nil, err
	}
	// A consumer group cannot wait for a topic that does not exist yet.
	return sub, sub.SubscribeInitialize(kafkaTopic(cfg.topicPrefix))
}

// makeReport answers a task file. The UUID, which becomes the context ID, is
// derived from the file's, so that a report which is made again is recognised.
func makeReport(msg *message.Message, terminal string) ([]*message.Message, error) {
	context := msg.Metadata.Get(gateway.KeyContextID)
	sum := sha256.Sum256(msg.Payload)
	payload, err := json.Marshal(report{Context: context, Bytes: len(msg.Payload), SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return nil, router.Permanent(fmt.Errorf("report: %w", err))
	}
	out := message.NewMessage(uuid.NewHash(sha256.New(), uuid.NameSpaceOID, []byte("report of "+context), 8).String(), payload)
	out.Metadata.Set(gateway.KeyDirectRecipients, terminal)
	return []*message.Message{out}, nil
}
