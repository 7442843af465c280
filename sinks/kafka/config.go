package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/xdg-go/scram"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

// Defaults of [Config].
const (
	DefaultClientID        = "agrimill"
	DefaultTopicPrefix     = "agrimill"
	DefaultConnectTimeout  = 10 * time.Second
	DefaultPublishTimeout  = 10 * time.Second
	DefaultCloseTimeout    = 30 * time.Second
	DefaultMaxPending      = 1024
	DefaultMaxPendingBytes = 64 << 20
)

// NoTopicPrefix as Config.TopicPrefix makes topics without a prefix.
const NoTopicPrefix = "."

// minMessageSize is the smallest Config.MaxMessageSize: below it, not even the
// metadata of a message fits.
const minMessageSize = 1024

// ErrConfig is wrapped by every error about a [Config] that cannot work.
var ErrConfig = errors.New("sinks/kafka: bad configuration")

// Provision is what the sink does about a topic that does not exist.
type Provision int

const (
	// ProvisionCreate creates it when the first message for it comes, with
	// Config.Partitions, Config.ReplicationFactor and Config.TopicConfig. Topics
	// that exist are left as they are.
	ProvisionCreate Provision = iota
	// ProvisionNone creates nothing: a missing topic is sinks.ErrUnavailable
	// until somebody has created it.
	ProvisionNone
)

// Mechanism is a way to authenticate.
type Mechanism string

// The mechanisms of [SASL].
const (
	// MechanismPlain sends the password to the broker; use it with TLS.
	MechanismPlain       Mechanism = "PLAIN"
	MechanismSCRAMSHA256 Mechanism = "SCRAM-SHA-256"
	MechanismSCRAMSHA512 Mechanism = "SCRAM-SHA-512"
)

// SASL authenticates the connections. The zero value does not. For other
// mechanisms use Config.Configure.
type SASL struct {
	// Mechanism to use. Default, when User is set: MechanismPlain.
	Mechanism Mechanism
	// User and Password are required with a mechanism.
	User, Password string
}

// Config configures a [Sink]. Only Brokers is required.
type Config struct {
	// Brokers are the addresses (host:port) to find the cluster by. Required.
	Brokers []string
	// Name names the sink in errors and logs. Default "kafka".
	Name string
	// ClientID is what the brokers know the client by, in quotas and logs.
	// Default [DefaultClientID].
	ClientID string
	// TLS is the configuration for TLS; nil = without TLS.
	TLS *tls.Config
	// SASL authenticates. Default: not at all.
	SASL SASL
	// Version is the newest version of Kafka whose requests are used; brokers
	// that are older are recognised. Default 2.8.
	Version sarama.KafkaVersion

	// TopicPrefix comes before each topic: a message of topic T goes to the
	// Kafka topic TopicPrefix.T. Default [DefaultTopicPrefix]; [NoTopicPrefix]
	// for none.
	TopicPrefix string
	// Provision says what happens to a topic that does not exist. Default
	// ProvisionCreate.
	Provision Provision
	// Partitions of topics that the sink creates. Default, and 0: what the
	// brokers are configured for (num.partitions).
	Partitions int32
	// ReplicationFactor of topics that the sink creates. Default, and 0: what
	// the brokers are configured for (default.replication.factor).
	ReplicationFactor int16
	// TopicConfig are further settings of topics that the sink creates, e.g.
	// min.insync.replicas or retention.ms. The map is not kept.
	TopicConfig map[string]string

	// PartitionKey gives the key of a message. Messages with the same key go to
	// the same partition of a topic, and so keep their order for consumers; the
	// partition is the one that clients in Java choose. "" is no key: any
	// partition. Has to be safe for concurrent use. Default: the receiving
	// endpoint ([MetadataKey] of gateway.KeyReceivingEndpointID), like the
	// subscriber's order key.
	PartitionKey func(msg *message.Message) string
	// Compression of the batches. Default none: farm files are compressed
	// already.
	Compression sarama.CompressionCodec
	// MaxMessageSize is the largest message the sink takes in bytes, headers
	// included. It also sets max.message.bytes of topics that the sink creates,
	// when it is more than the brokers are configured for. The limit of the
	// topic counts as well. Default, and 0: the topic's limit. At least 1024.
	MaxMessageSize int
	// Marshaler makes the records; it is given the Kafka topic. Default
	// [Marshaler], the only one that promises to keep any metadata.
	Marshaler wmkafka.Marshaler
	// CloudEvents makes every message a CloudEvent 1.0 in binary mode, with the
	// attributes as headers ce_…; see [Marshaler]. Not together with Marshaler.
	// Nil means no.
	CloudEvents *cloudevents.Config

	// ConnectTimeout bounds connecting in New, and the look-up or creation of
	// one topic. Default [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// PublishTimeout bounds one call of Publish. Default
	// [DefaultPublishTimeout].
	PublishTimeout time.Duration
	// CloseTimeout is how long Close waits for calls of Publish that are under
	// way. Default [DefaultCloseTimeout].
	CloseTimeout time.Duration
	// MaxPending and MaxPendingBytes are how many messages, and how many bytes
	// of them, may wait for their acknowledgement; further calls of Publish wait.
	// A larger message waits until it is the only one. Defaults
	// [DefaultMaxPending], [DefaultMaxPendingBytes].
	MaxPending      int
	MaxPendingBytes int64

	// Configure changes the configuration of the Kafka client, e.g. to set
	// OAuth or Kerberos, a proxy, or metrics. It is called for each client, last,
	// also at the same time, and has to make the same changes each time.
	// What the promises of the sink rest on is set again after it:
	// acknowledgement by all replicas in sync, idempotence, one request at a
	// time, no creation of topics by the brokers.
	Configure func(*sarama.Config)
}

