package config

import (
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// The sessions of a dedup store end no later than the lease.
func TestHADefaults(t *testing.T) {
	for _, c := range []struct {
		ha       string
		ttl      time.Duration
		sessions time.Duration
	}{
		{"nats_kv: {}", kvlease.DefaultTTL, 2500 * time.Millisecond},
		{"nats_kv: {}, ttl: 2s", 2 * time.Second, 2 * time.Second},
		{"nats_kv: {}, ttl: 1m", time.Minute, 10 * time.Second},
	} {
		cfg := parse(t, strings.Replace(small, "poison: {", "ha: {"+c.ha+"}\ndedup: {nats_kv: {}}\npoison: {", 1), smallEnv)
		if len(cfg.Warnings) > 0 || cfg.HA.TTL != c.ttl || cfg.HA.LeaseConfig().TTL != c.ttl || cfg.HA.Consumers != ConsumersHolder || cfg.HA.StopWithoutNATS {
			t.Errorf("%s: %+v, %v", c.ha, cfg.HA, cfg.Warnings)
		}
		if got := cfg.Dedup.NATSKV.SessionTTL; got != c.sessions {
			t.Errorf("%s: sessions of %v, want %v", c.ha, got, c.sessions)
		}
	}
	if cfg := parse(t, strings.Replace(small, "poison: {", "dedup: {nats_kv: {}}\npoison: {", 1), smallEnv); cfg.HA != nil || cfg.Dedup.NATSKV.SessionTTL != 0 {
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
