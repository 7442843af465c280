package config

import (
	"encoding/json"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// Config is the whole configuration of agrimill.
type Config struct {
	// Gateway is the service and how to connect to it.
	Gateway Gateway `yaml:"gateway" required:"true"`
	// Endpoints are created or updated when agrimill starts.
	Endpoints []Endpoint `yaml:"endpoints"`
	// Subscriber receives events and confirms them.
	Subscriber Subscriber `yaml:"subscriber"`
	// Publisher sends messages to the gateway.
	Publisher publisher.Config `yaml:"publisher"`
	// Sinks are the destinations of messages, by names of your choice.
	Sinks map[string]Sink `yaml:"sinks"`
	// Routes move messages from the gateway to a sink, or back.
	Routes []Route `yaml:"routes" required:"true"`
	// Poison is the queue for messages that cannot be handled.
	Poison Poison `yaml:"poison" required:"true"`
	// Retry is how often and how soon a message is retried.
	Retry router.RetrySettings `yaml:"retry"`
	// Dedup recognizes redelivered messages.
	Dedup Dedup `yaml:"dedup"`
	// HA makes several instances work one at a time. Without it, each does everything.
	HA *HA `yaml:"ha"`
	// Devices remembers the device descriptions of teamsets, for the time logs that follow. Without it, their values
	// are numbers without names, units and scales.
	Devices *Devices `yaml:"devices"`
	// ClaimCheck stores payloads that are too large for a message. Without it, a message
	// whose payload is too large for its sink goes to the poison queue.
	ClaimCheck *ClaimCheck `yaml:"claim_check"`
	// Shutdown limits how long agrimill takes to stop.
	Shutdown Shutdown `yaml:"shutdown"`
	// Admin is the HTTP server with the status page, probes and metrics.
	Admin admin.Config `yaml:"admin"`
	// Journal remembers what became of each message.
	Journal Journal `yaml:"journal"`
	// Tracing exports OpenTelemetry spans. Off without an address.
	Tracing Tracing `yaml:"tracing"`
	// Log configures agrimill's own log.
	Log Log `yaml:"log"`

	// Warnings has what is allowed but probably a mistake. Set by Load.
	Warnings []Problem `yaml:"-"`

	// source is where the values come from, kept where those of sections do that a reload left as they were.
	source *sources
	kept   map[string]*sources
	// inFile is the configuration that the file has if sections were left as they were.
	inFile *Config
}

// MarshalJSON returns what may be shown: [Config.Settings].
func (c *Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.Settings()) }

// SecretFile returns the file that the secret at a path such as gateway.client_secret was
// read from; empty if it came from elsewhere.
func (c *Config) SecretFile(path string) string {
	if c.source == nil {
		return ""
	}
	return c.source.secrets[path]
}

// TLS secures a connection.
type TLS struct {
	// CAFile has the certificates (PEM) of trusted authorities. Without it, the system's are
	// trusted.
	CAFile string `yaml:"ca_file" file:"true"`
	// CertFile is this client's certificate (PEM). It needs KeyFile.
	CertFile string `yaml:"cert_file" file:"true"`
	// KeyFile is the private key of CertFile (PEM).
	KeyFile string `yaml:"key_file" file:"true"`
	// ServerName is the name in the server's certificate if it differs from the address.
	ServerName string `yaml:"server_name"`
}

// Devices remembers the device descriptions of teamsets, for every route with filter.farm or
// transform that receives them (iso:11783:-10:device_description:protobuf).
type Devices struct {
	// DevicesConfig says how long time logs wait for their description.
	farm.DevicesConfig `yaml:",inline"`
	// NATSKV keeps them in a NATS bucket, over restarts and for other processes. Without it and kafka, they are known until
	// agrimill exits, and those that were confirmed do not come again.
	NATSKV *DevicesInNATS `yaml:"nats_kv"`
	// Kafka keeps them in a compacted topic of Kafka, over restarts and for other processes.
	Kafka *DevicesInKafka `yaml:"kafka"`
}

// DevicesInKafka is the topic and how to connect to its cluster.
type DevicesInKafka struct {
	kafkadevices.Config `yaml:",inline"`
	// TLS secures the connections; tls: {} is enough with a public certificate.
	TLS *TLS `yaml:"tls"`
}

