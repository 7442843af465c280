package linttest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// well is an instance that nothing is wrong with, for two hours, minute by minute.
const well = `
up{W} 1x120
agrimill_subscriber_stream_connected{W} 1x120
agrimill_subscriber_lease_holder{W} 0x120
agrimill_subscriber_lease_standby{W} 0x120
agrimill_subscriber_lease_lost_total{W} 0x60 1x60
agrimill_subscriber_stream_reconnects_total{W} 0x60 1x60
agrimill_subscriber_oldest_unconfirmed_age_seconds{W} 3x120
agrimill_subscriber_oldest_pending_confirmation_age_seconds{W} 0.1x120
agrimill_subscriber_messages_set_aside_total{W} 0x120
agrimill_subscriber_events_malformed_total{W} 0x120
agrimill_subscriber_events_too_large_total{W} 0x120
agrimill_subscriber_quarantine_waiting{W} 0x120
agrimill_subscriber_events_untaken_total{W} 0x120
agrimill_subscriber_confirmations_rejected_total{W} 0x120
agrimill_subscriber_payloads_expired_total{W} 0x60 2x60
agrimill_gateway_rate_limited{W} 0x120
agrimill_gateway_intermediary_age_seconds{W} 0x20 0+60x4 0x95
agrimill_route_state{W,route="farm",state="running"} 1x120
agrimill_route_state{W,route="farm",state="outage"} 0x120
agrimill_route_state{W,route="farm",state="ended"} 0x120
agrimill_route_state{W,route="farm",state="failed"} 0x120
agrimill_route_messages_total{W,route="farm",outcome="delivered"} 0+60x120
agrimill_route_messages_total{W,route="farm",outcome="poisoned"} 0x120
agrimill_route_events_total{W,route="farm",event="retry",class="outage"} 0+1x120
agrimill_sink_up{W,sink="nats",kind="nats"} 1x120
agrimill_sink_lost_messages_total{W,sink="nats",kind="nats"} 0x120
agrimill_dedup_up{W,store="bbolt"} 1x120
agrimill_devices_redescribed_total{W} 0x120
agrimill_config_last_reload_successful{W} 1x120
agrimill_sink_publish_duration_seconds_bucket{W,sink="nats",outcome="stored",le="0.1"} 0+60x120
agrimill_sink_publish_duration_seconds_bucket{W,sink="nats",outcome="stored",le="2.5"} 0+60x120
agrimill_sink_publish_duration_seconds_bucket{W,sink="nats",outcome="stored",le="+Inf"} 0+60x120
`

// sick is for each alert an instance that it is about.
var sick = map[string]string{
	"AgrimillDown":               `up{S} 0x120`,
	"AgrimillStreamDown":         `agrimill_subscriber_stream_connected{S} 0x120`,
	"AgrimillNoHolder":           `agrimill_subscriber_lease_standby{S} 1x120`,
	"AgrimillNoStandby":          `agrimill_subscriber_lease_holder{S} 1x120`,
	"AgrimillLeaseLost":          `agrimill_subscriber_lease_lost_total{S} 0x90 1 2 3 4x27`,
	"AgrimillLeaseGivenUp":       `agrimill_subscriber_lease_given_up_total{S} 0x90 1 2 3 4x27`,
	"AgrimillStreamRestless":     `agrimill_subscriber_stream_reconnects_total{S} 0+1x120`,
	"AgrimillStuck":              `agrimill_subscriber_oldest_unconfirmed_age_seconds{S} 0+60x120`,
	"AgrimillRouteOutage":        `agrimill_route_state{S,route="farm",state="outage"} 1x120`,
	"AgrimillRouteFailing":       `agrimill_route_state{S,route="farm",state="failing"} 1x120`,
	"AgrimillBrokerLostMessages": `agrimill_sink_lost_messages_total{S,sink="nats",kind="nats"} 0x105 1000x15`,
	"AgrimillSinkDown":           `agrimill_sink_up{S,sink="kafka",kind="kafka"} 0x120`,
	"AgrimillRouteEnded":         `agrimill_route_state{S,route="farm",state="failed"} 1x120`,
	"AgrimillPoisoned":           `agrimill_route_messages_total{S,route="farm",outcome="poisoned"} 0x90 1x30`,
	"AgrimillPoisonFlood": `agrimill_route_messages_total{S,route="farm",outcome="poisoned"} 0+30x120
agrimill_route_messages_total{S,route="farm",outcome="delivered"} 0+60x120`,
	// A series of an event begins when it first happens, and that is to be seen.
	"AgrimillPoisonQueueDown":       `agrimill_route_events_total{S,route="farm",event="poison_failed",class="outage"} _x110 1x10`,
	"AgrimillSetAside":              `agrimill_subscriber_messages_set_aside_total{S} 0x90 1x30`,
	"AgrimillMalformed":             `agrimill_subscriber_events_too_large_total{S} 0x90 1x30`,
	"AgrimillQuarantineWaits":       `agrimill_subscriber_quarantine_waiting{S} 4x120`,
	"AgrimillUntaken":               `agrimill_subscriber_events_untaken_total{S} 0+1x120`,
	"AgrimillIntermediary":          `agrimill_gateway_intermediary_age_seconds{S} 0+60x120`,
	"AgrimillConfirmationsWait":     `agrimill_subscriber_oldest_pending_confirmation_age_seconds{S} 0+60x120`,
	"AgrimillConfirmationsRejected": `agrimill_subscriber_confirmations_rejected_total{S} 0x90 2x30`,
	"AgrimillTeamsetRedescribed":    `agrimill_devices_redescribed_total{S} 0x90 1x30`,
	"AgrimillDedupStoreDown":        `agrimill_dedup_up{S,store="bbolt"} 0x120`,
	"AgrimillDedupStoreFails":       `agrimill_route_events_total{S,route="farm",event="dedup_failed",class="none"} _x110 1x10`,
	"AgrimillSinkSlow": `agrimill_sink_publish_duration_seconds_bucket{S,sink="nats",outcome="stored",le="2.5"} 0+1x120
agrimill_sink_publish_duration_seconds_bucket{S,sink="nats",outcome="stored",le="5"} 0+60x120
agrimill_sink_publish_duration_seconds_bucket{S,sink="nats",outcome="stored",le="+Inf"} 0+60x120`,
	"AgrimillPayloadsExpire": `agrimill_subscriber_payloads_expired_total{S} 0+1x120`,
	"AgrimillRateLimited":    `agrimill_gateway_rate_limited{S} 1x120`,
	"AgrimillReloadFailed":   `agrimill_config_last_reload_successful{S} 0x120`,
}

