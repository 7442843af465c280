package devicestore

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// ErrConfig is matched by the error of [Config.Validate].
var ErrConfig = final.New("devicestore: invalid configuration")

// Config configures a [Store].
type Config struct {
	// Connection says how to connect. Its Brokers are required.
	kafka.Connection `yaml:",inline"`
	// Topic is the name of the topic. One that exists is left as it is, and should be compacted; a missing
	// one is created, compacted, with one partition. Empty means [DefaultTopic].
	Topic string `yaml:"topic"`
	// Replicas of a topic that is created. 0 means the broker's default; negative is an error.
	Replicas int16 `yaml:"replicas"`
	// Timeout bounds New and each Put. 0 means [DefaultTimeout]; negative is an error.
	Timeout time.Duration `yaml:"-"`
	// MaxMemory is that of [farm.MemoryDevicesConfig], with its default: what the topic has is also in memory.
	MaxMemory int64 `yaml:"-"`
	// ReadOnly is for whoever only looks: nothing is created or written. A topic that does not exist is an error of
	// New that matches [ErrMissing].
	ReadOnly bool `yaml:"-"`
	// Logger gets what in the topic cannot be read, and why the store is not open yet. Nil means nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Connection, c.Topic, c.Timeout = c.Connection.WithDefaults(), cmp.Or(c.Topic, DefaultTopic), cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxMemory = cmp.Or(c.MaxMemory, farm.DefaultMaxMemory)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Join("", c.Connection.Validate())
	e.Check(c.Topic == "" || kafka.ValidTopic(c.Topic), "Topic", kafka.TopicRule)
	e.Check(c.Replicas >= 0, "Replicas", "must not be negative")
	validate.NotNegative(&e, "Timeout", c.Timeout)
	validate.NotNegative(&e, "MaxMemory", c.MaxMemory)
	return e.Err(ErrConfig)
}
