package config

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// Defaults that are agrimill's own and belong to no library package.
const (
	DefaultConsumerPrefix = "agrimill-"
	DefaultMessageType    = "{type}"
	DefaultTracingName    = "agrimill"
)

// defaulter is a section with its own defaults. They are set before the file is decoded, so
// values in the file, including zero, override them.
type defaulter interface{ setDefaults() }

// fill sets agrimill's own defaults in a section and its subsections.
func fill(v reflect.Value) {
	if section, ok := v.Addr().Interface().(defaulter); ok {
		section.setDefaults()
	}
	for i := range v.NumField() {
		if field := v.Field(i); field.Kind() == reflect.Struct && v.Type().Field(i).IsExported() {
			fill(field)
		}
	}
}

func (e *Endpoint) setDefaults() { e.Type = string(gateway.EndpointTypeCloudSoftware) }

func (c *Capability) setDefaults() { c.Direction = string(gateway.DirectionSendReceive) }

func (k *Kafka) setDefaults() { k.PartitionKey = gateway.KeyReceivingEndpointID }

func (t *To) setDefaults() { t.Topic = router.DefaultToTopic }

func (t *ToGateway) setDefaults() { t.Type = DefaultMessageType }

func (c *ClaimCheck) setDefaults() { c.From = 1 << 20 }

func (s *Shutdown) setDefaults() { s.Timeout = 30 * time.Second }

func (t *Tracing) setDefaults() { *t = Tracing{ServiceName: DefaultTracingName, SampleRatio: 1} }

func (l *Log) setDefaults() { *l = Log{Level: "info", Format: "text"} }

// deriveDefaults fills in the defaults that depend on other values.
func (c *Config) deriveDefaults(given func(path string) bool) {
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		e.ApplicationID = cmp.Or(e.ApplicationID, c.Gateway.ApplicationID)
		e.SoftwareVersionID = cmp.Or(e.SoftwareVersionID, c.Gateway.SoftwareVersionID)
	}
	for i := range c.Routes {
		r := &c.Routes[i]
		if s := r.From.NATS; s != nil {
			s.Durable = cmp.Or(s.Durable, DefaultConsumerPrefix+nats.TopicSegment(r.Name))
		}
		if s := r.From.Kafka; s != nil {
			s.Group = cmp.Or(s.Group, DefaultConsumerPrefix+r.Name)
		}
		if g := r.To.Gateway; g != nil { // while it is known what the route says: the default is a value, too
			at := fmt.Sprintf("routes[%d].to.gateway.", i)
			if !given(at + "max_requests") {
				g.MaxRequests = max(0, c.Publisher.MaxRequests) // a negative one is reported for the section
			}
			if !given(at + "partial_delivery") {
				g.PartialDelivery = c.Publisher.PartialDelivery
			}
		}
	}
	if !given("subscriber.payload") && c.ClaimCheck != nil {
		c.Subscriber.Payload.Mode = subscriber.PayloadClaimCheck
	}
	if c.Dedup.Store == "" {
		switch {
		case c.Dedup.BBolt != nil:
			c.Dedup.Store = DedupBBolt
		case c.Dedup.NATSKV != nil:
			c.Dedup.Store = DedupNATSKV
		default:
			c.Dedup.Store = DedupMemory
		}
	}
	if kv := c.Dedup.NATSKV; c.HA != nil && kv != nil {
		// What the former holder had begun must not be held up for longer than the lease.
		kv.SessionTTL = min(max(c.HA.TTL/2, kvstore.MinSessionTTL), kvstore.DefaultSessionTTL)
	}
	if d := &c.Dedup; d.MaxEntries == 0 {
		d.MaxEntries = map[string]int{DedupMemory: router.MemoryStoreConfig{}.WithDefaults().MaxEntries, DedupBBolt: boltstore.DefaultMaxEntries}[d.Store]
	}
	fillDefaults(reflect.ValueOf(c).Elem())
}

// fillDefaults fills in the packages' defaults for keys without a value. Fields that are
// not keys are left alone, so that two configurations from the same file are deeply equal.
func fillDefaults(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fillDefaults(v.Elem())
		}
	case reflect.Map:
		for _, value := range v.Seq2() {
			fillDefaults(value)
		}
	case reflect.Slice:
		for i := range v.Len() {
			fillDefaults(v.Index(i))
		}
	case reflect.Struct:
		full := v
		if m := v.MethodByName("WithDefaults"); m.IsValid() && m.Type().NumIn() == 0 && m.Type().Out(0) == v.Type() {
			full = m.Call(nil)[0]
		}
		for i := range v.NumField() {
			if tag := v.Type().Field(i).Tag.Get("yaml"); tag == "" || tag == "-" {
				continue
			}
			if v.CanSet() && full != v {
				v.Field(i).Set(full.Field(i))
			}
			fillDefaults(v.Field(i))
		}
	}
}
