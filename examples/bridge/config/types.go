package config

import "time"

// Config is the whole configuration of a bridge.
type Config struct {
	// Gateway is the service and how to talk to it.
	Gateway Gateway `yaml:"gateway" required:"true"`
	// Endpoints are created, or brought up to date, when the bridge starts.
	Endpoints []Endpoint `yaml:"endpoints"`
	// Subscriber says how events are received, held and confirmed.
	Subscriber Subscriber `yaml:"subscriber"`
	// Publisher says how messages are sent to the gateway.
	Publisher Publisher `yaml:"publisher"`
	// Sinks are where messages can go, by names of your choice.
	Sinks map[string]Sink `yaml:"sinks"`
	// Routes carry messages from the gateway to a sink, or back.
	Routes []Route `yaml:"routes" required:"true"`
	// Poison is where messages go that cannot be handled.
	Poison Poison `yaml:"poison" required:"true"`
	// Retry says how often and how fast a message is tried again.
	Retry Retry `yaml:"retry"`
	// Dedup is the memory of what was handled, by which copies are recognised.
	Dedup Dedup `yaml:"dedup"`
	// ClaimCheck is the store for payloads that are too large for a message. Without
	// it, a message whose payload is too large for its sink goes to the poison queue.
	ClaimCheck *ClaimCheck `yaml:"claim_check"`
	// Shutdown bounds how long the bridge takes to end.
	Shutdown Shutdown `yaml:"shutdown"`
	// Admin is the HTTP server with the status page, health and metrics.
	Admin Admin `yaml:"admin"`
	// Tracing sends OpenTelemetry spans. Off without an address.
	Tracing Tracing `yaml:"tracing"`
	// Log is about the bridge's own log.
	Log Log `yaml:"log"`

	// Warnings are what is allowed and probably a mistake. Set by Load.
	Warnings []Problem `yaml:"-"`
}

// TLS secures a connection.
type TLS struct {
	// CAFile is a file with the certificates (PEM) of the authorities that are
	// trusted. Without it, those of the system are.
	CAFile string `yaml:"ca_file" file:"true"`
	// CertFile is the certificate of this client (PEM). It needs KeyFile.
	CertFile string `yaml:"cert_file" file:"true"`
	// KeyFile is the private key of CertFile (PEM).
	KeyFile string `yaml:"key_file" file:"true"`
	// ServerName is the name that the server's certificate has to have, when it is
	// not that of the address.
	ServerName string `yaml:"server_name"`
}

// Backoff bounds waits that double, with jitter.
type Backoff struct {
	// Min is the first wait.
	Min time.Duration `yaml:"min"`
	// Max is the longest wait.
	Max time.Duration `yaml:"max"`
}

// Retry says how often and how fast a message is tried again.
type Retry struct {
	// MaxAttempts is how many times a message is handled at most when the handling
	// itself fails, the first time included; then it goes to the poison queue. What
	// is down is tried without limit and does not count.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialInterval is the wait after the first failure. It doubles with each
	// further one, up to MaxInterval, and half of it is random.
	InitialInterval time.Duration `yaml:"initial_interval"`
	// MaxInterval is the longest wait, and so says how long after the end of an outage
	// the flow resumes at the latest.
	MaxInterval time.Duration `yaml:"max_interval"`
}

// Poison is where messages go that cannot be handled.
type Poison struct {
	// Sink is the name of a sink.
	Sink string `yaml:"sink" required:"true"`
	// Topic is where the messages are stored; no template.
	Topic string `yaml:"topic"`
	// Timeout bounds the storing of one message, and of its payload in the claim
	// check, which gets a second more for each MiB.
	Timeout time.Duration `yaml:"timeout"`
}

// Values of [Dedup.Store].
const (
	DedupMemory = "memory"
	DedupBBolt  = "bbolt"
	DedupNATSKV = "nats_kv"
	DedupOff    = "off"
)

// Dedup is the memory of what was handled, by which copies are recognised.
type Dedup struct {
	// Store is where it is kept: in the process (memory), in a file (bbolt), in a
	// bucket of NATS that several processes share (nats_kv), or nowhere (off). When it
	// is left out, the section that is there decides, else it is memory.
	Store string `yaml:"store" enum:"memory,bbolt,nats_kv,off"`
	// Memory is about the store memory.
	Memory *DedupInMemory `yaml:"memory"`
	// BBolt is about the store bbolt, which requires it.
	BBolt *DedupInFile `yaml:"bbolt"`
	// NATSKV is about the store nats_kv, which requires it.
	NATSKV *DedupInNATS `yaml:"nats_kv"`
	// TTL is how long a handled message is remembered.
	TTL time.Duration `yaml:"ttl"`
	// Lease is how long a reservation stands whose holder was killed. It has to be
	// longer than handling a message takes.
	Lease time.Duration `yaml:"lease"`
	// StoreTimeout bounds the recording of one message.
	StoreTimeout time.Duration `yaml:"store_timeout"`
}

