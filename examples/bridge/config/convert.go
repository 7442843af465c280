package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/IBM/sarama"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/logsink"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// This file turns the sections into the configurations of the packages that they
// are for. Nothing connects. Values that enum: allows are told apart here, others
// are the zero value, which Load does not let through.

// ErrTLS is matched by the errors of [TLS.Config].
var ErrTLS = errors.New("unusable certificates")

// Config reads the files and returns the configuration; nil for nil. The error
// matches [ErrTLS].
func (t *TLS) Config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%w: CAFile: %w", ErrTLS, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: CAFile holds no certificate (PEM)", ErrTLS)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		switch {
		case t.KeyFile == "":
			return nil, fmt.Errorf("%w: CertFile needs KeyFile", ErrTLS)
		case t.CertFile == "":
			return nil, fmt.Errorf("%w: KeyFile needs CertFile", ErrTLS)
		}
		certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%w: CertFile: %w", ErrTLS, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// ClientConfig returns the configuration of the gateway's client. Logger is left to
// the caller. It reads the files of TLS.
func (g Gateway) ClientConfig() (gateway.Config, error) {
	secured, err := g.TLS.Config()
	config := gateway.Config{
		BaseURL: string(g.BaseURL), TokenURL: string(g.TokenURL), ClientID: g.ClientID, ClientSecret: g.ClientSecret.Reveal(), Scopes: g.Scopes,
		ServiceName: g.ServiceName, UserAgent: g.UserAgent, TLS: secured,
		StreamIdleTimeout: g.StreamIdleTimeout, StreamConnectTimeout: g.StreamConnectTimeout, RequestTimeout: g.RequestTimeout,
		MinTransferRate: int64(g.MinTransferRate), TokenTimeout: g.TokenTimeout, TokenExpiryMargin: g.TokenExpiryMargin,
		PayloadIdleTimeout: g.PayloadIdleTimeout, MaxPayloadRedirects: g.MaxPayloadRedirects, AllowPrivatePayloadRedirects: g.AllowPrivatePayloadRedirects,
		MaxEventSize: int(g.MaxEventSize), MaxPayloadSize: int64(g.MaxPayloadSize), MaxResponseSize: int64(g.MaxResponseSize),
		Retry: gateway.RetryConfig{
			MaxAttempts: g.Retry.MaxAttempts, MinBackoff: g.Retry.MinBackoff, MaxBackoff: g.Retry.MaxBackoff, MaxRetryAfter: g.Retry.MaxRetryAfter,
		},
	}
	if g.AuthStyle == "params" {
		config.AuthStyle = gateway.AuthStyleParams
	}
	if g.EventTypesEncoding == "comma" {
		config.EventTypesEncoding = gateway.EventTypesComma
	}
	return config, err
}

// Request returns the request that makes the endpoint.
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

// SubscriberConfig returns the configuration of the gateway's subscriber. Client,
// Tenants, Hooks and, for PayloadClaimCheck, the claim check are left to the caller.
func (c *Config) SubscriberConfig() subscriber.Config {
	s := c.Subscriber
	config := subscriber.Config{
		Files: s.Files, FileHold: s.FileHold, WholeFileHold: s.WholeFileHold, ChunkSize: int(s.ChunkSize), MaxHeld: s.MaxHeld,
		MaxInFlight: s.MaxInFlight, MaxInFlightBytes: int64(s.MaxInFlightBytes),
		Nack: subscriber.Backoff(s.Nack), Reconnect: subscriber.Backoff(s.Reconnect),
		Confirm: subscriber.ConfirmConfig{
			MaxBatch: s.Confirm.MaxBatch, MaxAge: s.Confirm.MaxAge, MaxRequests: s.Confirm.MaxRequests, MaxBacklog: s.Confirm.MaxBacklog,
			Retry: subscriber.Backoff(s.Confirm.Retry),
		},
		RecentConfirmed: s.RecentConfirmed, RecentFor: s.RecentFor,
		Payload:      subscriber.PayloadConfig{MaxInline: int64(s.MaxInline), MaxDownloads: s.MaxDownloads, Retry: subscriber.Backoff(s.DownloadRetry)},
		CloseTimeout: c.Shutdown.Timeout,
	}
	for _, t := range s.EventTypes {
		config.EventTypes = append(config.EventTypes, gateway.EventType(t))
	}
	if s.Order == OrderNone {
		config.Order = subscriber.Unordered
	}
	if s.Envelope {
		config.Unmarshaler = subscriber.EnvelopeUnmarshaler{}
	}
	switch s.Payload {
	case PayloadClaimCheck:
		config.Payload.Mode = subscriber.PayloadClaimCheck
		if c.ClaimCheck != nil {
			config.Payload.ClaimCheckFrom = int64(c.ClaimCheck.From)
		}
	case PayloadLazy:
		config.Payload.Mode = subscriber.PayloadLazy
	}
	return config
}

