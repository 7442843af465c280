package config

import (
	"time"

	"github.com/agrimill/agrimill/subscriber"
)

// Route carries messages from one place to another.
type Route struct {
	// Name names the route in logs, metrics, the poison queue and the memory of what
	// was handled: a route that is renamed does not know what it handled.
	Name string `yaml:"name" required:"true"`
	// From says where messages come from.
	From From `yaml:"from" required:"true"`
	// Filter says which of them are carried. Others are confirmed and dropped.
	Filter Filter `yaml:"filter"`
	// To says where they go.
	To To `yaml:"to" required:"true"`
}

// From says where messages come from: exactly one of gateway, nats and kafka.
type From struct {
	// Gateway takes from the gateway: all for messages and files, everything for events
	// of any kind, an event type such as ENDPOINT_DELETED, or a message type.
	Gateway string `yaml:"gateway"`
	// NATS takes from a stream of NATS JetStream.
	NATS *NATSSource `yaml:"nats"`
	// Kafka takes from topics of Apache Kafka.
	Kafka *KafkaSource `yaml:"kafka"`
}

// Values of [From.Gateway] beside event types and message types.
const (
	FromAll        = "all"
	FromEverything = "everything"
)

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

// Kind returns the name of the section that is there: gateway, nats or kafka.
func (f From) Kind() string {
	switch {
	case f.Gateway != "":
		return "gateway"
	case f.NATS != nil:
		return "nats"
	case f.Kafka != nil:
		return "kafka"
	}
	return ""
}

// NATSSource takes messages from a stream of NATS JetStream.
type NATSSource struct {
	NATSConnection `yaml:",inline"`
	// Stream is the name of the stream. Without it, the server finds the one that holds
	// the subject.
	Stream string `yaml:"stream"`
	// Subject says which messages of the stream; * stands for one part and > for the rest.
	Subject string `yaml:"subject" required:"true"`
	// Durable is the name of the consumer that remembers what was taken. Processes that share
	// it share the work. Default: agrimill- and the name of the route.
	Durable string `yaml:"durable"`
	// MaxInFlight is how many messages may be open at a time.
	MaxInFlight int `yaml:"max_in_flight"`
	// AckWait is how long the server waits for a message before it gives it to somebody else.
	AckWait time.Duration `yaml:"ack_wait"`
}

// KafkaSource takes messages from topics of Apache Kafka.
type KafkaSource struct {
	KafkaConnection `yaml:",inline"`
	// Topics are the topics, whole names.
	Topics List `yaml:"topics" required:"true"`
	// Group is the consumer group that remembers what was taken. Processes that share it
	// share the work. Default: agrimill- and the name of the route.
	Group string `yaml:"group"`
	// Start is where a new group begins.
	Start string `yaml:"start" enum:"oldest,newest"`
}

// Filter says which messages are carried: those that match every key that is there. A
// key with several values matches when one of them does. In type and filename, * stands for
// any characters, also none, and ? for one.
type Filter struct {
	// Type are message types, e.g. iso:*.
	Type List `yaml:"type"`
	// Tenant are IDs (UUIDs) of tenants.
	Tenant List `yaml:"tenant"`
	// Endpoint are IDs (UUIDs) of receiving endpoints; on the way to the gateway, of
	// sending ones.
	Endpoint List `yaml:"endpoint"`
	// Filename are names of files, e.g. *.zip, in upper or lower case.
	Filename List `yaml:"filename"`
}

// Empty reports whether every message matches.
func (f Filter) Empty() bool {
	return len(f.Type)+len(f.Tenant)+len(f.Endpoint)+len(f.Filename) == 0
}

// To says where messages go: to a sink, or to the gateway.
type To struct {
	// Sink is the name of a sink.
	Sink string `yaml:"sink"`
	// Topic is the template of the topic in the sink: variables in braces, and after a bar
	// what stands in for a value that is missing.
	Topic string `yaml:"topic"`
	// Gateway sends through the gateway.
	Gateway *ToGateway `yaml:"gateway"`
}

// ToGateway sends messages through the gateway. What a message says in its metadata
// (x-router-…) comes before what is said here.
type ToGateway struct {
	// Tenant is the ID (UUID) of the tenant.
	Tenant string `yaml:"tenant"`
	// Endpoint is the ID (UUID) of the sending endpoint.
	Endpoint string `yaml:"endpoint"`
	// Recipients are IDs (UUIDs) of endpoints that get the messages directly. Without
	// them, messages are published to whoever is subscribed to their type.
	Recipients List `yaml:"recipients"`
	// Type is the template of the message type.
	Type string `yaml:"type"`
	// TeamsetContextID is the teamset context.
	TeamsetContextID string `yaml:"teamset_context_id"`
	// Envelope sends ID and metadata inside of the payload, for a receiver with
	// subscriber.envelope. Others cannot read such a payload.
	Envelope bool `yaml:"envelope"`
}