// labelInText is a label that the text of an alert is completed with.
var labelInText = regexp.MustCompile(`\$labels\.(\w+)`)

// TestAlertsFire: each alert is about agrimill that is sick, and not about the one
// that is well.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	labels := strings.NewReplacer("{W", `{job="agrimill",instance="well:9090"`, "{S", `{job="agrimill",instance="sick:9090"`)
	all := rules(t)
	if len(all) != len(sick) {
		t.Errorf("%d alerts, %d of them tried", len(all), len(sick))
	}
	for _, rule := range all {
		series, ok := sick[rule.Alert]
		if !ok {
			t.Errorf("%s is not tried", rule.Alert)
			continue
		}
		found := map[string]bool{}
		for _, sample := range firing(t, engine, rule, labels.Replace(well+series)) {
			found[sample.Metric.Get("instance")] = true
			for _, label := range labelInText.FindAllStringSubmatch(rule.Annotations["description"], -1) {
				if !sample.Metric.Has(label[1]) {
					t.Errorf("%s: its text names the label %s, which it does not have", rule.Alert, label[1])
				}
			}
		}
		if !found["sick:9090"] || found["well:9090"] {
			t.Errorf("%s: about %v, want agrimill that is sick", rule.Alert, found)
		}
	}
}

// The standby of a pair has no stream, and nothing is wrong with either.
func TestNoAlertForAPair(t *testing.T) {
	t.Parallel()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	pair := strings.NewReplacer("{A", `{job="agrimill",instance="a:9090"`, "{B", `{job="agrimill",instance="b:9090"`).Replace(`
up{A} 1x120
up{B} 1x120
agrimill_subscriber_stream_connected{A} 1x120
agrimill_subscriber_stream_connected{B} 0x120
agrimill_subscriber_lease_holder{A} 1x120
agrimill_subscriber_lease_holder{B} 0x120
agrimill_subscriber_lease_standby{A} 0x120
agrimill_subscriber_lease_standby{B} 1x120
agrimill_subscriber_lease_lost_total{A} 0x60 1x60
agrimill_subscriber_lease_lost_total{B} 0x120`)
	for _, rule := range rules(t) {
		if vector := firing(t, engine, rule, pair); len(vector) > 0 {
			t.Errorf("%s: %v", rule.Alert, vector)
		}
	}
}

// firing is what an alert is about after two hours of the series.
func firing(t *testing.T, engine *promql.Engine, rule rulefmt.Rule, series string) promql.Vector {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(strings.TrimSpace(series), "\n", "\n  "))
	query := must(engine.NewInstantQuery(t.Context(), storage, promql.NewPrometheusQueryOpts(false, 0), rule.Expr, time.Unix(0, 0).Add(2*time.Hour)))(t)
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Errorf("%s: %v", rule.Alert, err)
	}
	return slices.Clone(vector)
}

// An instance that Prometheus does not know is as bad as one that does not answer.
func TestAlertForNoInstanceAtAll(t *testing.T) {
	t.Parallel()
	for _, rule := range rules(t) {
		if rule.Alert != "AgrimillDown" {
			continue
		}
		promqltest.RunTest(t, "eval instant at 0m "+rule.Expr+"\n  {} 1\n", promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
	}
}
