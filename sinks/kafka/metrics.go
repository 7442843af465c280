package kafka

import "github.com/rcrowley/go-metrics"

var _ metrics.Registry = noMetrics{}

// noMetrics is a registry of metrics that measure nothing. The real ones cost
// time in every request, and their first meter starts a goroutine that nobody
// can stop. Who wants them sets MetricRegistry in Config.Configure.
type noMetrics struct{}

func (noMetrics) Each(func(string, any)) {}

func (noMetrics) Get(string) any { return nil }

func (noMetrics) GetAll() map[string]map[string]any { return nil }

// GetOrRegister returns a metric without effect of the type asked for.
func (noMetrics) GetOrRegister(_ string, metric any) any {
	switch metric := metric.(type) {
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	case func() metrics.Counter:
		return metrics.NilCounter{}
	default:
		return metric
	}
}

func (noMetrics) Register(string, any) error { return nil }

func (noMetrics) RunHealthchecks() {}

func (noMetrics) Unregister(string) {}

func (noMetrics) UnregisterAll() {}
