package config

import (
	"fmt"
	"path/filepath"
	"slices"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

func (k *checker) dedup() {
	d := k.c.Dedup
	k.report("dedup", d, d.DedupSettings.Validate())
	switch {
	case d.MaxEntries < 0:
		k.fail("dedup.max_entries", "must not be negative", "")
	case k.has("dedup.max_entries") && d.Store == DedupNATSKV:
		k.fail("dedup.max_entries", "does not apply: dedup.store is "+d.Store, "use nats_kv.max_bytes")
	}
	for section, example := range map[string]string{DedupBBolt: "bbolt: {path: /var/lib/agrimill/dedup.db}", DedupNATSKV: "nats_kv: {url: …}"} {
		switch at := join("dedup", section); {
		case k.has(at) && d.Store != section:
			k.fail(at, "does not apply: dedup.store is "+d.Store, "remove one")
		case !k.has(at) && d.Store == section:
			k.fail(at, "is required by dedup.store", "add "+example)
		}
	}
	switch {
	case d.Store == DedupBBolt && d.BBolt != nil && d.BBolt.Path != "":
		k.report("dedup.bbolt", *d.BBolt, d.BBolt.Validate())
	case d.Store == DedupNATSKV && d.NATSKV != nil:
		config := d.NATSKV.StoreConfig(d)
		config.Conn = new(natsgo.Conn) // only its presence is checked
		k.overNATS("dedup.nats_kv", *d.NATSKV, d.NATSKV.NATSConnection, config.Validate())
	}
}

// overNATS adds to the mistakes of a store those of its connection.
func (k *checker) overNATS(path string, section any, c NATSConnection, store error) {
	_, err := c.TLS.Config()
	k.report(path, section, store, err, c.Connection.Validate())
}

// leaseWindow is how many times the TTL of the lease a stream should know what it has stored: one until
// the next holder begins, and the rest for what it finds then, and for what was on its way.
const leaseWindow = 3

func (k *checker) ha() {
	h := k.c.HA
	if h == nil || h.NATSKV == nil {
		return
	}
	lease := h.LeaseConfig()
	lease.Conn = new(natsgo.Conn) // only its presence is checked
	lease.TTL = 0
	k.overNATS("ha.nats_kv", *h.NATSKV, h.NATSKV.NATSConnection, lease.Validate())
	sessions := k.c.Dedup.Store == DedupNATSKV && k.c.Dedup.NATSKV != nil
	switch {
	case h.TTL < kvlease.MinTTL:
		k.fail("ha.ttl", fmt.Sprintf("must be at least %v", kvlease.MinTTL), "")
	case sessions && h.TTL < kvstore.MinSessionTTL:
		k.fail("ha.ttl", fmt.Sprintf("must be at least %v beside dedup.nats_kv, whose sessions live that long", kvstore.MinSessionTTL), "")
	}
	received, inNATS, elsewhere := false, false, false
	windows := map[string]bool{} // sinks whose window was looked at
	for _, r := range k.c.Routes {
		if r.From.Gateway == "" {
			continue
		}
		received = true
		to := k.c.Sinks[r.To.Sink].NATS
		inNATS, elsewhere = inNATS || to != nil, elsewhere || k.c.Sinks[r.To.Sink].Kafka != nil
		// What the former holder had begun may land when the next one has stored it, and after its time.
		if least := leaseWindow * h.TTL; to != nil && !windows[r.To.Sink] && to.MaxAge >= 0 && to.WithDefaults().DedupWindow < least {
			windows[r.To.Sink] = true
			k.warn("sinks."+r.To.Sink+".nats.dedup_window", fmt.Sprintf("is shorter than %d times ha.ttl: what a former holder had begun to store may be stored once more", leaseWindow),
				fmt.Sprintf("set at least %v", least))
		}
	}
	switch {
	case !received && k.has("routes"):
		k.fail("ha", "needs a route from the gateway: only such a route wants the lease", "remove it; instances share what they consume from NATS and Kafka")
	case received && !inNATS && !h.StopWithoutNATS:
		k.fail("ha", "makes everything stop while NATS cannot be reached, although no route from the gateway has a sink there",
			"set ha.stop_without_nats: true to accept that")
	}
	if elsewhere && k.c.Dedup.Store != DedupNATSKV {
		k.warn("dedup", "is known to one instance only: what the former holder stored and did not confirm is stored again by the next one", "use dedup.nats_kv")
	}
	if d := k.c.Devices; d != nil && d.NATSKV == nil && d.Kafka == nil {
		k.warn("devices", "are known to one instance only: the next holder decodes time logs without them until they come again", "use devices.nats_kv or devices.kafka")
	}
	if k.has("dedup.instance") && k.c.Dedup.Owner.Instance != NoInstance {
		k.warn("dedup.instance", "must not be the same for two instances that run at the same time", "leave it out, or take it from the environment")
	}
}

// apart finds stores that would write into each other's bucket or file.
func (k *checker) apart() {
	taken := map[string]string{}
	bucket := func(path string, c NATSConnection, name string) {
		at := account(c.Connection, c.TLS) + "\x00" + name
		if other, twice := taken[at]; twice {
			k.fail(path, "is that of "+other, "give each a bucket of its own")
			return
		}
		taken[at] = path
	}
	if d := k.c.Dedup; d.NATSKV != nil {
		bucket("dedup.nats_kv.bucket", d.NATSKV.NATSConnection, d.NATSKV.Bucket)
	}
	if h := k.c.HA; h != nil && h.NATSKV != nil {
		bucket("ha.nats_kv.bucket", h.NATSKV.NATSConnection, h.NATSKV.Bucket)
	}
	if d := k.c.Devices; d != nil && d.NATSKV != nil {
		bucket("devices.nats_kv.bucket", d.NATSKV.NATSConnection, d.NATSKV.Bucket)
	}
	if d := k.c.Dedup.BBolt; d != nil && d.Path != "" && filepath.Clean(d.Path) == filepath.Clean(k.c.Journal.Path) {
		k.fail("journal.path", "is that of dedup.bbolt.path", "give each a file of its own")
	}
}

// Message types of EFDI that belong together.
const (
	descriptionType = "iso:11783:-10:device_description:protobuf"
	timeLogType     = "iso:11783:-10:time_log:protobuf"
)

func (k *checker) devices() {
	d := k.c.Devices
	if d == nil {
		return
	}
	if c := d.Kafka; c != nil {
		if d.NATSKV != nil {
			k.fail("devices.kafka", "does not apply: devices.nats_kv is used", "remove one")
		}
		config, err := c.StoreConfig()
		k.report("devices.kafka", *c, err, config.Validate())
	}
	if n := d.NATSKV; n != nil {
		config := n.StoreConfig()
		config.Conn = new(natsgo.Conn) // only its presence is checked
		k.overNATS("devices.nats_kv", *n, n.NATSConnection, config.Validate())
	}
	reads := func(r Route, messageType string) bool {
		return (r.Filter.Farm != nil || r.Transform != farm.TransformConfig{}) && r.From.Gateway != "" &&
			subscriber.Takes(r.From.GatewayTopic(), gateway.EventMessageReceived, messageType) &&
			wildcard.New("", r.Filter.Type...).Match(messageType)
	}
	logs := slices.ContainsFunc(k.c.Routes, func(r Route) bool { return reads(r, timeLogType) })
	if logs && !slices.ContainsFunc(k.c.Routes, func(r Route) bool { return reads(r, descriptionType) }) {
		k.warn("devices", "knows nothing: no route with transform or filter.farm receives "+descriptionType, "let the route that decodes time logs receive it, too")
	}
}
