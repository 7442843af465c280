// Package kafka reads Kafka topics as a Watermill subscriber with at-least-once delivery,
// on top of the subscriber of watermill-kafka: one message per partition is in flight at a
// time. It is the source of routes from Kafka to the gateway.
package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// ErrConfig is matched by the errors of [Config.Validate] and [New].
var ErrConfig = final.New("sources/kafka: invalid configuration")

// Start is where a consumer group without committed offsets starts.
type Start int

const (
	// StartOldest starts with the oldest record of the topic. It is the default.
	StartOldest Start = iota
	// StartNewest starts with records stored from then on.
	StartNewest
)

var starts = []string{"oldest", "newest"}

// String returns oldest or newest.
func (s Start) String() string { return enum.Text(s, starts) }

// UnmarshalText parses what String returns.
func (s *Start) UnmarshalText(text []byte) error { return enum.Parse(s, text, starts) }

// Config configures a [Subscriber]. Brokers, Topics and Group are required.
type Config struct {
	// Connection is how to connect.
	kafka.Connection `yaml:",inline"`
	// Topics are the topics to read, by their full names, without a prefix. Required.
	Topics []string `yaml:"topics" required:"true"`
	// Group is the consumer group. Processes that use the same one share the partitions.
	// Required.
	Group string `yaml:"group"`
	// Start is where a new group starts. Default [StartOldest].
	Start Start `yaml:"start" enum:"oldest,newest"`
	// Unmarshaler creates the Watermill messages. Default [kafka.Marshaler]. A message
	// without a UUID gets one derived from topic, partition, offset and timestamp.
	Unmarshaler wmkafka.Unmarshaler `yaml:"-"`
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(len(c.Topics) > 0, "Topics", "is required")
	for i, topic := range c.Topics {
		e.Check(topic != kafka.NoTopicPrefix && kafka.ValidTopic(topic), fmt.Sprintf("Topics[%d]", i), kafka.TopicRule+", not %q", topic)
	}
	e.Check(c.Group != "", "Group", "is required")
	e.Check(c.Start == StartOldest || c.Start == StartNewest, "Start", "must be one of the named constants")
	return e.Err(ErrConfig)
}

func (c Config) client() *sarama.Config {
	client := c.ClientConfig()
	client.Consumer.Return.Errors = true
	client.Consumer.Offsets.Initial = sarama.OffsetOldest
	if c.Start == StartNewest {
		client.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	return client
}
