package nats

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
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
var ErrConfig = final.New("sinks/nats: bad configuration")

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

var provisions = []string{"create", "update", "none"}

// String returns create, update or none.
func (p Provision) String() string { return enum.Text(p, provisions) }

// UnmarshalText reads what String returns.
func (p *Provision) UnmarshalText(text []byte) error { return enum.Parse(p, text, provisions) }

// Config configures a [Sink]. The zero value is ready for use.
type Config struct {
	// Connection says how to connect. The zero value is a server at nats://127.0.0.1:4222 without authentication. With
	// RetryOnFailedConnect, New tries once, and goes on trying in the background while the server is away, or does not have
	// what it needs; see [New].
	Connection `yaml:",inline"`
	// Conn is a connection to use instead of an own one. It is not closed by Close. Of Connection, ConnectTimeout,
	// RetryOnFailedConnect and Domain hold with it, and the rest must be empty. The
	// connection's own options decide about reconnecting; for endless
	// reconnecting give it MaxReconnects(-1), IgnoreAuthErrorAbort() and
	// ReconnectBufSize(-1).
	Conn *natsgo.Conn `yaml:"-"`
	// Name names the connection on the server and the sink in errors and logs.
	// Default [DefaultName] for the connection, "nats" for the sink.
	Name string `yaml:"-"`

	// Stream is the stream's name. Default [DefaultStream].
	Stream string `yaml:"stream"`
	// SubjectPrefix comes before each topic, with a dot, see [Subject]. The stream has the subject SubjectPrefix.>.
	// Default [DefaultSubjectPrefix].
	SubjectPrefix string `yaml:"subject_prefix"`
	// Provision is what happens to a missing or different stream. Default ProvisionCreate.
	Provision Provision `yaml:"provision" enum:"create,update,none"`

	// ReadOnly is for whoever only looks: New creates and changes nothing. A stream that it would create is an
	// error that matches [jetstream.ErrStreamNotFound]; one that it would change counts as changed.
	ReadOnly bool `yaml:"-"`

	// Storage of the stream. Default file.
	Storage jetstream.StorageType `yaml:"storage" enum:"file,memory"`
	// Replicas of the stream, 1 to 5. Default 1. Three in a cluster of three
	// keep acknowledged messages when a server is lost.
	Replicas int `yaml:"replicas"`
	// Synced is when acknowledged messages survive a power cut: always or an interval, such as 2m, is the
	// sync_interval of the server (by default 2 minutes); replicas says that three or more copies do not lose their
	// power together. A client cannot see that, unless its account imports the service $SYS.REQ.SERVER.PING.VARZ: what the server
	// says then counts if it is later. It changes Describe and the warnings, and how long the confirmations
	// of routes with `durable: synced` wait: twice the interval. Default: unknown.
	Synced sinks.Synced `yaml:"synced"`
	// Lost is called with the sequences, first and last included, of messages that the stream had acknowledged and was found not
	// to have any longer: see [Sink.Lost]. New messages may have the same ones later: nothing else is stored before it has returned,
	// and Close does not wait for it. A second loss meanwhile is a second call. Nil means that nobody is told but the log.
	Lost func(first, last uint64) `yaml:"-"`
	// Retention of the stream. Default limits. Not interest, which deletes what no consumer waits for.
	Retention jetstream.RetentionPolicy `yaml:"retention" enum:"limits,workqueue"`
	// MaxAge is how long messages are kept. Default, and 0: without limit.
	MaxAge time.Duration `yaml:"max_age"`
	// MaxBytes is how large the stream may become. Default, and 0: no limit.
	MaxBytes int64 `yaml:"max_bytes" unit:"bytes"`
	// MaxMessages is how many messages the stream may hold. Default, and 0: no
	// limit.
	MaxMessages int64 `yaml:"max_messages"`
	// DiscardOld makes a full stream delete its oldest messages: with MaxBytes or MaxMessages, its durability is
	// none. Default: a full stream refuses new ones, which is sinks.ErrUnavailable until there is room.
	DiscardOld bool `yaml:"discard_old"`
	// MaxMessageSize is the largest message in bytes, headers included. Default, and 0: what the server takes (max_payload).
	MaxMessageSize int32 `yaml:"max_message_size" unit:"bytes"`
	// DedupWindow is how long the stream recognizes a repeated message. It costs server
	// memory. Default [DefaultDedupWindow], or MaxAge when that is shorter.
	DedupWindow time.Duration `yaml:"dedup_window"`

	// Marshaler makes the NATS messages; it is given the subject as topic.
	// Default [Marshaler], the only one that promises to keep any metadata and
	// that sets Nats-Msg-Id.
	Marshaler wmnats.Marshaler `yaml:"-"`
	// CloudEvents makes every message a CloudEvent 1.0, with the attributes as headers ce-…;
	// see [Marshaler]. Not together with Marshaler. Nil means no.
	CloudEvents *cloudevents.Config `yaml:"cloud_events"`

	// Ingest is how routes keep the order of a key: one message at a time, or pipelined. Default
	// [sinks.IngestPlain].
	Ingest sinks.Ingest `yaml:"ingest" enum:"plain,pipelined"`
	// PublishTimeout bounds the wait for an acknowledgment, and each write. Default [DefaultPublishTimeout].
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// CloseTimeout is how long Close waits for calls of Publish that are under
	// way. Default [DefaultCloseTimeout].
	CloseTimeout time.Duration `yaml:"-"`
	// MaxPending is how many messages may wait for their acknowledgment;
	// further calls of Publish wait. Default [DefaultMaxPending].
	MaxPending int `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	url := c.URL
	if c.Connection = c.Connection.WithDefaults(); c.Conn != nil {
		c.URL = url
	}
	c.Stream = cmp.Or(c.Stream, DefaultStream)
	c.SubjectPrefix = cmp.Or(c.SubjectPrefix, DefaultSubjectPrefix)
	c.Replicas = cmp.Or(c.Replicas, 1)
	if c.DedupWindow == 0 {
		c.DedupWindow = DefaultDedupWindow
		if c.MaxAge > 0 {
			c.DedupWindow = min(c.DedupWindow, c.MaxAge)
		}
	}
	if c.Marshaler == nil {
		c.Marshaler = Marshaler{}
	}
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.MaxPending = cmp.Or(c.MaxPending, DefaultMaxPending)
	return c
}

// String formats the configuration without what is secret.
func (c Config) String() string { return redact.Struct(c) }

// Format writes String for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// MarshalText returns String: a configuration is never written with what is secret.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// TopicSegment is the function [TopicSegment].
func (Config) TopicSegment(value string) string { return TopicSegment(value) }

// CheckTopic implements [sinks.Topics].
func (c Config) CheckTopic(topic string) error {
	c = c.WithDefaults()
	if err := checkSubject(Subject(c.SubjectPrefix, topic)); err != nil {
		return sinks.NewError(cmp.Or(c.Name, "nats"), topic, sinks.ErrRejected, err)
	}
	return nil
}

// NameRule says in an error what [ValidName] holds.
const NameRule = "must not contain white space, '.', '*', '>', '/' or '\\'"

// ValidName reports whether a stream or a consumer can have the name.
func ValidName(name string) bool { return !strings.ContainsAny(name, " \t\r\n.*>/\\") }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig]. Zero values stand for the defaults.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors

	e.Check(c.Conn == nil || c.URL == "" && c.credentials() == 0 && c.TLS == nil && len(c.Options) == 0 && c.InboxPrefix == "",
		"Conn", "excludes the settings of a connection")
	e.Join("", c.Connection.Validate())
	e.Check(ValidName(c.Stream), "Stream", NameRule)
	if checkSubject(c.SubjectPrefix) != nil {
		e.Add("SubjectPrefix", "must be a NATS subject without wildcards")
	} else {
		e.Check(!strings.HasPrefix(c.SubjectPrefix, "$"), "SubjectPrefix", "must not begin with '$', which is reserved for the server")
	}
	e.Check(c.Provision >= ProvisionCreate && c.Provision <= ProvisionNone, "Provision", "must be one of the named constants")
	e.Check(c.Storage == jetstream.FileStorage || c.Storage == jetstream.MemoryStorage, "Storage", "must be file or memory")
	e.Check(c.Retention == jetstream.LimitsPolicy || c.Retention == jetstream.WorkQueuePolicy, "Retention",
		"must be limits or workqueue: interest deletes what no consumer waits for")
	e.Check(c.Replicas >= 1 && c.Replicas <= 5, "Replicas", "must be 1 to 5")
	if err := c.Synced.Validate(); err != nil {
		e.Add("Synced", err.Error())
	}
	e.Check(c.Synced != sinks.SyncedReplicas || c.Replicas >= 3, "Synced", "is replicas, and %s is less than 3", validate.Field("Replicas"))
	validate.NotNegative(&e, "MaxAge", c.MaxAge)
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	validate.NotNegative(&e, "MaxMessages", c.MaxMessages)
	validate.NotNegative(&e, "MaxMessageSize", c.MaxMessageSize)
	e.Check(c.DedupWindow >= 100*time.Millisecond || c.MaxAge < 0, "DedupWindow", "must be at least 100ms")
	e.Check(c.MaxAge <= 0 || c.DedupWindow <= c.MaxAge, "DedupWindow", "must not be longer than %s", validate.Field("MaxAge"))
	e.Check(c.Ingest >= sinks.IngestPlain && c.Ingest <= sinks.IngestPipelined, "Ingest", "must be one of the named constants")
	validate.NotNegative(&e, "PublishTimeout", c.PublishTimeout)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	validate.NotNegative(&e, "MaxPending", c.MaxPending)
	if c.CloudEvents != nil {
		e.Check(c.Marshaler == Marshaler{}, "CloudEvents", "excludes %s", validate.Field("Marshaler"))
		e.Join("CloudEvents", c.CloudEvents.Validate())
	}
	return e.Err(ErrConfig)
}
