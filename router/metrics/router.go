package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/router"
)

// HealthSource is what a *router.Router is to a [RouterCollector]. Health is
// called once per scrape, from any goroutine.
type HealthSource interface {
	Health() []router.RouteHealth
}

// RouterCollector exports the health of all routes of one router. It is safe for
// concurrent use, and may outlive the router: its last values stay.
//
// An [Observer] adds what the health does not tell.
type RouterCollector struct {
	source HealthSource
}

// NewRouterCollector returns a collector for source, which must not be nil.
func NewRouterCollector(source HealthSource) *RouterCollector {
	return &RouterCollector{source: source}
}

var (
	routeMessages = prometheus.NewDesc("agrimill_route_messages_total",
		"Messages of the route by what they have come to.", []string{"route", "outcome"}, nil)
	routeRetries = prometheus.NewDesc("agrimill_route_retries_total",
		"Attempts that failed and were followed by another one.", []string{"route"}, nil)
	routeInFlight = prometheus.NewDesc("agrimill_route_in_flight_messages",
		"Messages that the route has taken and not finished.", []string{"route"}, nil)
	routeWaiting = prometheus.NewDesc("agrimill_route_waiting_messages",
		"Messages in flight that wait for another attempt.", []string{"route"}, nil)
	routeState = prometheus.NewDesc("agrimill_route_state",
		"1 for the state that the route is in, 0 for the others.", []string{"route", "state"}, nil)
	routeSince = prometheus.NewDesc("agrimill_route_state_since_timestamp_seconds",
		"Unix time at which the route came into its state.", []string{"route"}, nil)
	routeSuccess = prometheus.NewDesc("agrimill_route_last_success_timestamp_seconds",
		"Unix time at which the sink last took a message; 0 for never.", []string{"route"}, nil)

	routeStates = []router.RouteState{
		router.StateStarting, router.StateRunning, router.StateOutage,
		router.StateEnded, router.StateFailed, router.StateStopped,
	}
)

// Describe implements prometheus.Collector.
func (c *RouterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		routeMessages, routeRetries, routeInFlight, routeWaiting, routeState, routeSince, routeSuccess,
	} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *RouterCollector) Collect(ch chan<- prometheus.Metric) {
	for _, h := range c.source.Health() {
		total := func(desc *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{h.Name}, labels...)...)
		}
		now := func(desc *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append([]string{h.Name}, labels...)...)
		}
		total(routeMessages, h.Delivered, "delivered")
		total(routeMessages, h.Filtered, "filtered")
		total(routeMessages, h.Duplicates, "duplicate")
		total(routeMessages, h.Poisoned, "poisoned")
		total(routeMessages, h.Returned, "returned")
		total(routeRetries, h.Retries)
		now(routeInFlight, float64(h.InFlight))
		now(routeWaiting, float64(h.Waiting))
		for _, state := range routeStates {
			now(routeState, truth(h.State == state), string(state))
		}
		now(routeSince, unix(h.Since))
		now(routeSuccess, unix(h.LastSuccess))
	}
}
