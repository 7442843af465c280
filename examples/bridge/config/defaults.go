package config

import (
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
)

// Defaults that no package has, because they are the bridge's own.
const (
	DefaultNATSURL        = "nats://127.0.0.1:4222"
	DefaultAdminAddress   = "127.0.0.1:9090"
	DefaultMaxInFlight    = 1000
	DefaultAckWait        = 30 * time.Second
	DefaultConsumerPrefix = "agrimill-"
	DefaultMessageType    = "{type}"
	DefaultTracingName    = "agrimill-bridge"
)

// defaulter is a section that knows its defaults. They are set before the file is
// read, so what stands in the file, also a zero, comes before them.
type defaulter interface{ setDefaults() }

func (g *Gateway) setDefaults() {
	*g = Gateway{
		AuthStyle: "basic", ServiceName: gateway.DefaultServiceName, EventTypesEncoding: "repeated", UserAgent: "agrimill-bridge",
		StreamIdleTimeout: gateway.DefaultStreamIdleTimeout, StreamConnectTimeout: gateway.DefaultStreamConnectTimeout,
		RequestTimeout: gateway.DefaultRequestTimeout, MinTransferRate: gateway.DefaultMinTransferRate,
		TokenTimeout: gateway.DefaultTokenTimeout, TokenExpiryMargin: gateway.DefaultTokenExpiryMargin,
		PayloadIdleTimeout: gateway.DefaultPayloadIdleTimeout, MaxPayloadRedirects: gateway.DefaultMaxPayloadRedirects,
		MaxEventSize: gateway.DefaultMaxEventSize, MaxPayloadSize: gateway.DefaultMaxPayloadSize, MaxResponseSize: gateway.DefaultMaxResponseSize,
	}
}

func (r *GatewayRetry) setDefaults() {
	*r = GatewayRetry{MaxAttempts: 5, MinBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second, MaxRetryAfter: 5 * time.Minute}
}

func (e *Endpoint) setDefaults() { e.Type = string(gateway.EndpointTypeCloudSoftware) }

func (c *Capability) setDefaults() { c.Direction = string(gateway.DirectionSendReceive) }

func (s *Subscriber) setDefaults() {
	*s = Subscriber{
		FileHold: time.Minute, WholeFileHold: 2 * time.Second, ChunkSize: 1 << 20, MaxHeld: 10_000,
		MaxInFlight: DefaultMaxInFlight, MaxInFlightBytes: 64 << 20, Order: OrderByEndpoint,
		MaxInline: 256 << 20, MaxDownloads: 4, DownloadRetry: Backoff{Min: 250 * time.Millisecond, Max: 15 * time.Second},
		Nack:            Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second},
		Reconnect:       Backoff{Min: 250 * time.Millisecond, Max: 30 * time.Second},
		RecentConfirmed: 1 << 16, RecentFor: 10 * time.Minute,
	}
}

func (c *Confirm) setDefaults() {
	*c = Confirm{
		MaxBatch: 100, MaxAge: 100 * time.Millisecond, MaxRequests: 4, MaxBacklog: 10_000,
		Retry: Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second},
	}
}

func (p *Publisher) setDefaults() {
	*p = Publisher{MaxRequests: 16, PartialDelivery: PartialDeliveryError}
}

func (c *NATSConnection) setDefaults() {
	*c = NATSConnection{URL: DefaultNATSURL, ConnectTimeout: nats.DefaultConnectTimeout}
}

func (n *NATS) setDefaults() {
	*n = NATS{
		Stream: nats.DefaultStream, SubjectPrefix: nats.DefaultSubjectPrefix, Provision: "create", Storage: "file", Replicas: 1,
		Retention: "limits", DedupWindow: nats.DefaultDedupWindow, PublishTimeout: nats.DefaultPublishTimeout, MaxPending: nats.DefaultMaxPending,
	}
}

func (c *KafkaConnection) setDefaults() {
	*c = KafkaConnection{ClientID: kafka.DefaultClientID, Version: "2.8.0", ConnectTimeout: kafka.DefaultConnectTimeout}
}

func (s *SASL) setDefaults() { s.Mechanism = string(kafka.MechanismPlain) }

