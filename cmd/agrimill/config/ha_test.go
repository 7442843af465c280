package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/sinks/nats/kvlease"
)

// The sessions of a dedup store end no later than the lease, unless the file says so.
func TestHADefaults(t *testing.T) {
	for _, c := range []struct {
		ha, kv   string
		ttl      time.Duration
		sessions time.Duration
	}{
		{"nats_kv: {}", "", kvlease.DefaultTTL, 2500 * time.Millisecond},
		{"nats_kv: {}, ttl: 2s", "", 2 * time.Second, 2 * time.Second},
		{"nats_kv: {}, ttl: 1m", "", time.Minute, 10 * time.Second},
		{"nats_kv: {}, ttl: 1m", "session_ttl: 30s", time.Minute, 30 * time.Second},
	} {
		cfg := parse(t, strings.Replace(small, "poison: {", "ha: {"+c.ha+"}\ndedup: {nats_kv: {"+c.kv+"}}\npoison: {", 1), smallEnv)
		if len(cfg.Warnings) > 0 || cfg.HA.TTL != c.ttl || cfg.HA.LeaseConfig().TTL != c.ttl || cfg.HA.Consumers != ConsumersHolder || cfg.HA.StopWithoutNATS {
			t.Errorf("%s: %+v, %v", c.ha, cfg.HA, cfg.Warnings)
		}
		if got := cfg.Dedup.NATSKV.SessionTTL; got != c.sessions {
			t.Errorf("%s: sessions of %v, want %v", c.ha, got, c.sessions)
		}
	}
	if cfg := parse(t, strings.Replace(small, "poison: {", "dedup: {nats_kv: {}}\npoison: {", 1), smallEnv); cfg.HA != nil || cfg.Dedup.NATSKV.SessionTTL != 10*time.Second {
		t.Errorf("without ha: %+v, sessions of %v", cfg.HA, cfg.Dedup.NATSKV.SessionTTL)
	}
}

func TestOnHolder(t *testing.T) {
	fromGateway, fromNATS := Route{From: From{Gateway: FromAll}}, Route{From: From{NATS: &NATSSource{}}}
	for _, c := range []struct {
		ha            *HA
		gateway, nats bool
	}{
		{nil, false, false},
		{&HA{}, true, true},
		{&HA{Consumers: ConsumersEveryInstance}, true, false},
	} {
		cfg := &Config{HA: c.ha}
		if got := cfg.OnHolder(fromGateway); got != c.gateway {
			t.Errorf("%+v: from the gateway %t, want %t", c.ha, got, c.gateway)
		}
		if got := cfg.OnHolder(fromNATS); got != c.nats {
			t.Errorf("%+v: from NATS %t, want %t", c.ha, got, c.nats)
		}
	}
}

// A transactional ID belongs to one sink at a time. The poison queue is not in transactions: it tells how many messages it has.
func TestTransactionalIDs(t *testing.T) {
	text := func(consumers, pond string) string {
		return strings.NewReplacer(
			"sinks:\n", `sinks:
  lake: {kafka: {brokers: ["localhost:9092"], transactional_id: mill}}
  pond: {kafka: {brokers: ["localhost:9092"]`+pond+`}}
`,
			"routes:\n", `ha: {nats_kv: {}, consumers: `+consumers+`}
dedup: {nats_kv: {}}
routes:
  - {name: lake, from: {gateway: all}, to: {sink: lake}}
  - {name: reports, from: {kafka: {brokers: ["localhost:9092"], topics: [reports]}}, to: {sink: pond, topic: reports}}
`,
			"poison: {sink: farm}", "poison: {sink: lake, topic: bad}").Replace(small)
	}
	for _, c := range []struct{ consumers, pond, want string }{
		{"holder", "", ""},
		{"every_instance", "", ""},
		{"holder", ", transactional_id: pond", ""},
		{"holder", ", transactional_id: mill", "sinks.pond.kafka.transactional_id: duplicates that of sinks.lake: each would fence the other one off; give each sink its own"},
		{"every_instance", ", transactional_id: pond", "sinks.pond.kafka.transactional_id: is that of every instance, which would fence each other off: route reports runs on all of them; " +
			"give the route a sink without it, or set ha.consumers: holder"},
		{"holder", ", transactional_id: a/b", "sinks.pond.kafka.transactional_id: must be up to 128 letters, digits, '-', '_' and single dots"},
	} {
		if c.want == "" {
			cfg := parse(t, text(c.consumers, c.pond), smallEnv)
			if got := cfg.Sinks["lake"].Kafka.PlainTopics; !slices.Equal(got, []string{"bad"}) {
				t.Errorf("without transactions: %q", got)
			}
			if got := cfg.Sinks["pond"].Kafka.PlainTopics; got != nil {
				t.Errorf("without transactions, and not the poison queue: %q", got)
			}
		} else if got := onlyProblem(t, text(c.consumers, c.pond), smallEnv); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s%s: %s", c.consumers, c.pond, got)
		}
	}
}
