// Package kafka reads Kafka topics as a Watermill subscriber in a consumer group, for routes
// from Kafka to the gateway or anywhere else.
//
//	src, err := kafka.New(kafka.Config{Connection: sinkkafka.Connection{Brokers: []string{"localhost:9092"}}, Group: "to-the-gateway"}, nil)
//	…
//	err = r.Add(router.Route{Name: "reports", From: src, Topic: "reports", To: pub})
//
// Delivery is at least once: a record that is not acked is delivered again. Records of one key
// (Config.KeyHeader, else the record's) are delivered in order, one at a time, those of
// different keys in parallel. Of transactions it delivers what is committed.
package kafka

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// DefaultCloseTimeout is the default of Config.CloseTimeout.
const DefaultCloseTimeout = 5 * time.Second

// ErrClosed: Subscribe was called after Close.
var ErrClosed = final.New("sources/kafka: subscriber closed")

// ErrConfig is matched by the errors of [Config.Validate] and [New].
var ErrConfig = final.New("sources/kafka: invalid configuration")

// Start is where a consumer group without committed offsets starts.
type Start int

const (
	// StartOldest starts with the oldest record of the topic. It is the default.
	StartOldest Start = iota
	// StartNewest starts with records stored after the first Subscribe.
	StartNewest
)

var starts = []string{"oldest", "newest"}

// String returns oldest or newest.
func (s Start) String() string { return enum.Text(s, starts) }

// UnmarshalText parses what String returns.
func (s *Start) UnmarshalText(text []byte) error { return enum.Parse(s, text, starts) }

// Config configures a [Subscriber]. Brokers and Group are required.
type Config struct {
	// Connection is how to connect.
	kafka.Connection `yaml:",inline"`
	// TopicPrefix comes before each topic, with a dot, as in the sink: [kafka.TopicName]. Default
	// [kafka.DefaultTopicPrefix]; [kafka.NoTopicPrefix] for topics that no sink of this module writes.
	TopicPrefix string `yaml:"-"`
	// Topics are the topics to read. If there are none, Subscribe reads any topic that it is asked for; otherwise one or
	// more of these, and all of them when its topic is empty.
	Topics []string `yaml:"topics" required:"true"`
	// Group is the consumer group. Processes that use the same one share the partitions. Required.
	Group string `yaml:"group"`
	// Start is where a group starts that has no offsets in any of the topics. Partitions and topics that come later are read
	// from their beginning, and so is a partition whose offset is out of range: the log says how many offsets were deleted
	// unread, or that the topic is another one. Default [StartOldest].
	Start Start `yaml:"start" enum:"oldest,newest"`
	// MaxInFlight is how many messages of the consumer or partition may be in flight. They have different keys: of
	// each key one is, and the next one follows its ack. While so many handlers hang, nothing else of the partition
	// is delivered. Default 256.
	MaxInFlight int `yaml:"max_in_flight"`
	// KeyHeader is the header with a message's key: messages of one key are handled in order, others concurrently. Messages of
	// different partitions have different keys. Without it, or where a record lacks it, the key is that of the record; records
	// without any are one key. A header that differs in every message, such as _watermill_message_uuid, gives up the order.
	KeyHeader string `yaml:"key_header"`
	// MaxNackDelay is how long a message that was nacked again and again waits at most until it is delivered again; the first
	// time it is 0.1 seconds. Those behind it in its key wait with it. Default 30 seconds.
	MaxNackDelay time.Duration `yaml:"-"`
	// Unmarshaler creates the Watermill messages. Default [kafka.Marshaler]. A message without a UUID gets one derived from
	// cluster, topic, partition, offset and timestamp. If it fails, the message is tried again later, and others pass it.
	Unmarshaler wmkafka.Unmarshaler `yaml:"-"`
	// CloseTimeout is how long Close, the end of a subscription, and a rebalance wait for messages that are being handled.
	// Default [DefaultCloseTimeout]; less than the group's rebalance timeout, which is a minute unless Client changes it.
	CloseTimeout time.Duration `yaml:"-"`
	// Client changes the configuration of the client, last. Optional. Partitions have to be
	// assigned by an eager strategy, and only committed records read, as by default.
	Client func(*sarama.Config) `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Connection = c.Connection.WithDefaults()
	c.TopicPrefix = cmp.Or(c.TopicPrefix, kafka.DefaultTopicPrefix)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 256)
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, 30*time.Second)
	if c.Unmarshaler == nil {
		c.Unmarshaler = kafka.Marshaler{}
	}
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	var names []string
	for i, topic := range c.Topics {
		name := kafka.TopicName(c.TopicPrefix, topic)
		e.Check(!slices.Contains(names, name), fmt.Sprintf("Topics[%d]", i), "names %q again", topic)
		names = append(names, name)
		e.Check(kafka.ValidTopic(name), fmt.Sprintf("Topics[%d]", i), kafka.TopicRule+", not %q", topic)
	}
	e.Check(c.TopicPrefix == kafka.NoTopicPrefix || kafka.ValidTopic(c.TopicPrefix), "TopicPrefix", kafka.TopicRule)
	e.Check(c.Group != "", "Group", "is required")
	e.Check(c.Start == StartOldest || c.Start == StartNewest, "Start", "must be one of the named constants")
	validate.NotNegative(&e, "MaxInFlight", c.MaxInFlight)
	validate.NotNegative(&e, "MaxNackDelay", c.MaxNackDelay)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	client := c.client()
	e.Check(c.CloseTimeout < client.Consumer.Group.Rebalance.Timeout, "CloseTimeout", "must be less than the rebalance timeout of the group, %v", client.Consumer.Group.Rebalance.Timeout)
	err := client.Validate()
	e.Check(err == nil, "Client", "%v", err)
	return e.Err(ErrConfig)
}

func (c Config) client() *sarama.Config {
	client := c.ClientConfig()
	client.Consumer.Return.Errors = true
	client.ChannelBufferSize = 16 // of records, of each partition, in addition to maxAhead
	client.Consumer.IsolationLevel = sarama.ReadCommitted
	client.Consumer.Offsets.Initial = sarama.OffsetOldest // also where an offset is out of range
	client.Metadata.AllowAutoTopicCreation = false
	client.Metadata.Retry.Backoff = 20 * time.Millisecond // for each topic that cannot be read, while the members of the group wait
	if c.Client != nil {
		c.Client(client)
	}
	return client
}
