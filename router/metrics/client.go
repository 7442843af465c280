package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/gateway"
)

// RateLimitSource is what a *gateway.Client is to a [ClientCollector]. RateLimit
// is called once per scrape, from any goroutine.
type RateLimitSource interface {
	RateLimit() gateway.RateLimitState
}

// ClientCollector exports the state of the limiter of one client of the gateway:
// whether the service said that there were too many requests, and what the
// client makes of it. It is safe for concurrent use, and may outlive the client.
type ClientCollector struct {
	source RateLimitSource
}

// NewClientCollector returns a collector for source, which must not be nil.
func NewClientCollector(source RateLimitSource) *ClientCollector {
	return &ClientCollector{source: source}
}

var clientSeries = []series[gateway.RateLimitState]{
	gauge("agrimill_gateway_rate_limited",
		"1 from the first answer of status 429 until the limit has been lifted, else 0.",
		func(s gateway.RateLimitState) float64 { return truth(s.Limited) }),
	gauge("agrimill_gateway_rate_limit_requests_per_second",
		"The rate that the client keeps to while it is limited; 0 while it is not.",
		func(s gateway.RateLimitState) float64 { return s.Rate }),
	gauge("agrimill_gateway_rate_limit_pause_seconds",
		"How long the client still sends nothing at all; 0 when it does not pause.",
		func(s gateway.RateLimitState) float64 {
			if s.PausedUntil.IsZero() {
				return 0
			}
			return max(0, time.Until(s.PausedUntil).Seconds())
		}),
	counter("agrimill_gateway_rate_limited_responses_total",
		"Answers of status 429.",
		func(s gateway.RateLimitState) float64 { return float64(s.Rejected) }),
	gauge("agrimill_gateway_last_rate_limited_timestamp_seconds",
		"Unix time of the last answer of status 429; 0 for never.",
		func(s gateway.RateLimitState) float64 { return unix(s.LastRejected) }),
}

// Describe implements prometheus.Collector.
func (c *ClientCollector) Describe(ch chan<- *prometheus.Desc) { describe(clientSeries, ch) }

// Collect implements prometheus.Collector.
func (c *ClientCollector) Collect(ch chan<- prometheus.Metric) {
	collect(clientSeries, c.source.RateLimit(), ch)
}