// NATSConnection is a connection to NATS that a store has for itself.
type NATSConnection struct {
	nats.Connection `yaml:",inline"`
	// TLS secures the connection beyond what the address and the server require.
	TLS *TLS `yaml:"tls"`
}

// DevicesInNATS is the bucket and how to connect to it.
type DevicesInNATS struct {
	NATSConnection     `yaml:",inline"`
	devicestore.Config `yaml:",inline"`
}

// Poison is the queue for messages that cannot be handled.
type Poison struct {
	// Sink is the name of a sink.
	Sink string `yaml:"sink" required:"true"`
	// PoisonConfig sets the topic in the sink, and how long storing may take.
	router.PoisonConfig `yaml:",inline"`
}

// Values of [Dedup.Store].
const (
	DedupMemory = "memory"
	DedupBBolt  = "bbolt"
	DedupNATSKV = "nats_kv"
	DedupOff    = "off"
)

// NoInstance is the value of dedup.instance for a process without a name.
const NoInstance = "-"

// Dedup recognizes redelivered messages.
type Dedup struct {
	// Store is in memory, in a file (bbolt), or in a NATS bucket that processes share (nats_kv). If left out, the
	// section that is present decides; without one, it is memory.
	Store string `yaml:"store" enum:"memory,bbolt,nats_kv,off"`
	// MaxEntries is how many handled messages are remembered, by default 262144 in memory (11 MB), 4194304 in a file
	// (0.8 GB). The closest to expiry are forgotten first.
	MaxEntries int `yaml:"max_entries"`
	// BBolt configures the store bbolt, which requires it.
	BBolt *boltstore.Config `yaml:"bbolt"`
	// NATSKV configures the store nats_kv, which requires it.
	NATSKV *DedupInNATS `yaml:"nats_kv"`
	// DedupSettings set how long handled messages are remembered.
	router.DedupSettings `yaml:",inline"`
}

// DedupInNATS is a dedup store in a key-value bucket of NATS 2.11 or later.
type DedupInNATS struct {
	NATSConnection `yaml:",inline"`
	kvstore.Config `yaml:",inline"`
}

// ClaimCheck is a bucket for payloads that are too large for a message.
type ClaimCheck struct {
	claimcheck.Config `yaml:",inline"`
	// From is the smallest payload that goes there, unless its event embeds it.
	From int64 `yaml:"from" unit:"bytes"`
}

// Shutdown limits how long agrimill takes to stop.
type Shutdown struct {
	// Timeout is the total time. What is not finished by then is redelivered.
	Timeout time.Duration `yaml:"timeout"`
}

// AdminOff is the value of admin.address that turns the server off.
const AdminOff = "off"

// Journal remembers what became of each message, in memory and, with path, in a file. It keeps IDs, types, filenames, sizes, where
// messages were stored, and errors; no payloads.
type Journal struct {
	journal.Config `yaml:",inline"`
}

// Tracing exports OpenTelemetry spans.
type Tracing struct {
	// OTLPEndpoint is the address of a collector of OTLP over HTTP, e.g.
	// http://127.0.0.1:4318. Without it, the environment variables of OpenTelemetry apply:
	// OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and so on. Without either,
	// nothing is traced.
	OTLPEndpoint URL `yaml:"otlp_endpoint"`
	// ServiceName is that of the spans. If left out, OTEL_SERVICE_NAME applies.
	ServiceName string `yaml:"service_name"`
	// SampleRatio is the fraction of messages that is traced, 0 (none) to 1, unless their
	// sender decided.
	SampleRatio float64 `yaml:"sample_ratio"`
	// Headers are sent with every request to the collector, e.g. an API key.
	Headers map[string]Secret `yaml:"headers"`
	// TLS applies to an https address.
	TLS *TLS `yaml:"tls"`

	// Environment is the address in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
	// OTEL_EXPORTER_OTLP_ENDPOINT if the file has none: the exporter then reads all it
	// needs from the environment. Set by Load.
	Environment URL `yaml:"-"`
}

// Log configures agrimill's own log.
type Log struct {
	// Level is the lowest level that is logged.
	Level string `yaml:"level" enum:"debug,info,warn,error"`
	// Format is text, or json with one object per line.
	Format string `yaml:"format" enum:"text,json"`
}
