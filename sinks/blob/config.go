package blob

import (
	"cmp"
	"errors"
	"strings"

	"gocloud.dev/blob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/sinks"
)

const (
	// DefaultPath is the default of Config.Path.
	DefaultPath = "{topic}/{id}/{filename|payload}"

	// SidecarSuffix is what the key of a sidecar has behind that of the payload.
	SidecarSuffix = ".metadata.json"
)

// reservedSuffixes are ends of path elements that mean something else: a sidecar, and, to the driver of file
// buckets, attributes and, with two dots, no end of the element.
var reservedSuffixes = []string{SidecarSuffix, ".attrs", ".."}

// ErrConfig is wrapped by the errors of New.
var ErrConfig = errors.New("sinks/blob: bad configuration")

// errBadKey is the cause of sinks.ErrRejected for messages without a legal key.
var errBadKey = errors.New("invalid object key")

// Config configures the sink.
type Config struct {
	// Bucket holds the objects. Required. It is not closed.
	Bucket *blob.Bucket `yaml:"-"`

	// Name names the sink in errors and logs. Default "blob".
	Name string `yaml:"-"`

	// Path is the template of the key of a payload, with the variables of
	// topics and {topic}, {id} and {date}. The topic has '/' for '.'; the ID
	// is derived from x-router-dedup-id, or else unique and ascending; the date is the day of
	// writing in UTC as 2006-01-02 (with it a copy on another day is not recognized). It has
	// to contain {topic} and {id}. Default [DefaultPath].
	//
	// A value adds no path elements: `../x` becomes `%2E%2E%2Fx`. An element that is longer than 200
	// bytes then, or shorter where the key would exceed 900 bytes, is cut and ends with a digest.
	Path string `yaml:"path"`

	// ClaimCheck opens payloads that messages refer to (gateway.KeyPayloadReference).
	// What a subscriber of this process delivered is opened without it. A message
	// whose payload cannot be opened without it fails with sinks.ErrRejected.
	ClaimCheck gateway.PayloadOpener `yaml:"-"`

	// MaxMessageSize is the largest message in bytes, with its metadata, without payloads
	// elsewhere. Default, and 0: no limit.
	MaxMessageSize int64 `yaml:"max_message_size" unit:"bytes"`

	// Durability is what the bucket promises. It appears in Describe. Default: synced for
	// buckets of files, else unknown.
	Durability sinks.Durability `yaml:"durability" enum:"unknown,memory,disk,synced,replicated"`
	// DurabilityNote explains Durability.
	DurabilityNote string `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Name, c.Path = cmp.Or(c.Name, "blob"), cmp.Or(c.Path, DefaultPath)
	return c
}

func (c Config) template() (*sinks.TopicTemplate, error) {
	variables := sinks.TopicVariables()
	variables["topic"], variables["id"], variables["date"] = topicVariable, idVariable, dateVariable
	return sinks.ParseTemplate(c.Path, variables)
}

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Check(c.Bucket != nil, "Bucket", "is required")
	var bad *sinks.TemplateError
	path, err := c.template()
	if errors.As(err, &bad) {
		e.AddCause(bad, "Path", "%s", bad.Reason)
	} else if err := try(path, "x"); err != nil {
		e.AddCause(err, "Path", "makes keys that no bucket takes: %s", err)
	}
	for _, needed := range []string{"{topic}", "{id}"} {
		e.Check(strings.Contains(c.Path, needed), "Path", "must contain %s, or messages would overwrite each other", needed)
	}
	validate.NotNegative(&e, "MaxMessageSize", c.MaxMessageSize)
	return e.Err(ErrConfig)
}
