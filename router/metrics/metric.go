package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber"
)

// Metric describes one metric that this package exports.
type Metric struct {
	// Name is the name; for a histogram, without the suffixes of its series.
	Name string
	// Type is "counter", "gauge" or "histogram".
	Type string
	// Help is the text that Prometheus shows.
	Help string
	// Labels are the names of the labels.
	Labels []string
}

// Series returns the names under which a query finds the metric: the name, and
// for a histogram the three that end in _bucket, _sum and _count.
func (m Metric) Series() []string {
	if m.Type == typeHistogram {
		return []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
	}
	return []string{m.Name}
}

// Metrics returns all metrics that the collectors of this package export, by
// name, for dashboards, alerts and documentation to be checked against. The
// caller owns the result.
func Metrics() []Metric {
	all := slices.Concat(
		metrics(subscriberSeries(subscriber.Stats{})), metrics(clientSeries(gateway.RateLimitState{}, gateway.IntermediaryState{})), metrics(routeFamilies),
		[]Metric{subscriberWaiting.Metric, subscriberLongestWait.Metric, routeEvents, routeOutages, sinkDuration, sinkMessages, sinkBytes, sinkOpen},
	)
	for i := range all {
		all[i].Labels = slices.Clone(all[i].Labels)
	}
	slices.SortFunc(all, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Names returns the names of all series of [Metrics], sorted.
func Names() []string {
	var names []string
	for _, m := range Metrics() {
		names = append(names, m.Series()...)
	}
	slices.Sort(names)
	return names
}

// Types of metrics.
const (
	typeCounter   = "counter"
	typeGauge     = "gauge"
	typeHistogram = "histogram"
)

// series is a metric whose value is read when it is scraped, or one with labels, which has several.
type series struct {
	Metric
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value float64 // without labels
}

func newSeries(kind prometheus.ValueType, name, help string, labels ...string) series {
	m := Metric{Name: name, Type: typeGauge, Help: help, Labels: labels}
	if kind == prometheus.CounterValue {
		m.Type = typeCounter
	}
	return series{Metric: m, desc: prometheus.NewDesc(name, help, labels, nil), kind: kind}
}

func counterFamily(name, help string, labels ...string) series {
	return newSeries(prometheus.CounterValue, name, help, labels...)
}

func gaugeFamily(name, help string, labels ...string) series {
	return newSeries(prometheus.GaugeValue, name, help, labels...)
}

// with returns one value of a metric.
func (s series) with(v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(s.desc, s.kind, v, labels...)
}

func counter[N int | int64 | uint64](name string, value N, help string) series {
	s := counterFamily(name, help)
	s.value = float64(value)
	return s
}

func gauge[N int | int64 | uint64 | float64](name string, value N, help string) series {
	s := gaugeFamily(name, help)
	s.value = float64(value)
	return s
}

func metrics(all []series) (list []Metric) {
	for _, s := range all {
		list = append(list, s.Metric)
	}
	return list
}

func describe(all []series, ch chan<- *prometheus.Desc) {
	for _, s := range all {
		ch <- s.desc
	}
}

func collect(all []series, ch chan<- prometheus.Metric) {
	for _, s := range all {
		ch <- s.with(s.value)
	}
}

// vectors is a collector of others that count by themselves.
func vectors(all ...prometheus.Collector) prometheus.Collector {
	r := prometheus.NewRegistry()
	r.MustRegister(all...) // they are of this package, and have names of their own
	return r
}

func counterVec(m Metric) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}
