package kafka

import (
	"cmp"
	"fmt"
	"time"

	"github.com/agrimill/agrimill/internal/enum"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/dialer"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/kafkaclient"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

// DefaultTopicPrefix is the default of Config.TopicPrefix.
const DefaultTopicPrefix = "agrimill"

// NoTopicPrefix as Config.TopicPrefix makes topics without a prefix.
const NoTopicPrefix = "."

// linger is how long the first message of a batch waits for others when messages are pipelined: sarama sends what there is
// at once and lets no more of the same partitions follow until it is acknowledged, so the first message would go alone.
const linger = time.Millisecond

// minMessageSize is the smallest Config.MaxMessageSize: below it, not even the metadata of a message fits.
const minMessageSize = 1024

// ErrConfig is wrapped by every error about a [Config] that cannot work.
var ErrConfig = final.New("sinks/kafka: bad configuration")

// Provision is what the sink does about a topic that does not exist.
type Provision int

const (
	// ProvisionCreate creates it when the first message for it comes. Topics that exist are left as they are.
	ProvisionCreate Provision = iota
	// ProvisionNone creates nothing: a missing topic is sinks.ErrUnavailable until somebody has created it.
	ProvisionNone
)

var provisions = []string{"create", "none"}

// String returns create or none.
func (p Provision) String() string { return enum.Text(p, provisions) }

// UnmarshalText reads what String returns.
func (p *Provision) UnmarshalText(text []byte) error { return enum.Parse(p, text, provisions) }

// Mechanism is a way to authenticate.
type Mechanism string

// The mechanisms of [SASL].
const (
	// MechanismPlain sends the password to the broker; use it with TLS.
	MechanismPlain       Mechanism = "PLAIN"
	MechanismSCRAMSHA256 Mechanism = "SCRAM-SHA-256"
	MechanismSCRAMSHA512 Mechanism = "SCRAM-SHA-512"
)

// SASL authenticates the connections. The zero value does not. For other mechanisms use Config.Configure.
type SASL struct {
	// Mechanism is the way to log in. Default, when User is set: MechanismPlain.
	Mechanism Mechanism `yaml:"mechanism" enum:"PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"`
	// User is the name to log in with. Required with a mechanism.
	User string `yaml:"user" required:"true"`
	// Password is that of User. Required with a mechanism.
	Password gateway.Secret `yaml:"password"`
}

// Config configures a [Sink]. Only Brokers is required.
type Config struct {
	// Connection says how to connect.
	Connection `yaml:",inline"`
	// Name names the sink in errors and logs. Default "kafka".
	Name string `yaml:"-"`

	// TopicPrefix comes before each topic, with a dot, see [TopicName]. Default [DefaultTopicPrefix]; [NoTopicPrefix] for none.
	TopicPrefix string `yaml:"topic_prefix"`
	// Provision says what happens to a topic that does not exist. Default ProvisionCreate.
	Provision Provision `yaml:"provision" enum:"create,none"`
	// Partitions of topics that the sink creates. Default, and 0: what the brokers are configured for (num.partitions).
	Partitions int32 `yaml:"partitions"`
	// ReplicationFactor is how many replicas created topics have. Default, and 0: what the brokers are configured
	// for (default.replication.factor).
	ReplicationFactor int16 `yaml:"replication_factor"`
	// TopicConfig has further settings of created topics, e.g. retention.ms.
	TopicConfig map[string]string `yaml:"topic_config"`

	// Synced is when acknowledged messages survive a power cut: always with flush.messages 1 on all replicas;
	// replicas if those in sync do not lose their power together, with min.insync.replicas 2. A client cannot see
	// that. An interval is not supported. It matters to routes with `durable: synced`. Default: unknown.
	Synced sinks.Synced `yaml:"synced"`

	// Lost is called with the topic, the partition and the offsets, first and last included, of messages that brokers had acknowledged,
	// and were found not to have any longer: see [Sink.Lost]. New messages have the same ones. It is called before anybody learns that
	// these are stored, and must not block: the results of all messages wait until it returns. Nil means that nobody is told but the log.
	Lost func(topic string, partition int32, first, last int64) `yaml:"-"`

	// PartitionKey gives the key of a message. Messages with the same key go to the same partition of a topic, and so keep
	// their order for consumers; the partition is the one that clients in Java choose. "" is no key: any partition. Has to be
	// safe for concurrent use. Default: the receiving endpoint ([MetadataKey] of gateway.KeyReceivingEndpointID), like the
	// subscriber's order key.
	PartitionKey func(msg *message.Message) string `yaml:"-"`
	// Compression of the batches. Default none: farm files are compressed already.
	Compression sarama.CompressionCodec `yaml:"compression" enum:"none,gzip,snappy,lz4,zstd"`
	// MaxMessageSize is the largest message in bytes, headers included. It also sets max.message.bytes of topics that the sink creates,
	// when it is more than the brokers are configured for. The limit of the
	// topic counts as well. Default, and 0: the topic's limit. At least 1024.
	MaxMessageSize int `yaml:"max_message_size" unit:"bytes"`
	// Marshaler makes the records; it is given the Kafka topic. Default
	// [Marshaler], the only one that promises to keep any metadata.
	Marshaler wmkafka.Marshaler `yaml:"-"`
	// CloudEvents makes every message a CloudEvent 1.0, with the attributes as headers ce_…;
	// see [Marshaler]. Not together with Marshaler. Nil means no.
	CloudEvents *cloudevents.Config `yaml:"cloud_events"`

	// Ingest is how routes keep the order of a key: one message at a time, or pipelined. Default [sinks.IngestPlain].
	Ingest sinks.Ingest `yaml:"ingest" enum:"plain,pipelined"`
	// PublishTimeout bounds the wait for an acknowledgment, and each write. Default 10 seconds.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// CloseTimeout is how long Close waits for calls of Publish that are under way. Default 30 seconds.
	CloseTimeout time.Duration `yaml:"-"`
	// MaxPending is how many messages may wait for their acknowledgment; further calls of Publish wait. Default 1024.
	MaxPending int `yaml:"-"`
	// MaxPendingBytes is how many bytes of them may wait; a larger message goes alone, and a small one counts as its
	// share for MaxPending of them. Default 64 MiB.
	MaxPendingBytes int64 `yaml:"-"`

	// Configure changes the configuration of the Kafka client, e.g. to set OAuth or Kerberos, a proxy, or metrics. It is called
	// for each client, last, also at the same time, and has to make the same changes each time. What the promises of the sink
	// rest on is set again after it: acknowledgment by all replicas in sync, idempotence, one request at a time, no creation of
	// topics by the brokers.
	Configure func(*sarama.Config) `yaml:"-"`
}

// MetadataKey returns a Config.PartitionKey that takes the metadata value of this name.
func MetadataKey(name string) func(*message.Message) string {
	return func(msg *message.Message) string { return msg.Metadata[name] }
}

// NoPartitionKey is a Config.PartitionKey for messages without a key. Their
// order is not kept in topics with several partitions.
func NoPartitionKey(*message.Message) string { return "" }

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Name = cmp.Or(c.Name, "kafka")
	c.Connection = c.Connection.WithDefaults()
	c.TopicPrefix = cmp.Or(c.TopicPrefix, DefaultTopicPrefix)
	if c.PartitionKey == nil {
		c.PartitionKey = MetadataKey(gateway.KeyReceivingEndpointID)
	}
	if c.Marshaler == nil {
		c.Marshaler = Marshaler{}
	}
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 10*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 30*time.Second)
	c.MaxPending = cmp.Or(c.MaxPending, 1024)
	c.MaxPendingBytes = cmp.Or(c.MaxPendingBytes, 64<<20)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig]. Zero values stand for the defaults; only Brokers is required.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(c.TopicPrefix == NoTopicPrefix || ValidTopic(c.TopicPrefix), "TopicPrefix", TopicRule)
	e.Check(c.Provision == ProvisionCreate || c.Provision == ProvisionNone, "Provision", "must be one of the named constants")
	validate.NotNegative(&e, "Partitions", c.Partitions)
	validate.NotNegative(&e, "ReplicationFactor", c.ReplicationFactor)
	if c.Provision == ProvisionCreate && !c.Version.IsAtLeast(sarama.V2_4_0_0) {
		e.Check(c.Partitions != 0, "Partitions", "must be set with %s before 2.4", validate.Field("Version"))
		e.Check(c.ReplicationFactor != 0, "ReplicationFactor", "must be set with %s before 2.4", validate.Field("Version"))
	}
	e.Check(c.Compression >= sarama.CompressionNone && c.Compression <= sarama.CompressionZSTD, "Compression", "must be a constant of sarama")
	e.Check(c.MaxMessageSize == 0 || c.MaxMessageSize >= minMessageSize && c.MaxMessageSize <= int(maxRequestSize()),
		"MaxMessageSize", "must be 0, or %d to %d", minMessageSize, maxRequestSize())
	e.Check(c.Ingest >= sinks.IngestPlain && c.Ingest <= sinks.IngestPipelined, "Ingest", "must be one of the named constants")
	e.Check(c.Synced <= sinks.SyncedUnknown && c.Synced.Validate() == nil, "Synced", "must be always or replicas")
	validate.NotNegative(&e, "PublishTimeout", c.PublishTimeout)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	validate.NotNegative(&e, "MaxPending", c.MaxPending)
	validate.NotNegative(&e, "MaxPendingBytes", c.MaxPendingBytes)
	if c.CloudEvents != nil {
		e.Check(c.Marshaler == Marshaler{}, "CloudEvents", "excludes %s", validate.Field("Marshaler"))
		e.Join("CloudEvents", c.CloudEvents.Validate())
	}
	return e.Err(ErrConfig)
}

