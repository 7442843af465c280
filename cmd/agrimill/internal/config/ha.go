package config

import (
	"time"

	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// HA makes several instances of agrimill work one at a time: the one that holds the lease opens
// the event stream, handles and confirms, and keeps the endpoints. The others stand by, ready to
// take over. All need the same section, and the same routes.
type HA struct {
	// NATSKV is where the lease is.
	NATSKV *LeaseInNATS `yaml:"nats_kv" required:"true"`
	// TTL is how long the lease is held without renewal: when the holder fails, the next one begins that much later.
	// At least 1s, and 2s beside dedup.nats_kv. All instances should have the same one: while it is changed in one
	// after the other, the longer one counts.
	TTL time.Duration `yaml:"ttl"`
	// Consumers says where routes from NATS and Kafka run: on the holder, or on every instance, sharing the
	// messages. With every_instance there is no order by key between them.
	Consumers string `yaml:"consumers" enum:"holder,every_instance"`
	// StopWithoutNATS accepts that nothing is handled without NATS, although no route has a sink there. Without it,
	// such a configuration is refused.
	StopWithoutNATS bool `yaml:"stop_without_nats"`
}

func (h *HA) setDefaults() { *h = HA{TTL: kvlease.DefaultTTL, Consumers: ConsumersHolder} }

// Values of [HA.Consumers].
const (
	ConsumersHolder        = "holder"
	ConsumersEveryInstance = "every_instance"
)

// LeaseInNATS is a lease in a key-value bucket of NATS.
type LeaseInNATS struct {
	NATSConnection `yaml:",inline"`
	kvlease.Config `yaml:",inline"`
}

// LeaseConfig returns the configuration of the lease.
func (h HA) LeaseConfig() kvlease.Config {
	config := h.NATSKV.Config
	config.Domain, config.TTL = h.NATSKV.Connection.Domain, h.TTL
	return config
}

// OnHolder reports whether a route runs only on the instance that holds the lease.
func (c *Config) OnHolder(r Route) bool {
	return c.HA != nil && (r.From.Gateway != "" || c.HA.Consumers != ConsumersEveryInstance)
}
