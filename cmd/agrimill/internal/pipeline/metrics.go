package pipeline

import (
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router/metrics"
)

// register registers all collectors.
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

// stateCollector exports what only the pipeline knows: its sinks and its configuration.
type stateCollector struct {
	pipeline                       *Pipeline
	sinkUp, reloadOK, reloadedSecs *prometheus.Desc
	build, dedupUp, poisonDepth    *prometheus.Desc
	poisonOldest                   *prometheus.Desc
	redescribed, teamsetsWaiting   *prometheus.Desc
	ready, problems                *prometheus.Desc
	sinkLost                       *prometheus.Desc
}

func newStateCollector(p *Pipeline) *stateCollector {
	return &stateCollector{
		pipeline: p,
		build: prometheus.NewDesc("agrimill_build_info",
			"Always 1; labeled with the version and source revision of the program and the Go version that built it.",
			[]string{"version", "revision", "goversion"}, nil),
		ready: prometheus.NewDesc("agrimill_ready",
			"1 if /readyz succeeds, else 0.", nil, nil),
		problems: prometheus.NewDesc("agrimill_problems",
			"Problems that count now, by kind, as on the status page.", []string{"kind"}, nil),
		sinkUp: prometheus.NewDesc("agrimill_sink_up",
			"1 if the sink responded to the last check, else 0.", []string{"sink", "kind"}, nil),
		sinkLost: prometheus.NewDesc("agrimill_sink_lost_messages_total",
			"Messages that the broker had acknowledged, and was found not to have any longer after a reconnect.", []string{"sink", "kind"}, nil),
		dedupUp: prometheus.NewDesc("agrimill_dedup_up",
			"1 if the dedup store passed the last check, else 0.", []string{"store"}, nil),
		poisonDepth: prometheus.NewDesc("agrimill_poison_queue_messages",
			"Messages in the poison queue, as reported by the broker.", []string{"sink", "kind"}, nil),
		poisonOldest: prometheus.NewDesc("agrimill_poison_queue_oldest_age_seconds",
			"How long the oldest message has been in the poison queue; 0 if the queue is empty.", []string{"sink", "kind"}, nil),
		redescribed: prometheus.NewDesc("agrimill_devices_redescribed_total",
			"Device descriptions that say something else than an earlier one of their teamset.", nil, nil),
		teamsetsWaiting: prometheus.NewDesc("agrimill_devices_teamsets_waiting",
			"Teamsets whose time logs wait for a device description, or were decoded without one lately.", nil, nil),
		reloadOK: prometheus.NewDesc("agrimill_config_last_reload_successful",
			"1 if the latest configuration was applied, 0 if it was rejected.", nil, nil),
		reloadedSecs: prometheus.NewDesc("agrimill_config_last_reload_success_timestamp_seconds",
			"Unix time at which a configuration was last applied.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.build
	descs <- c.ready
	descs <- c.problems
	descs <- c.sinkUp
	descs <- c.sinkLost
	descs <- c.dedupUp
	descs <- c.poisonDepth
	descs <- c.poisonOldest
	descs <- c.redescribed
	descs <- c.teamsetsWaiting
	descs <- c.reloadOK
	descs <- c.reloadedSecs
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	number := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	options := c.pipeline.options
	out <- prometheus.MustNewConstMetric(c.build, prometheus.GaugeValue, 1, options.Version, options.Revision, runtime.Version())
	snapshot := c.pipeline.Snapshot()
	out <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, number(snapshot.Verdict.Ready))
	counting := snapshot.Verdict.Counting()
	for _, kind := range admin.ProblemKinds() {
		out <- prometheus.MustNewConstMetric(c.problems, prometheus.GaugeValue, float64(counting[kind]), string(kind))
	}
	for _, s := range snapshot.Sinks {
		if s.Lost != nil {
			out <- prometheus.MustNewConstMetric(c.sinkLost, prometheus.CounterValue, float64(*s.Lost), s.Name, s.Kind)
		}
		if s.CheckedAt.IsZero() {
			continue // nobody knows yet
		}
		out <- prometheus.MustNewConstMetric(c.sinkUp, prometheus.GaugeValue, number(s.Up), s.Name, s.Kind)
	}
	if d := snapshot.Dedup; d.Store != "" {
		out <- prometheus.MustNewConstMetric(c.dedupUp, prometheus.GaugeValue, number(d.Up), d.Store)
	}
	if q := snapshot.Poison; q.Depth != nil {
		out <- prometheus.MustNewConstMetric(c.poisonDepth, prometheus.GaugeValue, float64(*q.Depth), q.Sink, q.Kind)
		switch {
		case *q.Depth == 0:
			out <- prometheus.MustNewConstMetric(c.poisonOldest, prometheus.GaugeValue, 0, q.Sink, q.Kind)
		case !q.Oldest.IsZero(): // the clocks may differ
			out <- prometheus.MustNewConstMetric(c.poisonOldest, prometheus.GaugeValue, max(0, time.Since(q.Oldest).Seconds()), q.Sink, q.Kind)
		}
	}
	redescribed, waiting := int64(0), 0
	if d := c.pipeline.Devices(); d != nil {
		redescribed, waiting = d.Redescribed(), d.Waiting()
	}
	out <- prometheus.MustNewConstMetric(c.redescribed, prometheus.CounterValue, float64(redescribed))
	out <- prometheus.MustNewConstMetric(c.teamsetsWaiting, prometheus.GaugeValue, float64(waiting))
	out <- prometheus.MustNewConstMetric(c.reloadOK, prometheus.GaugeValue, number(snapshot.Config.Error == ""))
	out <- prometheus.MustNewConstMetric(c.reloadedSecs, prometheus.GaugeValue, float64(snapshot.Config.LoadedAt.UnixMilli())/1000)
}
