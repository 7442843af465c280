package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/sinks"
)

// ErrConfig is matched by the errors of [SinksConfig.Validate].
var ErrConfig = errors.New("metrics: invalid configuration")

// DefaultBuckets returns the bounds in seconds of the latency histogram: from
// half a millisecond, a broker next door, to 30 seconds, where sinks give up.
func DefaultBuckets() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
}

// SinksConfig configures [Sinks]. The zero value is ready for use.
type SinksConfig struct {
	// Buckets are the bounds of the latency histogram in seconds, ascending.
	// Empty means [DefaultBuckets].
	Buckets []float64
}

func (c *SinksConfig) setDefaults() {
	if len(c.Buckets) == 0 {
		c.Buckets = DefaultBuckets()
	}
	c.Buckets = slices.Clone(c.Buckets)
}

// Validate reports the first field whose value is not allowed; the error matches
// [ErrConfig].
func (c SinksConfig) Validate() error {
	for i, bound := range c.Buckets {
		if !(bound > 0) || i > 0 && !(bound > c.Buckets[i-1]) {
			return fmt.Errorf("%w: Buckets must be positive and ascending", ErrConfig)
		}
	}
	return nil
}

// Sinks measures what sinks do. It is one prometheus.Collector for any number of
// sinks, told apart by the label sink. Wrap them with [Sinks.Wrap]. Its methods
// are safe for concurrent use.
type Sinks struct {
	duration *prometheus.HistogramVec
	messages *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	open     *prometheus.GaugeVec
}

var (
	sinkDuration = Metric{
		Name: "agrimill_sink_publish_duration_seconds", Type: typeHistogram, Labels: []string{"sink", "outcome"},
		Help: "How long calls of the sink took, by what they came to.",
	}
	sinkMessages = Metric{
		Name: "agrimill_sink_messages_total", Type: typeCounter, Labels: []string{"sink", "outcome"},
		Help: "Messages that were given to the sink, by what the call came to.",
	}
	sinkBytes = Metric{
		Name: "agrimill_sink_stored_bytes_total", Type: typeCounter, Labels: []string{"sink"},
		Help: "Payload bytes of the messages that the sink has stored.",
	}
	sinkOpen = Metric{
		Name: "agrimill_sink_publishing_messages", Type: typeGauge, Labels: []string{"sink"},
		Help: "Messages that the sink has been given and has not answered for.",
	}
)

func sinkMetrics() []Metric { return []Metric{sinkDuration, sinkMessages, sinkBytes, sinkOpen} }

// NewSinks returns a Sinks that measures nothing yet, or an error that matches
// [ErrConfig].
func NewSinks(config SinksConfig) (*Sinks, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Sinks{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: sinkDuration.Name, Help: sinkDuration.Help, Buckets: config.Buckets,
		}, sinkDuration.Labels),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: sinkMessages.Name, Help: sinkMessages.Help}, sinkMessages.Labels),
		bytes:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: sinkBytes.Name, Help: sinkBytes.Help}, sinkBytes.Labels),
		open:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: sinkOpen.Name, Help: sinkOpen.Help}, sinkOpen.Labels),
	}, nil
}

// outcome is the label of what a call of Publish has come to.
type outcome int

const (
	stored outcome = iota
	tooLarge
	rejected
	unavailable
	closed
	interrupted
	failed
	outcomes
)

// name is the value of the label.
func (o outcome) name() string {
	return [outcomes]string{"stored", "too_large", "rejected", "unavailable", "closed", "interrupted", "failed"}[o]
}

// outcomeOf classes an error as the contract of sinks.Sink does.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return stored
	case errors.Is(err, sinks.ErrTooLarge):
		return tooLarge
	case errors.Is(err, sinks.ErrRejected):
		return rejected
	case errors.Is(err, sinks.ErrUnavailable):
		return unavailable
	case errors.Is(err, sinks.ErrClosed):
		return closed
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return interrupted
	default:
		return failed // not a sink of the contract
	}
}

// Wrap returns sink, measured under name; an empty name means the Name of its
// Description. Several sinks of one name count together: so they go on counting
// when one replaces the other. Calls without messages are not counted. One
// publish costs some 150 ns more.
//
// The result does all that sink does, and closes it. It has a method
// Unwrap() sinks.Sink that returns sink, for methods beyond the contract.
func (s *Sinks) Wrap(name string, sink sinks.Sink) sinks.Sink {
	if name == "" {
		name = sink.Describe().Name
	}
	m := &measuredSink{Sink: sink, bytes: s.bytes.WithLabelValues(name), open: s.open.WithLabelValues(name)}
	for o := range outcomes {
		m.messages[o] = s.messages.WithLabelValues(name, o.name())
	}
	m.lookUp = func(o outcome) prometheus.Observer { return s.duration.WithLabelValues(name, o.name()) }
	m.latency(stored) // a sink that nothing went to yet is there, too
	return m
}

// Forget removes the series of a sink that is no longer there. One that is still
// in use must not be forgotten: it would count unseen.
func (s *Sinks) Forget(name string) {
	labels := prometheus.Labels{"sink": name}
	s.duration.DeletePartialMatch(labels)
	s.messages.DeletePartialMatch(labels)
	s.bytes.DeletePartialMatch(labels)
	s.open.DeletePartialMatch(labels)
}

// Describe implements prometheus.Collector.
func (s *Sinks) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Sinks) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.collectors() {
		c.Collect(ch)
	}
}

func (s *Sinks) collectors() []prometheus.Collector {
	return []prometheus.Collector{s.duration, s.messages, s.bytes, s.open}
}

// measuredSink is a sink whose calls of Publish are measured. Everything else is
// the sink's own.
type measuredSink struct {
	sinks.Sink
	messages [outcomes]prometheus.Counter
	bytes    prometheus.Counter
	open     prometheus.Gauge

	// A histogram is a score of series, so those of failures are made when the
	// first one comes.
	latencies [outcomes]atomic.Pointer[prometheus.Observer]
	lookUp    func(outcome) prometheus.Observer
}

func (m *measuredSink) latency(o outcome) prometheus.Observer {
	if known := m.latencies[o].Load(); known != nil {
		return *known
	}
	found := m.lookUp(o)
	m.latencies[o].Store(&found)
	return found
}

// Publish implements sinks.Sink.
func (m *measuredSink) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return m.Sink.Publish(topic)
	}
	size := 0
	for _, msg := range messages {
		size += len(msg.Payload)
	}
	n := float64(len(messages))
	m.open.Add(n)
	defer m.open.Sub(n) // also when the sink panics
	start := time.Now()
	err := m.Sink.Publish(topic, messages...)
	took := time.Since(start)
	o := outcomeOf(err)
	m.latency(o).Observe(took.Seconds())
	m.messages[o].Add(n)
	if o == stored {
		m.bytes.Add(float64(size))
	}
	return err
}

// Unwrap returns the sink that is measured.
func (m *measuredSink) Unwrap() sinks.Sink { return m.Sink }