// MetadataKey returns a Config.PartitionKey that takes the metadata value of
// this name.
func MetadataKey(name string) func(*message.Message) string {
	return func(msg *message.Message) string { return msg.Metadata[name] }
}

// NoPartitionKey is a Config.PartitionKey for messages without a key. Their
// order is not kept in topics with several partitions.
func NoPartitionKey(*message.Message) string { return "" }

func (c *Config) setDefaults() {
	if c.Name == "" {
		c.Name = "kafka"
	}
	if c.ClientID == "" {
		c.ClientID = DefaultClientID
	}
	if c.SASL.Mechanism == "" && c.SASL.User != "" {
		c.SASL.Mechanism = MechanismPlain
	}
	if c.Version == (sarama.KafkaVersion{}) {
		c.Version = sarama.V2_8_0_0
	}
	if c.TopicPrefix == "" {
		c.TopicPrefix = DefaultTopicPrefix
	}
	if c.PartitionKey == nil {
		c.PartitionKey = MetadataKey(gateway.KeyReceivingEndpointID)
	}
	if c.Marshaler == nil {
		c.Marshaler = Marshaler{}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = DefaultPublishTimeout
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
	if c.MaxPendingBytes == 0 {
		c.MaxPendingBytes = DefaultMaxPendingBytes
	}
}

// Validate returns an error that wraps [ErrConfig] and names the field when the
// configuration cannot work. New calls it after it set the defaults; zero
// values, Brokers aside, are fine here too.
func (c Config) Validate() error {
	c.setDefaults()
	bad := func(field, rule string) error { return fmt.Errorf("%w: %s %s", ErrConfig, field, rule) }

	if len(c.Brokers) == 0 {
		return bad("Brokers", "must not be empty")
	}
	for _, broker := range c.Brokers {
		if _, _, err := net.SplitHostPort(broker); err != nil {
			return bad("Brokers", "must be host:port each")
		}
	}
	switch {
	case c.SASL.Mechanism != "" && c.SASL.Mechanism != MechanismPlain && c.SASL.Mechanism != MechanismSCRAMSHA256 && c.SASL.Mechanism != MechanismSCRAMSHA512:
		return bad("SASL.Mechanism", "must be one of the named constants")
	case c.SASL.Mechanism != "" && (c.SASL.User == "" || c.SASL.Password == ""), c.SASL.Mechanism == "" && c.SASL.Password != "":
		return bad("SASL", "needs User and Password")
	case !c.Version.IsAtLeast(sarama.V2_1_0_0):
		return bad("Version", "must be at least 2.1")
	case c.TopicPrefix != NoTopicPrefix && checkTopic(c.TopicPrefix) != nil:
		return bad("TopicPrefix", "must be a Kafka topic of letters, digits, '-', '_' and single dots")
	case c.Provision != ProvisionCreate && c.Provision != ProvisionNone:
		return bad("Provision", "must be one of the named constants")
	case c.Partitions < 0, c.ReplicationFactor < 0:
		return bad("Partitions, ReplicationFactor", "must not be negative")
	case (c.Partitions == 0 || c.ReplicationFactor == 0) && c.Provision == ProvisionCreate && !c.Version.IsAtLeast(sarama.V2_4_0_0):
		return bad("Partitions, ReplicationFactor", "must be set with a Version before 2.4")
	case c.Compression < sarama.CompressionNone || c.Compression > sarama.CompressionZSTD:
		return bad("Compression", "must be a constant of sarama")
	case c.MaxMessageSize != 0 && (c.MaxMessageSize < minMessageSize || c.MaxMessageSize > int(maxRequestSize())):
		return bad("MaxMessageSize", fmt.Sprintf("must be 0, or %d to %d", minMessageSize, maxRequestSize()))
	case c.ConnectTimeout < 0, c.PublishTimeout < 0, c.CloseTimeout < 0:
		return bad("ConnectTimeout, PublishTimeout, CloseTimeout", "must not be negative")
	case c.MaxPending < 0, c.MaxPendingBytes < 0:
		return bad("MaxPending, MaxPendingBytes", "must not be negative")
	case c.CloudEvents != nil && c.Marshaler != Marshaler{}:
		return bad("CloudEvents", "excludes Marshaler")
	}
	if c.CloudEvents != nil {
		if err := c.CloudEvents.Validate(); err != nil {
			return fmt.Errorf("%w: CloudEvents: %w", ErrConfig, err)
		}
	}
	return nil
}

// topic returns the Kafka topic for a topic of the sink.
func (c *Config) topic(topic string) string {
	if c.TopicPrefix == NoTopicPrefix {
		return topic
	}
	return c.TopicPrefix + "." + topic
}

// maxRequestSize is what fits into one request of sarama, less a reserve for
// everything beside the message.
func maxRequestSize() int32 { return sarama.MaxRequestSize - 64<<10 }

// ClientConfig returns the configuration of another Kafka client, such as a
// consumer, that connects as the sink does: ClientID, Version, TLS, SASL and
// ConnectTimeout. The rest is sarama's default; Configure is not called.
func (c Config) ClientConfig() *sarama.Config {
	c.setDefaults()
	k := sarama.NewConfig()
	k.ClientID = c.ClientID
	k.Version = c.Version
	k.MetricRegistry = noMetrics{}
	k.Net.DialTimeout = c.ConnectTimeout
	if c.TLS != nil {
		k.Net.TLS.Enable = true
		k.Net.TLS.Config = c.TLS.Clone()
	}
	if c.SASL.Mechanism != "" {
		k.Net.SASL.Enable = true
		k.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		k.Net.SASL.User, k.Net.SASL.Password = c.SASL.User, c.SASL.Password
		hash := scram.SHA256
		if c.SASL.Mechanism == MechanismSCRAMSHA512 {
			hash = scram.SHA512
		}
		k.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	}
	return k
}

// sarama returns the configuration of a Kafka client whose connections d makes.
func (c *Config) sarama(d *dialer) *sarama.Config {
	k := c.ClientConfig()
	k.Net.ReadTimeout = c.PublishTimeout
	k.Net.WriteTimeout = c.PublishTimeout
	// Only what is asked for. A few attempts, since brokers learn of a new topic
	// one after the other, but close together: who waits wants to know early.
	k.Metadata.Full = false
	k.Metadata.Retry.Max = 3
	k.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
		if d.isShut() {
			return 0
		}
		return c.PublishTimeout / 200
	}
	k.Metadata.Timeout = c.ConnectTimeout

	k.Producer.Partitioner = sarama.NewMurmur2Partitioner
	k.Producer.Compression = c.Compression
	k.Producer.Timeout = max(c.PublishTimeout/2, time.Millisecond)
	// Attempts to send a batch again while its partition has no leader, for
	// instance. They are spread over half of the time that a call of Publish may
	// take, so that the error tells the reason and is no time-out.
	k.Producer.Retry.Max = 15
	pause := c.PublishTimeout / 20
	k.Producer.Retry.Backoff = min(pause, 50*time.Millisecond)
	k.Producer.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		if d.isShut() {
			return 0
		}
		return min(pause, 10*time.Millisecond<<min(retries, 20))
	}
	k.ChannelBufferSize = c.MaxPending

	if c.Configure != nil {
		c.Configure(k)
	}
	if k.Net.Proxy.Enable && k.Net.Proxy.Dialer != nil {
		d.through(k.Net.Proxy.Dialer)
	}
	k.Net.Proxy.Enable = true
	k.Net.Proxy.Dialer = d
	k.Net.MaxOpenRequests = 1
	k.Metadata.AllowAutoTopicCreation = false
	k.Producer.Idempotent = true
	k.Producer.RequiredAcks = sarama.WaitForAll
	k.Producer.Transaction.ID = ""
	k.Producer.Return.Successes = true
	k.Producer.Return.Errors = true
	// Every queue of the producer takes all messages that can be under way, so
	// a partition that is stuck never blocks another one.
	k.ChannelBufferSize = max(k.ChannelBufferSize, c.MaxPending)
	return k
}
