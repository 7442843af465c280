package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/gateway"
)

// ClientSource is the part of *gateway.Client that a [ClientCollector] uses. Each method is
// called once per scrape, from any goroutine.
type ClientSource interface {
	RateLimit() gateway.RateLimitState
	Intermediaries() gateway.IntermediaryState
}

// ClientCollector exports the state of one client of the gateway: its rate limit, and
// whether something in between answers instead of the service. It is safe for concurrent
// use and may outlive the client.
type ClientCollector struct {
	source ClientSource
}

// NewClientCollector returns a collector for source, which must not be nil.
func NewClientCollector(source ClientSource) *ClientCollector {
	return &ClientCollector{source: source}
}

var intermediarySeries = []series[gateway.IntermediaryState]{
	counter("agrimill_gateway_intermediary_answers_total",
		"Responses that came from something in between, such as an ingress or a proxy, instead of the service.",
		func(s gateway.IntermediaryState) float64 { return float64(s.Answers) }),
	gauge("agrimill_gateway_intermediary_operations",
		"Operations that something in between currently answers instead of the service.",
		func(s gateway.IntermediaryState) float64 { return float64(len(s.Now)) }),
	gauge("agrimill_gateway_intermediary_age_seconds",
		"How long something in between has been answering an operation, at most; 0 if the service answers all of them.",
		func(s gateway.IntermediaryState) float64 {
			oldest := 0.0
			for _, answer := range s.Now {
				oldest = max(oldest, age(answer.Since))
			}
			return oldest
		}),
}

var clientSeries = []series[gateway.RateLimitState]{
	gauge("agrimill_gateway_rate_limited",
		"1 from the first response with status 429 until the limit is lifted, else 0.",
		func(s gateway.RateLimitState) float64 { return truth(s.Limited) }),
	gauge("agrimill_gateway_rate_limit_requests_per_second",
		"The request rate that the client keeps to while it is limited; 0 while it is not.",
		func(s gateway.RateLimitState) float64 { return s.Rate }),
	gauge("agrimill_gateway_rate_limit_pause_seconds",
		"How much longer the client pauses all requests; 0 if it does not.",
		func(s gateway.RateLimitState) float64 {
			if s.PausedUntil.IsZero() {
				return 0
			}
			return max(0, time.Until(s.PausedUntil).Seconds())
		}),
	counter("agrimill_gateway_rate_limited_responses_total",
		"Responses with status 429.",
		func(s gateway.RateLimitState) float64 { return float64(s.Rejected) }),
	gauge("agrimill_gateway_last_rate_limited_timestamp_seconds",
		"Unix time of the last response with status 429; 0 if never.",
		func(s gateway.RateLimitState) float64 { return unix(s.LastRejected) }),
}

// Describe implements prometheus.Collector.
func (c *ClientCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(clientSeries, ch)
	describe(intermediarySeries, ch)
}

// Collect implements prometheus.Collector.
func (c *ClientCollector) Collect(ch chan<- prometheus.Metric) {
	collect(clientSeries, c.source.RateLimit(), ch)
	collect(intermediarySeries, c.source.Intermediaries(), ch)
}
