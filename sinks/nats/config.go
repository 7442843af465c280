package nats

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/sinks/cloudevents"
)

// Defaults of [Config].
const (
	DefaultName           = "agrimill"
	DefaultStream         = "AGRIMILL"
	DefaultSubjectPrefix  = "agrimill"
	DefaultDedupWindow    = 10 * time.Minute
	DefaultConnectTimeout = 10 * time.Second
	DefaultPublishTimeout = 10 * time.Second
	DefaultCloseTimeout   = 30 * time.Second
	DefaultMaxPending     = 4096
)

// shortDedupWindow is the window below which New warns: a copy that comes after
// a reconnect with a backlog is easily this late.
const shortDedupWindow = 5 * time.Minute

// ErrConfig is wrapped by every error about a [Config] that cannot work.
var ErrConfig = errors.New("sinks/nats: bad configuration")

// Provision is what New does about the stream.
type Provision int

const (
	// ProvisionCreate creates the stream when it is missing. A stream that
	// exists is left as it is, with a warning that lists the differences; it is
	// an error only when its subjects do not cover the sink's or when it does
	// not acknowledge.
	ProvisionCreate Provision = iota
	// ProvisionUpdate creates the stream when it is missing, and changes the
	// settings of one that exists to those of the Config. Settings that Config
	// does not have, and further subjects, stay. What a server refuses to change
	// (storage, for instance) is an error.
	ProvisionUpdate
	// ProvisionNone only looks: a missing stream is an error.
	ProvisionNone
)

// Config configures a [Sink]. The zero value writes to a server at
// nats://127.0.0.1:4222 without authentication.
type Config struct {
	// URL is the address of the server, or several separated by commas. Default
	// nats://127.0.0.1:4222.
	URL string
	// Conn is a connection to use instead of an own one. It is not closed by
	// Close. URL, Name, credentials, TLS and Options must be empty then. The
	// connection's own options decide about reconnecting; for endless
	// reconnecting give it MaxReconnects(-1), IgnoreAuthErrorAbort() and
	// ReconnectBufSize(-1).
	Conn *natsgo.Conn
	// Name names the connection on the server and the sink in errors and logs.
	// Default [DefaultName] for the connection, "nats" for the sink.
	Name string

	// User and Password, or Token, or CredentialsFile (a JWT with its NKey
	// seed), or NKeySeedFile authenticate the connection; at most one of them.
	// The files are read again at every reconnect.
	User, Password  string
	Token           string
	CredentialsFile string
	NKeySeedFile    string
	// TLS is the configuration for TLS; nil = as the URL and the server ask for.
	TLS *tls.Config
	// Options are further options of the connection, e.g. an inbox prefix or a
	// proxy. They are applied last and may replace the sink's own, handlers
	// included.
	Options []natsgo.Option
	// ConnectTimeout bounds connecting and the provisioning of the stream in
	// New, each. Default [DefaultConnectTimeout].
	ConnectTimeout time.Duration

	// Stream is the name of the stream. Default [DefaultStream].
	Stream string
	// SubjectPrefix comes before each topic: a message of topic T has the
	// subject SubjectPrefix.T, and the stream has the subject SubjectPrefix.>.
	// Default [DefaultSubjectPrefix].
	SubjectPrefix string
	// Provision says what New does about the stream. Default ProvisionCreate.
	Provision Provision

	// Storage of the stream. Default file.
	Storage jetstream.StorageType
	// Replicas of the stream, 1 to 5. Default 1. Three in a cluster of three
	// keep acknowledged messages when a server is lost.
	Replicas int
	// SyncAlways says that the servers run with `sync_interval: always`, which
	// a client cannot see. It changes only Describe and the warnings: without
	// it, a single replica may lose up to two minutes (the servers' default) of
	// acknowledged messages in a power cut.
	SyncAlways bool
	// Retention of the stream. Default limits. Interest deletes what nobody
	// subscribed to, at once.
	Retention jetstream.RetentionPolicy
	// MaxAge is how long messages are kept. Default, and 0: without limit.
	MaxAge time.Duration
	// MaxBytes is how large the stream may become. Default, and 0: no limit.
	MaxBytes int64
	// MaxMessages is how many messages the stream may hold. Default, and 0: no
	// limit.
	MaxMessages int64
	// DiscardOld makes a full stream delete its oldest messages. Default: a
	// full stream refuses new ones, which is sinks.ErrUnavailable until there is
	// room.
	DiscardOld bool
	// MaxMessageSize is the largest message the stream takes in bytes, headers
	// included. Default, and 0: what the server takes (max_payload).
	MaxMessageSize int32
	// DedupWindow is how long the stream remembers IDs to recognise a repeated
	// message. It costs server memory per message in the window. Default
	// [DefaultDedupWindow], or MaxAge when that is shorter.
	DedupWindow time.Duration

	// Marshaler makes the NATS messages; it is given the subject as topic.
	// Default [Marshaler], the only one that promises to keep any metadata and
	// that sets Nats-Msg-Id.
	Marshaler wmnats.Marshaler
	// CloudEvents makes every message a CloudEvent 1.0 in binary mode, with the
	// attributes as headers ce-…; see [Marshaler]. Not together with Marshaler.
	// Nil means no.
	CloudEvents *cloudevents.Config

	// PublishTimeout bounds the wait for the acknowledgement of one message,
	// and each write to the network. Default [DefaultPublishTimeout].
	PublishTimeout time.Duration
	// CloseTimeout is how long Close waits for calls of Publish that are under
	// way. Default [DefaultCloseTimeout].
	CloseTimeout time.Duration
	// MaxPending is how many messages may wait for their acknowledgement;
	// further calls of Publish wait. Default [DefaultMaxPending].
	MaxPending int
}