// PublisherConfig returns the configuration of the publisher of one route. Client and
// ClaimCheck are left to the caller.
func (c *Config) PublisherConfig(to ToGateway) publisher.Config {
	config := publisher.Config{
		TenantID: to.Tenant, EndpointID: to.Endpoint, DirectRecipients: to.Recipients, TeamsetContextID: to.TeamsetContextID,
		MaxRequests: c.Publisher.MaxRequests, CloseTimeout: c.Shutdown.Timeout,
	}
	if to.Envelope {
		config.Marshaler = publisher.EnvelopeMarshaler{}
	}
	if c.Publisher.PartialDelivery == PartialDeliverySent {
		config.PartialDelivery = publisher.PartialDeliveryIsSent
	}
	return config
}

// RouterConfig returns the configuration of a router. Poison, Dedup.Store, ClaimCheck and
// Observer are left to the caller.
func (c *Config) RouterConfig() router.Config {
	return router.Config{
		PoisonTopic: c.Poison.Topic, PoisonTimeout: c.Poison.Timeout,
		Retry: router.RetryConfig{
			MaxAttempts: c.Retry.MaxAttempts, InitialInterval: c.Retry.InitialInterval, MaxInterval: c.Retry.MaxInterval,
		},
		Dedup:        router.DedupConfig{TTL: c.Dedup.TTL, Lease: c.Dedup.Lease, StoreTimeout: c.Dedup.StoreTimeout, Off: c.Dedup.Store == DedupOff},
		CloseTimeout: c.Shutdown.Timeout,
	}
}

// StoreConfig returns the configuration of the store in memory.
func (d DedupInMemory) StoreConfig() router.MemoryStoreConfig {
	return router.MemoryStoreConfig{MaxEntries: d.MaxEntries}
}

// StoreConfig returns the configuration of the store in a file.
func (d DedupInFile) StoreConfig() boltstore.Config {
	return boltstore.Config{Path: d.Path, MaxEntries: d.MaxEntries, OpenTimeout: d.OpenTimeout}
}

// StoreConfig returns the configuration of the store in a bucket that keeps what was
// handled for ttl. Conn is left to the caller.
func (d DedupInNATS) StoreConfig(dedup Dedup) kvstore.Config {
	return kvstore.Config{Bucket: d.Bucket, TTL: dedup.TTL, Replicas: d.Replicas, MaxBytes: int64(d.MaxBytes), Timeout: d.Timeout}
}

// StoreConfig returns the configuration of the claim check.
func (c ClaimCheck) StoreConfig() claimcheck.Config {
	return claimcheck.Config{URL: string(c.URL), Prefix: c.Prefix}
}

// connect sets what a sink's configuration says about the connection. It reads the
// files of TLS.
func (c NATSConnection) connect(config *nats.Config) error {
	secured, err := c.TLS.Config()
	config.URL, config.User, config.Password, config.Token = string(c.URL), c.User, c.Password.Reveal(), c.Token.Reveal()
	config.CredentialsFile, config.NKeySeedFile = c.CredentialsFile, c.NKeySeedFile
	config.TLS, config.ConnectTimeout = secured, c.ConnectTimeout
	return err
}

// Options returns the options of a connection to c.URL that is not a sink's: for
// sources and for the memory of duplicates. It reads files. It reconnects without end.
func (c NATSConnection) Options(name string) ([]natsgo.Option, error) {
	options := []natsgo.Option{
		natsgo.Name(name), natsgo.Timeout(c.ConnectTimeout), natsgo.MaxReconnects(-1), natsgo.IgnoreAuthErrorAbort(), natsgo.ReconnectBufSize(-1),
	}
	switch {
	case c.User != "" || c.Password.IsSet():
		options = append(options, natsgo.UserInfo(c.User, c.Password.Reveal()))
	case c.Token.IsSet():
		options = append(options, natsgo.Token(c.Token.Reveal()))
	case c.CredentialsFile != "":
		options = append(options, natsgo.UserCredentials(c.CredentialsFile))
	case c.NKeySeedFile != "":
		option, err := natsgo.NkeyOptionFromSeed(c.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("NKeySeedFile: %w", err)
		}
		options = append(options, option)
	}
	secured, err := c.TLS.Config()
	if secured != nil {
		options = append(options, natsgo.Secure(secured))
	}
	return options, err
}

