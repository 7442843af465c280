package nats

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
)

// Defaults of [SubscriberConfig].
const (
	DefaultAckWait     = 30 * time.Second
	DefaultMaxInFlight = 256
)

// ErrSubscriberClosed: Subscribe was called after Close.
var ErrSubscriberClosed = errors.New("sinks/nats: subscriber closed")

// SubscriberConfig configures a [Subscriber]. Only Durable is required.
type SubscriberConfig struct {
	// URL, Name, the credentials, TLS, Options and ConnectTimeout are those of
	// [Config]. ConnectTimeout bounds connecting and each request about the
	// consumer.
	URL             string
	Name            string
	User, Password  string
	Token           string
	CredentialsFile string
	NKeySeedFile    string
	TLS             *tls.Config
	Options         []natsgo.Option
	ConnectTimeout  time.Duration

	// Stream is the stream to read from. Empty means the one that has the
	// subject, which is looked up.
	Stream string
	// Durable is the name of the durable consumer, which remembers on the server
	// what was acknowledged. It is created when it is missing; processes that
	// name the same one share the work. Required.
	Durable string
	// NewOnly makes a consumer that is created begin with what is stored from
	// then on. Default: with the first message of the stream.
	NewOnly bool

	// AckWait is how long after the last sign of life the server gives a message
	// to somebody else. A message that is being handled gives such signs for as long
	// as it takes. Default [DefaultAckWait]; at least one second.
	AckWait time.Duration
	// MaxInFlight is how many messages may be delivered and not acknowledged.
	// Several are handled at the same time and may overtake each other; 1 keeps
	// the order. Default [DefaultMaxInFlight].
	MaxInFlight int
	// Unmarshaler makes the Watermill messages. Default [Marshaler], which takes
	// any message. A message that it fails for is not delivered, and comes again.
	Unmarshaler wmnats.Unmarshaler
	// CloseTimeout is how long Close, and the end of a subscription, wait for the
	// messages that are being handled. Default [DefaultCloseTimeout].
	CloseTimeout time.Duration
}

func (c *SubscriberConfig) setDefaults() {
	if c.AckWait == 0 {
		c.AckWait = DefaultAckWait
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.Unmarshaler == nil {
		c.Unmarshaler = Marshaler{}
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.URL == "" {
		c.URL = natsgo.DefaultURL
	}
}

// connection is the part that a sink has too.
func (c *SubscriberConfig) connection() Config {
	return Config{
		URL: c.URL, Name: c.Name, User: c.User, Password: c.Password, Token: c.Token, CredentialsFile: c.CredentialsFile,
		NKeySeedFile: c.NKeySeedFile, TLS: c.TLS, Options: c.Options, ConnectTimeout: c.ConnectTimeout,
		PublishTimeout: DefaultPublishTimeout,
	}
}

// Validate returns an error that wraps [ErrConfig] and names the field when the
// configuration cannot work.
func (c SubscriberConfig) Validate() error {
	c.setDefaults()
	if err := c.connection().Validate(); err != nil {
		return err
	}
	bad := func(field, rule string) error { return fmt.Errorf("%w: %s %s", ErrConfig, field, rule) }
	switch {
	case c.Durable == "":
		return bad("Durable", "is required")
	case strings.ContainsAny(c.Durable, " \t\r\n.*>/\\"):
		return bad("Durable", "must not contain white space, '.', '*', '>', '/' or '\\'")
	case strings.ContainsAny(c.Stream, " \t\r\n.*>/\\"):
		return bad("Stream", "must not contain white space, '.', '*', '>', '/' or '\\'")
	case c.AckWait < time.Second:
		return bad("AckWait", "must be at least 1s")
	case c.MaxInFlight < 0:
		return bad("MaxInFlight", "must not be negative")
	case c.CloseTimeout < 0:
		return bad("CloseTimeout", "must not be negative")
	}
	return nil
}
