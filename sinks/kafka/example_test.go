package kafka_test

import (
	"context"
	"fmt"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// startCluster starts a cluster in the process. Programs have one elsewhere.
func startCluster() (brokers []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		return nil, nil, err
	}
	return cluster.ListenAddrs(), cluster.Close, nil
}

func ExampleNew() {
	brokers, stop, err := startCluster()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	sink, err := kafka.New(kafka.Config{
		Connection: kafka.Connection{Brokers: brokers}, TopicPrefix: "farm",
		Partitions: 12, ReplicationFactor: 3,
		TopicConfig: map[string]string{"min.insync.replicas": "2", "retention.ms": "-1"},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()

	msg := message.NewMessage("1", []byte("task data"))
	msg.Metadata[gateway.KeyReceivingEndpointID] = "the key, which keeps the order"
	topic := sink.TopicSegment("tenant 7") + "." + sink.TopicSegment("iso:11783:-10:taskdata:zip")
	fmt.Println(topic)
	fmt.Println(sink.Publish(topic, msg))
	fmt.Println(sink.Describe().Durability)
	// Output:
	// tenant__207.iso__3A11783__3A-10__3Ataskdata__3Azip
	// <nil>
	// replicated
}

// A subscriber of watermill-kafka reads what the sink wrote, metadata included.
func ExampleMarshaler() {
	brokers, stop, err := startCluster()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	sink, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()
	sent := message.NewMessage("the UUID", []byte("payload"))
	sent.Metadata["header"] = "two\r\nlines"
	if err := sink.Publish("tenant.type", sent); err != nil {
		fmt.Println(err)
		return
	}

	config := wmkafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_8_0_0 // Kafka 4 does not speak the default any more
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: brokers, Unmarshaler: kafka.Marshaler{}, OverwriteSaramaConfig: config,
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = subscriber.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, err := subscriber.Subscribe(ctx, kafka.DefaultTopicPrefix+".tenant.type")
	if err != nil {
		fmt.Println(err)
		return
	}
	received := <-messages
	received.Ack()
	fmt.Printf("%s %s %q\n", received.UUID, received.Payload, received.Metadata["header"])
	// Output: the UUID payload "two\r\nlines"
}

func ExampleUnescapeTopicSegment() {
	segment := kafka.TopicSegment("field 3.5 ha")
	value, err := kafka.UnescapeTopicSegment(segment)
	fmt.Println(segment, "=", value, err)
	// Output: field__203__2E5__20ha = field 3.5 ha <nil>
}

func ExampleMetadataKey() {
	config := kafka.Config{
		Connection:   kafka.Connection{Brokers: []string{"127.0.0.1:9092"}},
		PartitionKey: kafka.MetadataKey(gateway.KeyTenantID), // order per tenant
	}
	msg := message.NewMessage("1", nil)
	msg.Metadata[gateway.KeyTenantID] = "tenant 7"
	fmt.Println(config.PartitionKey(msg), config.Validate())
	// Output: tenant 7 <nil>
}

// A sink publishes to this topic, and a source subscribes to it.
func ExampleTopicName() {
	fmt.Println(kafka.TopicName("", "iso:11783:-10:taskdata:zip"))
	fmt.Println(kafka.TopicName("farms", "north.doc:pdf"))
	fmt.Println(kafka.TopicName(kafka.NoTopicPrefix, "positions"))
	// Output:
	// agrimill.iso__3A11783__3A-10__3Ataskdata__3Azip
	// farms.north.doc__3Apdf
	// positions
}
