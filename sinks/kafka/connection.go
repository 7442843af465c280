package kafka

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/xdg-go/scram"

	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
)

// Connection says how to connect to a Kafka cluster. Only Brokers is required.
type Connection struct {
	// Brokers are the addresses (host:port) to find the cluster by. Required.
	Brokers []string `yaml:"brokers" required:"true"`
	// ClientID is what the brokers know the client by, in quotas and logs. Default agrimill.
	ClientID string `yaml:"client_id"`
	// TLS is the configuration for TLS; nil = without TLS.
	TLS *tls.Config `yaml:"-"`
	// SASL authenticates. Default: not at all.
	SASL SASL `yaml:"sasl"`
	// Version is the newest version of Kafka whose requests are used, e.g. 3.6; older brokers are recognized. Default 2.8.
	Version sarama.KafkaVersion `yaml:"-"`
	// ConnectTimeout bounds connecting, and the look-up or creation of a stream or topic. Default 10 seconds.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// RetryOnFailedConnect is for a program that may start before its brokers: what cannot connect goes on trying in
	// the background. Default: that is an error.
	RetryOnFailedConnect bool `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Connection) WithDefaults() Connection {
	c.ClientID = cmp.Or(c.ClientID, "agrimill")
	if c.SASL.Mechanism == "" && c.SASL.User != "" {
		c.SASL.Mechanism = MechanismPlain
	}
	if c.Version == (sarama.KafkaVersion{}) {
		c.Version = sarama.V2_8_0_0
	}
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	return c
}

// Format writes the fields without what is secret, for every verb.
func (c Connection) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Connection) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Check(len(c.Brokers) > 0, "Brokers", "must not be empty")
	for i, broker := range c.Brokers {
		_, _, err := net.SplitHostPort(broker)
		e.Check(err == nil, fmt.Sprintf("Brokers[%d]", i), "must be host:port")
	}
	e.Join("SASL", c.SASL.validate())
	e.Check(c.Version.IsAtLeast(sarama.V2_1_0_0), "Version", "must be at least 2.1")
	validate.NotNegative(&e, "ConnectTimeout", c.ConnectTimeout)
	return e.Err(ErrConfig)
}

func (s SASL) validate() error {
	var e validate.Errors
	switch s.Mechanism {
	case "":
		e.Check(s.Password == "", "Mechanism", "is required with %s", validate.Field("Password"))
	case MechanismPlain, MechanismSCRAMSHA256, MechanismSCRAMSHA512:
		e.Check(s.User != "", "User", "is required")
		e.Check(s.Password != "", "Password", "is required")
	default:
		e.Add("Mechanism", "must be one of the named constants")
	}
	return e.Err(ErrConfig)
}

// ClientConfig returns the configuration of a Kafka client, such as a consumer, that
// connects as c says. The rest is sarama's default.
func (c Connection) ClientConfig() *sarama.Config {
	c = c.WithDefaults()
	k := sarama.NewConfig()
	k.ClientID = c.ClientID
	k.Version = c.Version
	k.MetricRegistry = noMetrics{metrics.NewRegistry()}
	k.Net.DialTimeout = c.ConnectTimeout
	if c.TLS != nil {
		k.Net.TLS.Enable = true
		k.Net.TLS.Config = c.TLS.Clone()
	}
	if c.SASL.Mechanism != "" {
		k.Net.SASL.Enable = true
		k.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		k.Net.SASL.User, k.Net.SASL.Password = c.SASL.User, string(c.SASL.Password)
		hash := scram.SHA256
		if c.SASL.Mechanism == MechanismSCRAMSHA512 {
			hash = scram.SHA512
		}
		k.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	}
	return k
}
