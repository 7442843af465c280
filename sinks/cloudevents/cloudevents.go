// Package cloudevents maps messages to the attributes of CloudEvents 1.0, for
// sinks that write them beside the message (binary content mode): the payload
// stays as it is, and so does the message's own metadata.
//
//	attribute        from
//	specversion      1.0
//	type             message type, else event type, else "untyped"; Config.TypePrefix before it
//	source           Config.Source
//	id               dedup ID, else message ID, else UUID, else SHA-256 of the payload:
//	                 a repeated message has the same
//	subject          Config.Subject; absent when the message lacks its values
//	time             sent timestamp, else received timestamp, in RFC 3339; else absent
//	datacontenttype  Config.ContentTypes, that of what package router/farm makes, else application/octet-stream;
//	                 application/json for events that are not data
//	dataref          reference of a payload in the claim check, else absent
//
// The package imports no broker and no SDK.
package cloudevents

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
)

// Defaults of [Config].
const (
	DefaultSource  = "/{tenant|none}/{receiver|none}"
	DefaultSubject = "{filename}"
)

// ContentTypeBinary is the datacontenttype of data whose message type
// Config.ContentTypes does not know.
const ContentTypeBinary = "application/octet-stream"

// ErrConfig is matched by the errors of [Config.Validate].
var ErrConfig = errors.New("cloudevents: invalid configuration")

// Config configures a [Mapping]. The zero value is ready for use.
type Config struct {
	// Source is the template of the source, a URI reference, see [sinks.ParseTopicTemplate].
	// Values are escaped as path segments. A message that lacks one of its values, when the
	// template names no stand-in for it, gets [DefaultSource]. Empty means [DefaultSource].
	Source string `yaml:"source"`
	// TypePrefix comes before the type, e.g. "com.example.". Empty means none.
	TypePrefix string `yaml:"type_prefix"`
	// Subject is the template of the subject. Empty means [DefaultSubject].
	Subject string `yaml:"subject"`
	// ContentTypes gives the media types of message types, e.g.
	// "iso:11783:-10:taskdata:zip": "application/zip". What transforms of package router/farm make
	// has its own without that; others are [ContentTypeBinary].
	ContentTypes map[string]string `yaml:"content_types"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Source = cmp.Or(c.Source, DefaultSource)
	c.Subject = cmp.Or(c.Subject, DefaultSubject)
	c.ContentTypes = maps.Clone(c.ContentTypes)
	return c
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	template := func(path, text string) {
		var bad *sinks.TemplateError
		if _, err := sinks.ParseTopicTemplate(text); errors.As(err, &bad) {
			e.AddCause(bad, path, "%s", bad.Reason)
		}
	}
	template("Source", c.Source)
	template("Subject", c.Subject)
	for messageType, contentType := range c.ContentTypes {
		e.Check(strings.Count(contentType, "/") == 1 && !strings.ContainsAny(contentType, "\r\n"),
			fmt.Sprintf("ContentTypes[%q]", messageType), "must be a media type, not %q", contentType)
	}
	return e.Err(ErrConfig)
}

// Mapping gives the attributes of messages. It is safe for concurrent use.
type Mapping struct {
	config  Config
	source  *sinks.TopicTemplate
	standIn *sinks.TopicTemplate
	subject *sinks.TopicTemplate
}

// New returns a Mapping, or an error that matches [ErrConfig].
func New(config Config) (*Mapping, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	m := &Mapping{config: config}
	var errs [3]error
	m.source, errs[0] = sinks.ParseTopicTemplate(config.Source)
	m.standIn, errs[1] = sinks.ParseTopicTemplate(DefaultSource)
	m.subject, errs[2] = sinks.ParseTopicTemplate(config.Subject)
	return m, errors.Join(errs[:]...)
}

// Attribute is one attribute of an event.
type Attribute struct{ Name, Value string }

// ContentType is the name of the attribute that bindings write without their
// prefix, as the header content-type.
const ContentType = "datacontenttype"

// Attributes returns the attributes of a message, those that are required first.
// Every message has them: one that is to be written has to be written.
func (m *Mapping) Attributes(msg *message.Message) []Attribute {
	meta := msg.Metadata
	source, err := m.source.Topic(meta, url.PathEscape)
	if err != nil {
		source, _ = m.standIn.Topic(meta, url.PathEscape) // has stand-ins for everything
	}
	id := cmp.Or(meta[gateway.KeyDedupID], meta[gateway.KeyMessageID], msg.UUID)
	if id == "" {
		id = fmt.Sprintf("%x", sha256.Sum256(msg.Payload))
	}
	attributes := append(make([]Attribute, 0, 8),
		Attribute{"specversion", "1.0"},
		Attribute{"type", m.config.TypePrefix + cmp.Or(meta[gateway.KeyMessageType], meta[gateway.KeyEventType], "untyped")},
		Attribute{"source", source},
		Attribute{"id", id},
		Attribute{ContentType, m.contentType(meta)},
	)
	if subject, err := m.subject.Topic(meta, func(value string) string { return value }); err == nil {
		attributes = append(attributes, Attribute{"subject", subject})
	}
	if at, ok := timestamp(meta[gateway.KeySentTimestamp], meta[gateway.KeyReceivedTimestamp]); ok {
		attributes = append(attributes, Attribute{"time", at})
	}
	if meta[gateway.KeyPayloadMode] == gateway.PayloadModeClaimCheck && meta[gateway.KeyPayloadReference] != "" {
		attributes = append(attributes, Attribute{"dataref", meta[gateway.KeyPayloadReference]})
	}
	return attributes
}

func (m *Mapping) contentType(meta message.Metadata) string {
	if contentType := m.config.ContentTypes[meta[gateway.KeyMessageType]]; contentType != "" {
		return contentType
	}
	switch meta[gateway.KeyMessageType] { // what package router/farm makes
	case "farm:records:jsonl":
		return "application/x-ndjson"
	case "farm:summary:json":
		return "application/json"
	case "farm:map:geojson":
		return "application/geo+json"
	case "farm:map:geoparquet":
		return "application/vnd.apache.parquet"
	}
	switch gateway.EventType(meta[gateway.KeyEventType]) {
	case "", gateway.EventMessageReceived, gateway.EventFileReceived:
		return ContentTypeBinary
	default:
		return "application/json"
	}
}

// timestamp returns the first value that is one, in RFC 3339. Legacy senders leave times at zero, which counts as absent.
func timestamp(values ...string) (string, bool) {
	for _, value := range values {
		at, err := time.Parse(time.RFC3339Nano, value)
		ok := err == nil // with the sender's offset
		if !ok {
			at, ok = isotime.Parse([]byte(value))
		}
		if ok && !at.IsZero() {
			return at.Format(time.RFC3339Nano), true
		}
	}
	return "", false
}

var headers = sinks.Segments{Mark: '%', Legal: func(b byte) bool { return b > ' ' && b < 0x7f && b != '"' && b != '%' }}

// EncodeHeader percent-encodes a value for headers that carry printable ASCII, as
// the bindings for HTTP and NATS want it: everything else, space, double quote
// and percent sign. The binding for Kafka writes values as they are.
func EncodeHeader(value string) string {
	if value == "" {
		return ""
	}
	return headers.Escape(strings.ToValidUTF8(value, string(utf8.RuneError)))
}
