package pipeline

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/router/metrics"
)

// register registers the collectors of everything.
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

// stateCollector exports what only the pipeline knows: its sinks and its
// configuration.
type stateCollector struct {
	pipeline                       *Pipeline
	sinkUp, reloadOK, reloadedSecs *prometheus.Desc
}

func newStateCollector(p *Pipeline) *stateCollector {
	return &stateCollector{
		pipeline: p,
		sinkUp: prometheus.NewDesc("agrimill_bridge_sink_up",
			"1 when the sink answered when it was last asked, else 0.", []string{"sink", "kind"}, nil),
		reloadOK: prometheus.NewDesc("agrimill_bridge_config_last_reload_successful",
			"1 when the newest configuration was taken over, 0 when it was refused.", nil, nil),
		reloadedSecs: prometheus.NewDesc("agrimill_bridge_config_last_reload_success_timestamp_seconds",
			"Unix time at which a configuration was last taken over.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.sinkUp
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
	snapshot := c.pipeline.Snapshot()
	for _, s := range snapshot.Sinks {
		out <- prometheus.MustNewConstMetric(c.sinkUp, prometheus.GaugeValue, number(s.Up), s.Name, s.Kind)
	}
	out <- prometheus.MustNewConstMetric(c.reloadOK, prometheus.GaugeValue, number(snapshot.Config.Error == ""))
	out <- prometheus.MustNewConstMetric(c.reloadedSecs, prometheus.GaugeValue, float64(snapshot.Config.LoadedAt.UnixMilli())/1000)
}