func (c *Config) setDefaults() {
	if c.URL == "" && c.Conn == nil {
		c.URL = natsgo.DefaultURL
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.Stream == "" {
		c.Stream = DefaultStream
	}
	if c.SubjectPrefix == "" {
		c.SubjectPrefix = DefaultSubjectPrefix
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.DedupWindow == 0 {
		c.DedupWindow = DefaultDedupWindow
		if c.MaxAge > 0 {
			c.DedupWindow = min(c.DedupWindow, c.MaxAge)
		}
	}
	if c.Marshaler == nil {
		c.Marshaler = Marshaler{}
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = DefaultPublishTimeout
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
}

// Validate returns an error that wraps [ErrConfig] and names the field when the
// configuration cannot work. New calls it after it set the defaults; zero
// values are fine here too.
func (c Config) Validate() error {
	c.setDefaults()
	bad := func(field, rule string) error { return fmt.Errorf("%w: %s %s", ErrConfig, field, rule) }

	credentials := 0
	for _, set := range []bool{c.User != "" || c.Password != "", c.Token != "", c.CredentialsFile != "", c.NKeySeedFile != ""} {
		if set {
			credentials++
		}
	}
	switch {
	case c.Conn != nil && (c.URL != "" || credentials > 0 || c.TLS != nil || len(c.Options) > 0):
		return bad("Conn", "excludes URL, credentials, TLS and Options")
	case credentials > 1:
		return bad("User/Password, Token, CredentialsFile, NKeySeedFile", "exclude each other")
	case strings.ContainsAny(c.Stream, " \t\r\n.*>/\\"):
		return bad("Stream", "must not contain white space, '.', '*', '>', '/' or '\\'")
	case checkSubject(c.SubjectPrefix) != nil:
		return bad("SubjectPrefix", "must be a NATS subject without wildcards")
	case strings.HasPrefix(c.SubjectPrefix, "$"):
		return bad("SubjectPrefix", "must not begin with '$', which is the server's")
	case c.Provision < ProvisionCreate || c.Provision > ProvisionNone:
		return bad("Provision", "must be one of the named constants")
	case c.Storage != jetstream.FileStorage && c.Storage != jetstream.MemoryStorage:
		return bad("Storage", "must be file or memory")
	case c.Replicas < 1 || c.Replicas > 5:
		return bad("Replicas", "must be 1 to 5")
	case c.MaxAge < 0, c.MaxBytes < 0, c.MaxMessages < 0, c.MaxMessageSize < 0:
		return bad("MaxAge, MaxBytes, MaxMessages, MaxMessageSize", "must not be negative")
	case c.DedupWindow < 100*time.Millisecond:
		return bad("DedupWindow", "must be at least 100ms")
	case c.MaxAge > 0 && c.DedupWindow > c.MaxAge:
		return bad("DedupWindow", "must not be longer than MaxAge")
	case c.ConnectTimeout < 0, c.PublishTimeout < 0, c.CloseTimeout < 0:
		return bad("ConnectTimeout, PublishTimeout, CloseTimeout", "must not be negative")
	case c.MaxPending < 0:
		return bad("MaxPending", "must not be negative")
	case c.CloudEvents != nil && c.Marshaler != Marshaler{}:
		return bad("CloudEvents", "excludes Marshaler")
	}
	if c.CloudEvents != nil {
		if err := c.CloudEvents.Validate(); err != nil {
			return fmt.Errorf("%w: CloudEvents: %w", ErrConfig, err)
		}
	}
	for address := range strings.SplitSeq(c.URL, ",") {
		// The error of url.Parse would repeat the address, with its password.
		if _, err := url.Parse(strings.TrimSpace(address)); err != nil {
			return bad("URL", "is not a URL")
		}
	}
	return nil
}

// connectOptions returns the options of an own connection, without handlers.
func (c Config) connectOptions() ([]natsgo.Option, error) {
	name := c.Name
	if name == "" {
		name = DefaultName
	}
	options := []natsgo.Option{
		natsgo.Name(name),
		natsgo.Timeout(c.ConnectTimeout),
		// An outage of the server ends when the server is back, be it in a week
		// and even if it refuses the credentials meanwhile.
		natsgo.MaxReconnects(-1),
		natsgo.IgnoreAuthErrorAbort(),
		// What is published without a connection must fail, not be kept in
		// memory where nobody waits for it.
		natsgo.ReconnectBufSize(-1),
		// A server that reads nothing more must not block writers for ever.
		natsgo.FlusherTimeout(c.PublishTimeout),
	}
	switch {
	case c.User != "" || c.Password != "":
		options = append(options, natsgo.UserInfo(c.User, c.Password))
	case c.Token != "":
		options = append(options, natsgo.Token(c.Token))
	case c.CredentialsFile != "":
		options = append(options, natsgo.UserCredentials(c.CredentialsFile))
	case c.NKeySeedFile != "":
		option, err := natsgo.NkeyOptionFromSeed(c.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("%w: NKeySeedFile: %w", ErrConfig, err)
		}
		options = append(options, option)
	}
	if c.TLS != nil {
		options = append(options, natsgo.Secure(c.TLS))
	}
	return options, nil
}
