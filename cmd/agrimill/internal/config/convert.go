package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	"github.com/agrimill/agrimill/stores/kafka/poisonqueue"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	natsqueue "github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

// This file turns the sections into the configurations of the packages. What has an error reads the files of TLS. Nothing
// connects. Connections, loggers, clients, stores and names that are not in the section are left to the caller.

// ErrTLS is matched by the errors of [TLS.Config].
var ErrTLS = errors.New("unusable certificates")

// Config reads the files and returns the configuration; nil for nil. The error matches
// [ErrTLS] and has a mistake under TLS for each unusable file.
func (t *TLS) Config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	var e validate.Errors
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			e.AddCause(err, "TLS.CAFile", "%s", fileError(err))
		}
		config.RootCAs = x509.NewCertPool()
		if err == nil && !config.RootCAs.AppendCertsFromPEM(pem) {
			e.Add("TLS.CAFile", "contains no PEM certificate")
		}
	}
	config.Certificates = admin.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile}.Load(&e)
	if err := e.Err(ErrTLS); err != nil {
		return nil, err
	}
	return config, nil
}

// Leaf returns the first certificate in a file.
func Leaf(file string) (*x509.Certificate, error) {
	text, err := readBounded(file, MaxFileSize)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("contains no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// ClientConfig returns the configuration of the gateway's client.
func (g Gateway) ClientConfig() (config gateway.Config, err error) {
	config = g.Config
	config.TLS, err = g.TLS.Config()
	return config, err
}

// ReadClientSecret returns the current client secret: the one in its file, or else the one
// in the configuration. The error does not contain it.
func (c *Config) ReadClientSecret() (Secret, error) {
	file := c.SecretFile("gateway.client_secret")
	if file == "" {
		return c.Gateway.ClientSecret, nil
	}
	secret, err := ReadSecret(file)
	if err != nil {
		return "", fmt.Errorf("client_secret_file: %w", err)
	}
	return Secret(secret), nil
}

// Request returns the request that creates the endpoint.
func (e Endpoint) Request() gateway.PutEndpointRequest {
	request := gateway.PutEndpointRequest{
		Name: e.Name, ApplicationID: e.ApplicationID, SoftwareVersionID: e.SoftwareVersionID, EndpointType: gateway.EndpointType(e.Type),
		AllowDeleteByUser: e.AllowDeleteByUser, ConnectionsURI: e.ConnectionsURI,
	}
	for _, c := range e.Capabilities {
		request.Capabilities = append(request.Capabilities, gateway.EndpointCapability{MessageType: c.Type, Direction: gateway.Direction(c.Direction)})
	}
	for _, t := range e.Subscriptions {
		request.Subscriptions = append(request.Subscriptions, gateway.EndpointSubscription{MessageType: t})
	}
	return request
}

// SubscriberConfig returns the configuration of the gateway's subscriber.
func (c *Config) SubscriberConfig() subscriber.Config {
	config := c.Subscriber.Config
	config.CloseTimeout = c.Shutdown.Timeout
	if c.Subscriber.Envelope {
		config.Unmarshaler = subscriber.EnvelopeUnmarshaler{}
	}
	if c.ClaimCheck != nil {
		config.Payload.ClaimCheckFrom = c.ClaimCheck.From
	}
	config.Payload.MaxInline = c.Gateway.MaxPayloadSize // the client downloads no more
	return config
}

// PublisherConfig returns the configuration of the publisher of one route. The section
// publisher provides what the route does not set.
func (c *Config) PublisherConfig(to ToGateway) publisher.Config {
	config := to.Config
	defaults := reflect.ValueOf(c.Publisher)
	for i, v := 0, reflect.ValueOf(&config).Elem(); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			v.Field(i).Set(defaults.Field(i))
		}
	}
	config.PartialDelivery = to.PartialDelivery // of a file, see deriveDefaults
	config.CloseTimeout = c.Shutdown.Timeout
	if to.Envelope {
		config.Marshaler = publisher.EnvelopeMarshaler{}
	}
	return config
}

// RouterConfig returns the configuration of a router.
func (c *Config) RouterConfig() router.Config {
	config := router.Config{
		PoisonTopic: c.Poison.Topic, FailingAfter: c.Poison.FailingAfter,
		Retry: c.Retry, Dedup: c.Dedup.DedupSettings, CloseTimeout: c.Shutdown.Timeout,
	}
	config.Dedup.NeverChunkBelow = c.neverChunkBelow()
	if c.Dedup.Store == DedupOff {
		config.Dedup.KeyFunc = router.NoKeys
	}
	return config
}

