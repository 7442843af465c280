package config

import "time"

// Sink is where messages can go: exactly one of nats, kafka, blob and log.
type Sink struct {
	// NATS stores messages in a stream of NATS JetStream.
	NATS *NATS `yaml:"nats"`
	// Kafka stores messages in topics of Apache Kafka.
	Kafka *Kafka `yaml:"kafka"`
	// Blob stores messages as files in a directory or bucket.
	Blob *Blob `yaml:"blob"`
	// Log writes a line for each message to standard output, and stores nothing.
	Log *LogSink `yaml:"log"`
}

// Kind returns the name of the section that is there: nats, kafka, blob or log.
func (s Sink) Kind() string {
	switch {
	case s.NATS != nil:
		return "nats"
	case s.Kafka != nil:
		return "kafka"
	case s.Blob != nil:
		return "blob"
	case s.Log != nil:
		return "log"
	}
	return ""
}

// NATSConnection is a connection to NATS. At most one of user with password, token,
// credentials file and NKey seed authenticates it.
type NATSConnection struct {
	// URL is the address of the server, or several separated by commas.
	URL URL `yaml:"url"`
	// User authenticates the connection, together with a password.
	User string `yaml:"user"`
	// Password belongs to User.
	Password Secret `yaml:"password"`
	// PasswordFile is a file with Password.
	PasswordFile string `yaml:"password_file" file:"true"`
	// Token authenticates the connection.
	Token Secret `yaml:"token"`
	// TokenFile is a file with Token.
	TokenFile string `yaml:"token_file" file:"true"`
	// CredentialsFile is a file with a JWT and its NKey seed.
	CredentialsFile string `yaml:"credentials_file" file:"true"`
	// NKeySeedFile is a file with an NKey seed.
	NKeySeedFile string `yaml:"nkey_seed_file" file:"true"`
	// TLS secures the connection beyond what the address and the server ask for.
	TLS *TLS `yaml:"tls"`
	// ConnectTimeout bounds connecting.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// NATS stores messages in a stream of NATS JetStream.
type NATS struct {
	NATSConnection `yaml:",inline"`
	// Stream is the name of the stream.
	Stream string `yaml:"stream"`
	// SubjectPrefix comes before each topic: a message of topic T has the subject PREFIX.T.
	SubjectPrefix string `yaml:"subject_prefix"`
	// Provision says what to do about the stream: create it when it is missing (create),
	// also change one that exists to these settings (update), or only use it (none).
	Provision string `yaml:"provision" enum:"create,update,none"`
	// Storage of the stream.
	Storage string `yaml:"storage" enum:"file,memory"`
	// Replicas is how many copies the stream has, 1 to 5. Three in a cluster of three keep acknowledged
	// messages when a server is lost.
	Replicas int `yaml:"replicas"`
	// SyncAlways says that the servers run with sync_interval: always, which a client
	// cannot see.
	SyncAlways bool `yaml:"sync_always"`
	// Retention of the stream. interest deletes what nobody subscribed to, at once.
	Retention string `yaml:"retention" enum:"limits,interest,workqueue"`
	// MaxAge is how long messages are kept; 0 means without limit.
	MaxAge time.Duration `yaml:"max_age"`
	// MaxBytes is how large the stream may become; 0 means without limit.
	MaxBytes Size `yaml:"max_bytes"`
	// MaxMessages is how many messages the stream may hold; 0 means without limit.
	MaxMessages int64 `yaml:"max_messages"`
	// DiscardOld makes a full stream delete its oldest messages. Otherwise it refuses new
	// ones, and the bridge waits until there is room.
	DiscardOld bool `yaml:"discard_old"`
	// MaxMessageSize is the largest message the stream takes, headers included; 0 means what
	// the server takes.
	MaxMessageSize Size `yaml:"max_message_size"`
	// DedupWindow is how long the stream remembers messages to recognise a repeated one.
	DedupWindow time.Duration `yaml:"dedup_window"`
	// PublishTimeout bounds the wait for the acknowledgement of one message.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxPending is how many messages may wait for their acknowledgement.
	MaxPending int `yaml:"max_pending"`
	// CloudEvents adds the headers of CloudEvents 1.0.
	CloudEvents *CloudEvents `yaml:"cloud_events"`
}

// KafkaConnection is a connection to Apache Kafka.
type KafkaConnection struct {
	// Brokers are the addresses (host:port) to find the cluster by.
	Brokers List `yaml:"brokers" required:"true"`
	// ClientID is what the brokers know the bridge by, in quotas and logs.
	ClientID string `yaml:"client_id"`
	// Version is the newest version of Kafka whose requests are used, e.g. 3.6.
	Version string `yaml:"version"`
	// TLS secures the connections; tls: {} is enough with a public certificate.
	TLS *TLS `yaml:"tls"`
	// SASL authenticates the connections.
	SASL *SASL `yaml:"sasl"`
	// ConnectTimeout bounds connecting.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// SASL authenticates connections to Kafka.
type SASL struct {
	// Mechanism to use. PLAIN sends the password to the broker; use it with tls.
	Mechanism string `yaml:"mechanism" enum:"PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"`
	// User is the name to log in with.
	User string `yaml:"user" required:"true"`
	// Password belongs to User.
	Password Secret `yaml:"password"`
	// PasswordFile is a file with Password.
	PasswordFile string `yaml:"password_file" file:"true"`
}

// Kafka stores messages in topics of Apache Kafka.
type Kafka struct {
	KafkaConnection `yaml:",inline"`
	// TopicPrefix comes before each topic: a message of topic T goes to PREFIX.T; "." for none.
	TopicPrefix string `yaml:"topic_prefix"`
	// Provision says what to do about a topic that does not exist: create it when the
	// first message for it comes (create), or wait until somebody has (none).
	Provision string `yaml:"provision" enum:"create,none"`
	// Partitions of topics that are created; 0 leaves it to the brokers.
	Partitions int `yaml:"partitions"`
	// ReplicationFactor of topics that are created; 0 leaves it to the brokers.
	ReplicationFactor int `yaml:"replication_factor"`
	// TopicConfig are further settings of topics that are created, e.g.
	// min.insync.replicas: "2".
	TopicConfig map[string]string `yaml:"topic_config"`
	// PartitionKey is the metadata key whose value decides about the partition; messages with
	// the same value keep their order. none for no key.
	PartitionKey string `yaml:"partition_key"`
	// Compression of the batches.
	Compression string `yaml:"compression" enum:"none,gzip,snappy,lz4,zstd"`
	// MaxMessageSize is the largest message, headers included; 0 means what the topic takes.
	MaxMessageSize Size `yaml:"max_message_size"`
	// PublishTimeout bounds the storing of one message.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxPending is how many messages may wait for their acknowledgement.
	MaxPending int `yaml:"max_pending"`
	// MaxPendingBytes is how many bytes of them may.
	MaxPendingBytes Size `yaml:"max_pending_bytes"`
	// CloudEvents adds the headers of CloudEvents 1.0.
	CloudEvents *CloudEvents `yaml:"cloud_events"`
}

// NoPartitionKey is the value of [Kafka.PartitionKey] for messages without a key.
const NoPartitionKey = "none"

// CloudEvents adds the headers of CloudEvents 1.0 in binary mode.
type CloudEvents struct {
	// Source is the template of the source, a URI reference.
	Source string `yaml:"source"`
	// TypePrefix comes before the type, e.g. com.example.
	TypePrefix string `yaml:"type_prefix"`
	// Subject is the template of the subject.
	Subject string `yaml:"subject"`
	// ContentTypes gives the media types of message types.
	ContentTypes map[string]string `yaml:"content_types"`
}

// Blob stores messages as files in a directory or bucket.
type Blob struct {
	// URL is the bucket, e.g. file:///var/lib/agrimill/archive?create_dir=true.
	URL URL `yaml:"url"`
	// URLFile is a file with URL, when it holds secrets.
	URLFile string `yaml:"url_file" file:"true"`
	// Path is the template of a payload's name in the bucket. It has to contain {topic} and
	// {id}.
	Path string `yaml:"path"`
	// MaxMessageSize is the largest message, metadata included; 0 means no limit.
	MaxMessageSize Size `yaml:"max_message_size"`
	// Durability is what the bucket promises of what is stored.
	Durability string `yaml:"durability" enum:"unknown,memory,disk,synced,replicated"`
}

// LogSink writes a line of JSON for each message, and stores nothing.
type LogSink struct {
	// PayloadBytes is how many bytes of each payload are shown.
	PayloadBytes Size `yaml:"payload_bytes"`
}
