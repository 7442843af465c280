// Package nats reads JetStream streams as a Watermill subscriber with at-least-once
// delivery: every message that is not acknowledged is redelivered. It is the source of
// routes from NATS to the gateway.
package nats

import (
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Defaults of [Config].
const (
	DefaultAckWait     = 30 * time.Second
	DefaultMaxInFlight = 256
)

// ErrClosed: Subscribe was called after Close.
var ErrClosed = final.New("sources/nats: subscriber closed")

// ErrConfig is matched by the errors of [Config.Validate], [New] and
// [Subscriber.Subscribe].
var ErrConfig = final.New("sources/nats: invalid configuration")

// Config configures a [Subscriber]. Only Durable is required.
type Config struct {
	// Connection is how to connect; its ConnectTimeout also bounds each request about the
	// consumer.
	nats.Connection `yaml:",inline"`
	// Name is the client name of the connection. Default "agrimill".
	Name string `yaml:"-"`

	// Stream is the stream to read from. Empty means the one that has the subject.
	Stream string `yaml:"stream"`
	// Durable is the name of the durable consumer. It keeps track of acknowledgments on the
	// server, and is created if missing; processes that use the same one share the work.
	// Required.
	Durable string `yaml:"durable"`
	// NewOnly makes a newly created consumer start with messages stored from then on.
	// Default: with the first message of the stream.
	NewOnly bool `yaml:"-"`

	// AckWait is how long after the last sign of progress the server redelivers a message.
	// The Subscriber reports progress for as long as a message is being handled. Default
	// [DefaultAckWait]; at least one second.
	AckWait time.Duration `yaml:"ack_wait"`
	// MaxInFlight is how many messages may be delivered but not yet acknowledged. Several
	// are handled concurrently and may overtake each other; 1 keeps the order. Default
	// [DefaultMaxInFlight].
	MaxInFlight int `yaml:"max_in_flight"`
	// Unmarshaler creates the Watermill messages. Default [nats.Marshaler], which accepts
	// any message. If it fails, the message is not delivered but redelivered later.
	Unmarshaler wmnats.Unmarshaler `yaml:"-"`
	// CloseTimeout is how long Close, and the end of a subscription, wait for messages that
	// are being handled. Default [nats.DefaultCloseTimeout].
	CloseTimeout time.Duration `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	if c.AckWait == 0 {
		c.AckWait = DefaultAckWait
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.Unmarshaler == nil {
		c.Unmarshaler = nats.Marshaler{}
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = nats.DefaultCloseTimeout
	}
	if c.Name == "" {
		c.Name = nats.DefaultName
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = nats.DefaultConnectTimeout
	}
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c.setDefaults()
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(c.Durable != "", "Durable", "is required")
	e.Check(nats.ValidName(c.Durable), "Durable", nats.NameRule)
	e.Check(nats.ValidName(c.Stream), "Stream", nats.NameRule)
	e.Check(c.AckWait >= time.Second, "AckWait", "must be at least 1s")
	validate.NotNegative(&e, "MaxInFlight", c.MaxInFlight)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	return e.Err(ErrConfig)
}