// KeysConfig returns how messages are recognized.
func (c *Config) KeysConfig() router.KeysConfig {
	return router.KeysConfig{NeverChunkBelow: c.neverChunkBelow()}
}

// neverChunkBelow leaves room for a service whose chunks are somewhat smaller than it says.
func (c *Config) neverChunkBelow() int64 { return int64(c.Subscriber.ChunkSize / 2) }

// StoreConfig returns the configuration of the store in a bucket.
func (d DedupInNATS) StoreConfig(dedup Dedup) kvstore.Config {
	config := d.Config
	config.Domain, config.TTL = d.Connection.Domain, dedup.TTL
	return config
}

// StoreConfig returns the configuration of the store in a topic.
func (d DevicesInKafka) StoreConfig() (config kafkadevices.Config, err error) {
	config = d.Config
	config.Connection.TLS, err = d.TLS.Config()
	return config, err
}

// StoreConfig returns the configuration of the store in a bucket.
func (d DevicesInNATS) StoreConfig() devicestore.Config {
	config := d.Config
	config.Domain = d.Connection.Domain
	return config
}

// Connect connects under a client name.
func (c NATSConnection) Connect(name string, options ...natsgo.Option) (*natsgo.Conn, error) {
	var err error
	if c.Connection.TLS, err = c.TLS.Config(); err != nil {
		return nil, err
	}
	return c.Connection.Connect(name, options...)
}

// SinkConfig returns the configuration of the sink, whose name is the one it has in the file.
func (n NATS) SinkConfig(name string) (config nats.Config, err error) {
	config = n.Config
	config.Name = name
	config.TLS, err = n.TLS.Config()
	return config, err
}

// Connect opens a connection of its own, beside the sink's, under a client name.
func (n NATS) Connect(name string, options ...natsgo.Option) (*natsgo.Conn, error) {
	return NATSConnection{n.Config.Connection, n.TLS}.Connect(name, options...)
}

// PoisonQueueConfig returns where the poison queue is that the sink writes to a topic.
func (n NATS) PoisonQueueConfig(topic string) natsqueue.Config {
	return natsqueue.Config{Domain: n.Domain, Stream: n.Stream, SubjectPrefix: n.SubjectPrefix, Topic: topic}
}

// SinkConfig returns the configuration of the sink, whose name is the one it has in the file.
func (k Kafka) SinkConfig(name string) (config kafka.Config, err error) {
	config = k.Config
	config.Name, config.PartitionKey = name, kafka.MetadataKey(k.PartitionKey)
	if k.PartitionKey == NoPartitionKey {
		config.PartitionKey = kafka.NoPartitionKey
	}
	config.Connection, err = k.Connection()
	return config, err
}

// Connection returns how to connect to the cluster of the sink.
func (k Kafka) Connection() (connection kafka.Connection, err error) {
	connection = k.Config.Connection
	connection.TLS, err = k.TLS.Config()
	return connection, err
}

// PoisonQueueConfig returns how the poison queue is found that the sink writes to a topic.
func (k Kafka) PoisonQueueConfig(topic string) (poisonqueue.Config, error) {
	connection, err := k.Connection()
	return poisonqueue.Config{
		Connection: connection, TopicPrefix: k.TopicPrefix, Topic: topic, Provision: k.Provision, ReplicationFactor: k.ReplicationFactor,
	}, err
}

// SourceConfig returns the configuration of the source.
func (s NATSSource) SourceConfig() (config sourcenats.Config, err error) {
	config = s.Config
	config.SubjectPrefix = nats.NoSubjectPrefix // the file names whole subjects
	config.TLS, err = s.TLS.Config()
	return config, err
}

// SourceConfig returns the configuration of the source.
func (s KafkaSource) SourceConfig() (config sourcekafka.Config, err error) {
	config = s.Config
	config.TopicPrefix = kafka.NoTopicPrefix // the file names whole topics
	config.TLS, err = s.TLS.Config()
	return config, err
}

// SlogLevel returns the level of the log.
func (l Log) SlogLevel() slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(l.Level)) != nil {
		return slog.LevelInfo
	}
	return level
}
