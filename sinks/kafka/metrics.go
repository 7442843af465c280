package kafka

import "github.com/rcrowley/go-metrics"

// noMetrics is an empty registry, in which nothing is registered. The real metrics cost time in every request, and their first
// meter starts a goroutine that nobody can stop. Who wants them sets MetricRegistry in Config.Configure.
type noMetrics struct{ metrics.Registry }

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