// TopicRule says in an error what [ValidTopic] holds.
const TopicRule = "must be a Kafka topic of letters, digits, '-', '_' and single dots"

// ValidTopic reports whether the sink and Kafka take the name of a topic.
func ValidTopic(name string) bool { return checkTopic(name) == nil }

// TopicSegment is the function [TopicSegment].
func (Config) TopicSegment(value string) string { return TopicSegment(value) }

// CheckTopic implements [sinks.Topics].
func (c Config) CheckTopic(topic string) error {
	c = c.WithDefaults()
	if err := checkTopic(TopicName(c.TopicPrefix, topic)); err != nil {
		return sinks.NewError(c.Name, topic, sinks.ErrRejected, err)
	}
	return nil
}

// maxRequestSize is what fits into one request of sarama beside a reserve.
func maxRequestSize() int32 { return sarama.MaxRequestSize - 64<<10 }

// sarama returns the configuration of a Kafka client whose connections d makes.
func (c *Config) sarama(d *dialer.Dialer) *sarama.Config {
	k := c.ClientConfig()
	k.Net.ReadTimeout = c.PublishTimeout
	k.Net.WriteTimeout = c.PublishTimeout
	// Only what is asked for. A few attempts, since brokers learn of a new topic
	// one after the other, but close together: who waits wants to know early.
	k.Metadata.Full = false
	k.Metadata.Retry.Max = 3
	k.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
		if d.IsShut() {
			return 0
		}
		return c.PublishTimeout / 200
	}
	k.Metadata.Timeout = c.ConnectTimeout
	k.Admin.Timeout = c.ConnectTimeout

	k.Producer.Partitioner = sarama.NewMurmur2Partitioner
	k.Producer.Compression = c.Compression
	k.Producer.Timeout = max(c.PublishTimeout/2, time.Millisecond)
	// Attempts to send a batch again, while its partition has no leader, for instance, are spread over half of the
	// time that a call of Publish may take, so that the error tells the reason and is no time-out.
	k.Producer.Retry.Max = 15
	pause := c.PublishTimeout / 20
	k.Producer.Retry.Backoff = min(pause, 50*time.Millisecond)
	k.Producer.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		if d.IsShut() {
			return 0
		}
		return min(pause, 10*time.Millisecond<<min(retries, 20))
	}
	if c.Ingest == sinks.IngestPipelined {
		k.Producer.Flush.Frequency = linger
	}

	if c.Configure != nil {
		c.Configure(k)
	}
	kafkaclient.Dial(k, d)
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