// SinkConfig returns the configuration of the sink, whose name is the one it has in
// the file. It reads the files of TLS.
func (n NATS) SinkConfig(name string) (nats.Config, error) {
	config := nats.Config{
		Name: name, Stream: n.Stream, SubjectPrefix: n.SubjectPrefix, Replicas: n.Replicas, SyncAlways: n.SyncAlways,
		MaxAge: n.MaxAge, MaxBytes: int64(n.MaxBytes), MaxMessages: n.MaxMessages, DiscardOld: n.DiscardOld,
		MaxMessageSize: clamp32(n.MaxMessageSize), DedupWindow: n.DedupWindow, CloudEvents: n.CloudEvents.config(),
		PublishTimeout: n.PublishTimeout, MaxPending: n.MaxPending,
	}
	switch n.Provision {
	case "update":
		config.Provision = nats.ProvisionUpdate
	case "none":
		config.Provision = nats.ProvisionNone
	}
	if n.Storage == "memory" {
		config.Storage = jetstream.MemoryStorage
	}
	switch n.Retention {
	case "interest":
		config.Retention = jetstream.InterestPolicy
	case "workqueue":
		config.Retention = jetstream.WorkQueuePolicy
	}
	return config, n.connect(&config)
}

// clamp32 keeps a size that is out of range out of range.
func clamp32(size Size) int32 {
	if size > 1<<31-1 {
		return 1<<31 - 1
	}
	return int32(max(size, -1))
}

func (c *CloudEvents) config() *cloudevents.Config {
	if c == nil {
		return nil
	}
	return &cloudevents.Config{Source: c.Source, TypePrefix: c.TypePrefix, Subject: c.Subject, ContentTypes: c.ContentTypes}
}

// compression reads a value of [Kafka.Compression].
func compression(name string) sarama.CompressionCodec {
	switch name {
	case "gzip":
		return sarama.CompressionGZIP
	case "snappy":
		return sarama.CompressionSnappy
	case "lz4":
		return sarama.CompressionLZ4
	case "zstd":
		return sarama.CompressionZSTD
	}
	return sarama.CompressionNone
}

// connect sets what a sink's configuration says about the connection. It reads the
// files of TLS.
func (c KafkaConnection) connect(config *kafka.Config) error {
	config.Brokers, config.ClientID, config.ConnectTimeout = c.Brokers, c.ClientID, c.ConnectTimeout
	if c.SASL != nil {
		config.SASL = kafka.SASL{Mechanism: kafka.Mechanism(c.SASL.Mechanism), User: c.SASL.User, Password: c.SASL.Password.Reveal()}
	}
	version, err := sarama.ParseKafkaVersion(c.Version)
	if err != nil {
		return fmt.Errorf("%w: Version: must be a version of Kafka such as 3.6.0", kafka.ErrConfig)
	}
	config.Version = version
	config.TLS, err = c.TLS.Config()
	return err
}

// SinkConfig returns the configuration of the sink, whose name is the one it has in
// the file. It reads the files of TLS.
func (k Kafka) SinkConfig(name string) (kafka.Config, error) {
	config := kafka.Config{
		Name: name, TopicPrefix: k.TopicPrefix, Partitions: clamp32(Size(k.Partitions)),
		ReplicationFactor: int16(min(clamp32(Size(k.ReplicationFactor)), 1<<15-1)), TopicConfig: k.TopicConfig,
		PartitionKey: kafka.MetadataKey(k.PartitionKey), Compression: compression(k.Compression), MaxMessageSize: int(k.MaxMessageSize),
		CloudEvents: k.CloudEvents.config(), PublishTimeout: k.PublishTimeout, MaxPending: k.MaxPending, MaxPendingBytes: int64(k.MaxPendingBytes),
	}
	if k.Provision == "none" {
		config.Provision = kafka.ProvisionNone
	}
	if k.PartitionKey == NoPartitionKey {
		config.PartitionKey = kafka.NoPartitionKey
	}
	return config, k.connect(&config)
}

// ClientConfig returns the configuration of a Kafka client that is not a sink's. It
// is made by the sink's rules, so TLS, SASL and version mean the same. Brokers are
// c.Brokers. It reads the files of TLS.
func (c KafkaConnection) ClientConfig() (*sarama.Config, error) {
	sink := kafka.Config{}
	if err := c.connect(&sink); err != nil {
		return nil, err
	}
	return sink.ClientConfig(), nil
}

// durability reads a value of [Blob.Durability].
func durability(name string) sinks.Durability {
	for d := sinks.DurabilityUnknown; d <= sinks.DurabilityReplicated; d++ {
		if d.String() == name {
			return d
		}
	}
	return sinks.DurabilityUnknown
}

// SinkConfig returns the configuration of the sink. Bucket (b.URL) and ClaimCheck are left
// to the caller.
func (b Blob) SinkConfig() blob.Config {
	return blob.Config{Path: b.Path, MaxMessageSize: int64(b.MaxMessageSize), Durability: durability(b.Durability)}
}

// SinkConfig returns the configuration of the sink. Writer is left to the caller.
func (l LogSink) SinkConfig() logsink.Config {
	return logsink.Config{PayloadBytes: int(l.PayloadBytes)}
}

// SlogLevel returns the level of the log.
func (l Log) SlogLevel() slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(l.Level)) != nil {
		return slog.LevelInfo
	}
	return level
}
