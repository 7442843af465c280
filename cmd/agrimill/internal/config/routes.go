package config

import (
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// Route moves messages from one place to another.
type Route struct {
	// Name identifies the route. A renamed route forgets what it handled.
	Name string `yaml:"name" required:"true"`
	// From is where messages come from.
	From From `yaml:"from" required:"true"`
	// Filter selects the messages to move. What the filters of all routes refuse is confirmed and
	// dropped, unless subscriber.unmatched says otherwise.
	Filter Filter `yaml:"filter"`
	// Transform decodes farm data (TaskData, EFDI), and passes what cannot be read as it is; or it makes TaskData of a
	// map, and refuses what it cannot be made of.
	Transform farm.TransformConfig `yaml:"transform"`
	// Set sets metadata to the results of expressions (CEL), after transform, e.g. team: '"team of " + tenant'. An
	// empty result removes the key.
	Set map[string]string `yaml:"set"`
	// To is where they go.
	To To `yaml:"to" required:"true"`
	// Durable is what a message from the gateway has to survive before it is confirmed: acknowledged, what the
	// sink's durability says; synced, a power cut of the broker. Then sink and poison queue need synced, too.
	Durable router.Durable `yaml:"durable" enum:"acknowledged,synced"`
}

// From is where messages come from: exactly one of gateway, nats and kafka.
type From struct {
	// Gateway selects: all (messages and files), everything (all events), an event type such
	// as ENDPOINT_DELETED, or a message type.
	Gateway string `yaml:"gateway"`
	// NATS consumes a stream of NATS JetStream.
	NATS *NATSSource `yaml:"nats"`
	// Kafka consumes topics of Apache Kafka.
	Kafka *KafkaSource `yaml:"kafka"`
}

// Values of [From.Gateway] beside event types and message types.
const (
	FromAll        = "all"
	FromEverything = "everything"
)

// EventTypes are the names of all event types.
func EventTypes() (names []string) {
	for _, t := range gateway.EventTypes() {
		names = append(names, string(t))
	}
	return names
}

// GatewayTopic returns what a subscriber of the gateway is subscribed to for From.Gateway.
func (f From) GatewayTopic() string {
	switch f.Gateway {
	case FromAll:
		return subscriber.AllData
	case FromEverything:
		return subscriber.Everything
	}
	return f.Gateway
}

// Kind returns the name of the section that is present: gateway, nats or kafka.
func (f From) Kind() string { return firstKey(f) }

// NATSSource consumes a stream of NATS JetStream.
type NATSSource struct {
	sourcenats.Config `yaml:",inline"`
	// TLS secures the connection beyond what the address and the server require.
	TLS *TLS `yaml:"tls"`
	// Subject selects messages of the stream; * matches one token and > the rest.
	Subject string `yaml:"subject" required:"true"`
}

// KafkaSource consumes topics of Apache Kafka.
type KafkaSource struct {
	sourcekafka.Config `yaml:",inline"`
	// TLS secures the connections; tls: {} is enough with a public certificate.
	TLS *TLS `yaml:"tls"`
}

// Filter selects messages: those that match every key that is set. A key with several
// values matches if one of them does. In type and filename, * matches any characters,
// including none, and ? exactly one.
type Filter struct {
	// Type lists message types, e.g. iso:*.
	Type []string `yaml:"type"`
	// Tenant lists IDs (UUIDs) of tenants.
	Tenant []string `yaml:"tenant"`
	// Endpoint lists IDs or external IDs (with {tenant}) of receivers; to the gateway, of senders. A message waits until it is
	// known whether its endpoint has one of the external IDs.
	Endpoint []string `yaml:"endpoint"`
	// Filename lists file names, e.g. *.zip; case does not matter.
	Filename []string `yaml:"filename"`
	// Expr is an expression in CEL that must be true, e.g.
	// 'filename.lowerAscii().endsWith(".zip")'. A message for which it fails goes to the poison
	// queue.
	Expr string `yaml:"expr"`
	// Farm selects by what is in the payload: machines, tasks, fields, values, times, places.
	Farm *farm.FilterConfig `yaml:"farm"`
}

// Empty reports whether every message matches, as far as its metadata tells without an expression: Expr and Farm may
// still say no.
func (f Filter) Empty() bool {
	return len(f.Type)+len(f.Tenant)+len(f.Endpoint)+len(f.Filename) == 0
}

// selects reports whether anything is refused.
func (f Filter) selects() bool { return !f.Empty() || f.Expr != "" || f.Farm != nil }

// To is where messages go: a sink or the gateway.
type To struct {
	// Sink is the name of a sink.
	Sink string `yaml:"sink"`
	// Topic is the template of the topic in the sink.
	Topic string `yaml:"topic"`
	// Gateway sends through the gateway.
	Gateway *ToGateway `yaml:"gateway"`
}

// ToGateway sends messages through the gateway. The metadata of a message (x-router-…)
// overrides these settings, which override the section publisher. Sender and
// recipients may be external IDs (with {tenant}); until known, messages wait.
type ToGateway struct {
	publisher.Config `yaml:",inline"`
	// Type is the template of the message type.
	Type string `yaml:"type"`
	// Envelope sends ID and metadata inside the payload, for receivers with subscriber.envelope.
	Envelope bool `yaml:"envelope"`
}
