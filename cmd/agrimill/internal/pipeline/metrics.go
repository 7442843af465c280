package pipeline

import (
	"errors"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router/metrics"
)

func (p *Pipeline) register(registry prometheus.Registerer) error {
	collectors := []prometheus.Collector{
		metrics.NewSubscriberCollector(p.subscriber),
		metrics.NewRouterCollector(p),
		metrics.NewClientCollector(p.client),
		p.observer,
		p.sinkMetrics,
		newStateCollector(p),
	}
	var errs []error
	for _, c := range collectors {
		errs = append(errs, registry.Register(c))
	}
	return errors.Join(errs...)
}

// stateCollector exports the state of the pipeline, as the status page has it.
type stateCollector struct {
	pipeline *Pipeline
	descs    map[string]*prometheus.Desc
}

func newStateCollector(p *Pipeline) *stateCollector {
	c := &stateCollector{pipeline: p, descs: map[string]*prometheus.Desc{}}
	for _, m := range [][]string{ // name, help, labels
		{"agrimill_build_info", "Always 1; labeled with the version and source revision of the program and the Go version that built it.", "version", "revision", "goversion"},
		{"agrimill_ready", "1 if /readyz succeeds, else 0."},
		{"agrimill_problems", "Problems that count now, by kind, as on the status page.", "kind"},
		{"agrimill_sink_up", "1 if the sink responded to the last check, else 0.", "sink", "kind"},
		{"agrimill_sink_lost_messages_total", "Messages that the broker had acknowledged, and was found not to have any longer after a reconnect.", "sink", "kind"},
		{"agrimill_dedup_up", "1 if the dedup store passed the last check, else 0.", "store"},
		{"agrimill_poison_queue_messages", "Messages in the poison queue, as reported by the broker.", "sink", "kind"},
		{"agrimill_poison_queue_oldest_age_seconds", "How long the oldest message has been in the poison queue; 0 if the queue is empty.", "sink", "kind"},
		{"agrimill_devices_redescribed_total", "Device descriptions that say something else than an earlier one of their teamset."},
		{"agrimill_devices_teamsets_waiting", "Teamsets whose time logs wait for a device description, or were decoded without one lately."},
		{"agrimill_config_last_reload_successful", "1 if the latest configuration was applied, 0 if it was rejected."},
		{"agrimill_config_last_reload_success_timestamp_seconds", "Unix time at which a configuration was last applied."},
	} {
		c.descs[m[0]] = prometheus.NewDesc(m[0], m[1], m[2:], nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	set := func(name string, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(c.descs[name], kind, value, labels...)
	}
	number := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	options := c.pipeline.options
	set("agrimill_build_info", 1, options.Version, options.Revision, runtime.Version())
	snapshot := c.pipeline.Snapshot()
	set("agrimill_ready", number(snapshot.Verdict.Ready))
	counting := snapshot.Verdict.Counting()
	for _, kind := range admin.ProblemKinds() {
		set("agrimill_problems", float64(counting[kind]), string(kind))
	}
	for _, s := range snapshot.Sinks {
		if s.Lost != nil {
			set("agrimill_sink_lost_messages_total", float64(*s.Lost), s.Name, s.Kind)
		}
		if s.CheckedAt.IsZero() {
			continue // nobody knows yet
		}
		set("agrimill_sink_up", number(s.Up), s.Name, s.Kind)
	}
	if d := snapshot.Dedup; d.Store != "" {
		set("agrimill_dedup_up", number(d.Up), d.Store)
	}
	if q := snapshot.Poison; q.Depth != nil {
		set("agrimill_poison_queue_messages", float64(*q.Depth), q.Sink, q.Kind)
		switch {
		case *q.Depth == 0:
			set("agrimill_poison_queue_oldest_age_seconds", 0, q.Sink, q.Kind)
		case !q.Oldest.IsZero(): // the clocks may differ
			set("agrimill_poison_queue_oldest_age_seconds", max(0, time.Since(q.Oldest).Seconds()), q.Sink, q.Kind)
		}
	}
	redescribed, waiting := int64(0), 0
	if d := c.pipeline.Devices(); d != nil {
		redescribed, waiting = d.Redescribed(), d.Waiting()
	}
	set("agrimill_devices_redescribed_total", float64(redescribed))
	set("agrimill_devices_teamsets_waiting", float64(waiting))
	set("agrimill_config_last_reload_successful", number(snapshot.Config.Error == ""))
	set("agrimill_config_last_reload_success_timestamp_seconds", float64(snapshot.Config.LoadedAt.UnixMilli())/1000)
}