func (k *Kafka) setDefaults() {
	*k = Kafka{
		TopicPrefix: kafka.DefaultTopicPrefix, Provision: "create", PartitionKey: gateway.KeyReceivingEndpointID, Compression: "none",
		PublishTimeout: kafka.DefaultPublishTimeout, MaxPending: kafka.DefaultMaxPending, MaxPendingBytes: kafka.DefaultMaxPendingBytes,
	}
}

func (c *CloudEvents) setDefaults() {
	*c = CloudEvents{Source: cloudevents.DefaultSource, Subject: cloudevents.DefaultSubject}
}

func (b *Blob) setDefaults() { *b = Blob{Path: blob.DefaultPath, Durability: "unknown"} }

func (s *NATSSource) setDefaults() {
	*s = NATSSource{MaxInFlight: DefaultMaxInFlight, AckWait: DefaultAckWait}
}

func (s *KafkaSource) setDefaults() { s.Start = "oldest" }

func (t *To) setDefaults() { t.Topic = router.DefaultToTopic }

func (t *ToGateway) setDefaults() { t.Type = DefaultMessageType }

func (p *Poison) setDefaults() {
	*p = Poison{Topic: router.DefaultPoisonTopic, Timeout: router.DefaultPoisonTimeout}
}

func (r *Retry) setDefaults() {
	*r = Retry{MaxAttempts: router.DefaultRetryAttempts, InitialInterval: router.DefaultRetryInitialInterval, MaxInterval: router.DefaultRetryMaxInterval}
}

func (d *Dedup) setDefaults() {
	*d = Dedup{TTL: router.DefaultDedupTTL, Lease: router.DefaultDedupLease, StoreTimeout: router.DefaultStoreTimeout}
}

func (d *DedupInMemory) setDefaults() { d.MaxEntries = router.DefaultMemoryStoreEntries }

func (d *DedupInFile) setDefaults() {
	d.MaxEntries, d.OpenTimeout = boltstore.DefaultMaxEntries, boltstore.DefaultOpenTimeout
}

func (d *DedupInNATS) setDefaults() {
	*d = DedupInNATS{Bucket: kvstore.DefaultBucket, Replicas: 1, Timeout: kvstore.DefaultTimeout}
}

func (c *ClaimCheck) setDefaults() { c.From = 1 << 20 }

func (s *Shutdown) setDefaults() { s.Timeout = router.DefaultCloseTimeout }

func (a *Admin) setDefaults() { a.Address = DefaultAdminAddress }

func (t *Tracing) setDefaults() { *t = Tracing{ServiceName: DefaultTracingName, SampleRatio: 1} }

func (l *Log) setDefaults() { *l = Log{Level: "info", Format: "text"} }

// settle fills in the defaults that depend on other values.
func (c *Config) settle() {
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if e.ApplicationID == "" {
			e.ApplicationID = c.Gateway.ApplicationID
		}
		if e.SoftwareVersionID == "" {
			e.SoftwareVersionID = c.Gateway.SoftwareVersionID
		}
	}
	for _, sink := range c.Sinks {
		if n := sink.NATS; n != nil && n.MaxAge > 0 && n.DedupWindow == nats.DefaultDedupWindow {
			n.DedupWindow = min(n.DedupWindow, n.MaxAge)
		}
	}
	for i := range c.Routes {
		r := &c.Routes[i]
		if s := r.From.NATS; s != nil && s.Durable == "" {
			s.Durable = DefaultConsumerPrefix + nats.TopicSegment(r.Name)
		}
		if s := r.From.Kafka; s != nil && s.Group == "" {
			s.Group = DefaultConsumerPrefix + r.Name
		}
	}
	if c.Subscriber.Payload == "" {
		c.Subscriber.Payload = PayloadInline
		if c.ClaimCheck != nil {
			c.Subscriber.Payload = PayloadClaimCheck
		}
	}
	if c.Dedup.Store == "" {
		switch {
		case c.Dedup.BBolt != nil:
			c.Dedup.Store = DedupBBolt
		case c.Dedup.NATSKV != nil:
			c.Dedup.Store = DedupNATSKV
		default:
			c.Dedup.Store = DedupMemory
		}
	}
	if c.Dedup.Store == DedupMemory && c.Dedup.Memory == nil {
		c.Dedup.Memory = new(DedupInMemory)
		c.Dedup.Memory.setDefaults()
	}
}
