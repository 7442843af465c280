// Package nats reads JetStream streams as a Watermill subscriber, for routes from NATS to the
// gateway or anywhere else.
//
//	src, err := nats.New(nats.Config{Connection: sinknats.Connection{URL: "nats://localhost:4222"}, Durable: "to-the-gateway"}, nil)
//	…
//	err = r.Add(router.Route{Name: "reports", From: src, Topic: "reports.>", To: pub})
//
// Delivery is at least once: a message that is not acked is redelivered. Messages of one key
// (Config.KeyHeader, else the subject) are delivered in order, one at a time, those of
// different keys in parallel.
package nats

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Defaults of [Config].
const (
	DefaultAckWait     = 30 * time.Second
	DefaultMaxInFlight = 256
	// DefaultMaxNackDelay is that of Config.MaxNackDelay.
	DefaultMaxNackDelay = 30 * time.Second
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

	// SubjectPrefix comes before the topics of Subscribe, with a dot, as in the sink: [nats.Subject]. Default
	// [nats.DefaultSubjectPrefix]; [nats.NoSubjectPrefix] for subjects that no sink of this module writes.
	SubjectPrefix string `yaml:"-"`
	// Stream is the stream to read; empty means the one that has the subject.
	Stream string `yaml:"stream"`
	// Durable is the name of the durable consumer. It keeps track of acknowledgments on the
	// server, and is created if missing; processes that use the same one share the work.
	// Required.
	Durable string `yaml:"durable"`
	// NewOnly makes a newly created consumer start with messages stored from then on.
	// Default: with the first message of the stream.
	NewOnly bool `yaml:"-"`

	// AckWait is how long after the last sign of progress the server redelivers a message.
	// The Subscriber reports progress from receipt until a message is acked. Default
	// [DefaultAckWait]; at least one second. A consumer that exists and was not made by
	// a Subscriber keeps its own, and its BackOff.
	AckWait time.Duration `yaml:"-"`
	// MaxInFlight is how many messages of the consumer or partition may be in flight. They have different keys: of
	// each key one is, and the next one follows its ack. While so many handlers hang, nothing else is delivered.
	// Default [DefaultMaxInFlight]. Up to four times as many are read ahead, up to 64 MiB.
	MaxInFlight int `yaml:"max_in_flight"`
	// KeyHeader is the header with a message's key: messages of one key are handled in order, others concurrently.
	// Without it, or where a message lacks it, the key is the subject. A header that differs in every message, such
	// as _watermill_message_uuid, gives up the order.
	KeyHeader string `yaml:"key_header"`
	// MaxNackDelay is how long a message that was nacked again and again waits at most until it
	// is delivered again; the first time it is 0.1 seconds. Those behind it in its key wait with
	// it. Default [DefaultMaxNackDelay].
	MaxNackDelay time.Duration `yaml:"-"`
	// Unmarshaler creates the Watermill messages. Default [nats.Marshaler], which accepts
	// any message. If it fails, the message is tried again later, and others pass it.
	Unmarshaler wmnats.Unmarshaler `yaml:"-"`
	// CloseTimeout is how long Close, and the end of a subscription, wait for messages that
	// are being handled. Default [nats.DefaultCloseTimeout].
	CloseTimeout time.Duration `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.AckWait = cmp.Or(c.AckWait, DefaultAckWait)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultMaxInFlight)
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, DefaultMaxNackDelay)
	if c.Unmarshaler == nil {
		c.Unmarshaler = nats.Marshaler{}
	}
	c.CloseTimeout = cmp.Or(c.CloseTimeout, nats.DefaultCloseTimeout)
	c.Name = cmp.Or(c.Name, nats.DefaultName)
	c.SubjectPrefix = cmp.Or(c.SubjectPrefix, nats.DefaultSubjectPrefix)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, nats.DefaultConnectTimeout)
	return c
}

// String formats the configuration without what is secret.
func (c Config) String() string { return redact.Struct(c) }

// Format writes String for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// MarshalText returns String: a configuration is never written with what is secret.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(c.Durable != "", "Durable", "is required")
	e.Check(nats.ValidName(c.Durable), "Durable", nats.NameRule)
	e.Check(nats.ValidName(c.Stream), "Stream", nats.NameRule)
	e.Check(c.AckWait >= time.Second, "AckWait", "must be at least 1s")
	validate.NotNegative(&e, "MaxInFlight", c.MaxInFlight)
	e.Check(!strings.ContainsAny(c.KeyHeader, ": \t\r\n"), "KeyHeader", "must be the name of a header, without white space and colons")
	validate.NotNegative(&e, "MaxNackDelay", c.MaxNackDelay)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	return e.Err(ErrConfig)
}
