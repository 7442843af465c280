package config

import (
	"reflect"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/logsink"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Sink is a destination of messages: exactly one of nats, kafka, blob and log.
type Sink struct {
	// NATS stores messages in a stream of NATS JetStream.
	NATS *NATS `yaml:"nats"`
	// Kafka stores messages in topics of Apache Kafka.
	Kafka *Kafka `yaml:"kafka"`
	// Blob stores messages as files in a directory or bucket.
	Blob *Blob `yaml:"blob"`
	// Log writes a line of JSON for each message to standard output and stores nothing.
	Log *logsink.Config `yaml:"log"`
}

// Kind returns the name of the section that is present: nats, kafka, blob or log.
func (s Sink) Kind() string { return firstKey(s) }

// firstKey returns the first key of a section that has a value; empty if none has.
func firstKey(section any) string {
	v := reflect.ValueOf(section)
	for _, f := range fields(v.Type()) {
		if !v.FieldByIndex(f.index).IsZero() {
			return f.name
		}
	}
	return ""
}

// synced reports whether the sink says when what it has acknowledged survives a power cut, or may know.
func (s Sink) synced() bool {
	return s.NATS != nil && s.NATS.Synced.Known() || s.Kafka != nil && s.Kafka.Synced.Known() || s.Blob != nil
}

// Topics says which topics the sink takes, as the sink itself does once it is open.
func (s Sink) Topics() sinks.Topics {
	switch {
	case s.NATS != nil:
		return s.NATS
	case s.Kafka != nil:
		return s.Kafka
	case s.Blob != nil:
		return s.Blob
	}
	return sinks.AnyTopics{}
}

// NATS stores messages in a stream of NATS JetStream.
type NATS struct {
	nats.Config `yaml:",inline"`
	// TLS secures the connection beyond what the address and the server require.
	TLS *TLS `yaml:"tls"`
}

// Kafka stores messages in topics of Apache Kafka.
type Kafka struct {
	kafka.Config `yaml:",inline"`
	// TLS secures the connections; tls: {} is enough with a public certificate.
	TLS *TLS `yaml:"tls"`
	// PartitionKey is the metadata key whose value selects the partition, or none.
	PartitionKey string `yaml:"partition_key"`
}

// NoPartitionKey is the value of [Kafka.PartitionKey] for messages without a key.
const NoPartitionKey = "none"

// Blob stores messages as files in a directory or bucket.
type Blob struct {
	// URL is the bucket, e.g. file:///var/lib/agrimill/archive?create_dir=true.
	URL         URL `yaml:"url" twin:"true"`
	blob.Config `yaml:",inline"`
}

// SinkOf returns the name of the sink of a route, or of the poison queue; empty if there is no such route.
func (c *Config) SinkOf(route string, poisoned bool) string {
	if poisoned {
		return c.Poison.Sink
	}
	for _, r := range c.Routes {
		if r.Name == route {
			return r.To.Sink
		}
	}
	return ""
}