// DedupInMemory keeps what was handled in the process; it is gone with it.
type DedupInMemory struct {
	// MaxEntries is how many messages are remembered at most.
	MaxEntries int `yaml:"max_entries"`
}

// DedupInFile keeps what was handled in a file.
type DedupInFile struct {
	// Path is the file. It is created when it is missing; its directory has to exist.
	Path string `yaml:"path" required:"true" file:"true"`
	// MaxEntries is how many messages are remembered at most, about 200 bytes each.
	MaxEntries int `yaml:"max_entries"`
	// OpenTimeout is how long to wait for another process to close the file.
	OpenTimeout time.Duration `yaml:"open_timeout"`
}

// DedupInNATS keeps what was handled in a key-value bucket of NATS 2.11 or later.
type DedupInNATS struct {
	NATSConnection `yaml:",inline"`
	// Bucket is the name of the bucket. It is created when it is missing.
	Bucket string `yaml:"bucket"`
	// Replicas is how many copies a bucket that is created has, 1 to 5.
	Replicas int `yaml:"replicas"`
	// MaxBytes bounds a bucket that is created; 0 means no limit.
	MaxBytes Size `yaml:"max_bytes"`
	// Timeout bounds each request to the server.
	Timeout time.Duration `yaml:"timeout"`
}

// ClaimCheck is a bucket for payloads that are too large for a message.
type ClaimCheck struct {
	// URL is the bucket, e.g. file:///var/lib/agrimill/payloads?create_dir=true.
	URL URL `yaml:"url"`
	// URLFile is a file with URL, when it holds secrets.
	URLFile string `yaml:"url_file" file:"true"`
	// Prefix begins the name of every object.
	Prefix string `yaml:"prefix"`
	// From is the size from which a payload that is not embedded in its event goes
	// into the claim check.
	From Size `yaml:"from"`
}

// Shutdown bounds how long the bridge takes to end.
type Shutdown struct {
	// Timeout is the whole time: open messages are finished and confirmed, then
	// everything is closed. What did not make it comes again.
	Timeout time.Duration `yaml:"timeout"`
}

// Admin is the HTTP server with the status page, health and metrics.
type Admin struct {
	// Address is where it listens, host:port; off for none. Everyone who can reach it
	// sees names of tenants and endpoints.
	Address string `yaml:"address"`
	// Hosts are further host names, without port, under which the server may be asked for. On
	// a loopback address these are otherwise localhost and the loopback addresses only.
	Hosts List `yaml:"hosts"`
	// PProf adds the profiler of Go under /debug/pprof/.
	PProf bool `yaml:"pprof"`
	// Token is what the replay button asks for. Without a token there is no button.
	Token Secret `yaml:"token"`
	// TokenFile is a file with Token.
	TokenFile string `yaml:"token_file" file:"true"`
}

// AdminOff is the value of [Admin.Address] that switches the server off.
const AdminOff = "off"

// Tracing sends OpenTelemetry spans.
type Tracing struct {
	// OTLPEndpoint is the address of a collector that takes OTLP over HTTP, e.g.
	// http://127.0.0.1:4318. Empty means that nothing is traced.
	OTLPEndpoint URL `yaml:"otlp_endpoint"`
	// ServiceName is what the spans are listed under.
	ServiceName string `yaml:"service_name"`
	// SampleRatio is the part of messages that is traced, 0 to 1, when whoever sent
	// them has not decided. 0 for none.
	SampleRatio float64 `yaml:"sample_ratio"`
	// Headers are sent with every request to the collector, e.g. an API key.
	Headers map[string]Secret `yaml:"headers"`
	// TLS is about an https address.
	TLS *TLS `yaml:"tls"`
}

// Log is about the bridge's own log.
type Log struct {
	// Level is the least that is logged.
	Level string `yaml:"level" enum:"debug,info,warn,error"`
	// Format is text, or json with one object a line.
	Format string `yaml:"format" enum:"text,json"`
}
