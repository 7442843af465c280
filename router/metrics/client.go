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

func clientSeries(limit gateway.RateLimitState, between gateway.IntermediaryState) []series {
	oldest, pause := 0.0, 0.0
	for _, answer := range between.Now {
		oldest = max(oldest, age(answer.Since))
	}
	if !limit.PausedUntil.IsZero() {
		pause = max(0, time.Until(limit.PausedUntil).Seconds())
	}
	return []series{
		gauge("agrimill_gateway_rate_limited", truth(limit.Limited),
			"1 from the first response with status 429 until the limit is lifted, else 0."),
		gauge("agrimill_gateway_rate_limit_requests_per_second", limit.Rate,
			"The request rate that the client keeps to while it is limited; 0 while it is not."),
		gauge("agrimill_gateway_rate_limit_pause_seconds", pause,
			"How much longer the client pauses all requests; 0 if it does not."),
		counter("agrimill_gateway_rate_limited_responses_total", limit.Rejected,
			"Responses with status 429."),
		gauge("agrimill_gateway_last_rate_limited_timestamp_seconds", unix(limit.LastRejected),
			"Unix time of the last response with status 429; 0 if never."),
		counter("agrimill_gateway_intermediary_answers_total", between.Answers,
			"Responses that came from something in between, such as an ingress or a proxy, instead of the service."),
		gauge("agrimill_gateway_intermediary_operations", len(between.Now),
			"Operations that something in between currently answers instead of the service."),
		gauge("agrimill_gateway_intermediary_age_seconds", oldest,
			"How long something in between has been answering an operation, at most; 0 if the service answers all of them."),
	}
}

// Describe implements prometheus.Collector.
func (c *ClientCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(clientSeries(gateway.RateLimitState{}, gateway.IntermediaryState{}), ch)
}

// Collect implements prometheus.Collector.
func (c *ClientCollector) Collect(ch chan<- prometheus.Metric) {
	collect(clientSeries(c.source.RateLimit(), c.source.Intermediaries()), ch)
}
