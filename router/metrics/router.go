package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/router"
)

// HealthSource is the part of *router.Router that a [RouterCollector] uses. Health is
// called once per scrape, from any goroutine.
type HealthSource interface {
	Health() []router.RouteHealth
}

// RouterCollector exports the health of all routes of one router. It is safe for
// concurrent use, and may outlive the router: its last values stay.
//
// An [Observer] adds what the health does not include.
type RouterCollector struct {
	source HealthSource
}

// NewRouterCollector returns a collector for source, which must not be nil.
func NewRouterCollector(source HealthSource) *RouterCollector {
	return &RouterCollector{source: source}
}

var (
	routeMessages = counterFamily("agrimill_route_messages_total",
		"Messages of the route by outcome.", "route", "outcome")
	routeRetries = counterFamily("agrimill_route_retries_total",
		"Failed attempts that were retried, by error class.", "route", "class")
	routeMaybeRepeated = counterFamily("agrimill_route_maybe_repeated_messages_total",
		"Messages handled of which a sender's repetition could not be told.", "route")
	routeInFlight = gaugeFamily("agrimill_route_in_flight_messages",
		"Messages that the route has taken but not finished.", "route")
	routeWaiting = gaugeFamily("agrimill_route_waiting_messages",
		"Messages in flight that are waiting for a retry.", "route")
	routeRefused = gaugeFamily("agrimill_route_refused_topics",
		"Topics that the sink refuses while it takes others.", "route")
	routeState = gaugeFamily("agrimill_route_state",
		"1 for the current state of the route, 0 for the others.", "route", "state")
	routeSince = gaugeFamily("agrimill_route_state_since_timestamp_seconds",
		"Unix time at which the route entered its state.", "route")
	routeSuccess = gaugeFamily("agrimill_route_last_success_timestamp_seconds",
		"Unix time at which the sink last accepted a message; 0 if never.", "route")

	routeFamilies = []series{
		routeMessages, routeRetries, routeMaybeRepeated, routeInFlight, routeWaiting, routeRefused, routeState, routeSince, routeSuccess,
	}

	routeStates = []router.RouteState{
		router.StateStarting, router.StateRunning, router.StateOutage, router.StateFailing,
		router.StateEnded, router.StateFailed, router.StateStopped,
	}
)

// Describe implements prometheus.Collector.
func (c *RouterCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(routeFamilies, ch)
}

// Collect implements prometheus.Collector.
func (c *RouterCollector) Collect(ch chan<- prometheus.Metric) {
	for _, h := range c.source.Health() {
		for outcome, n := range map[string]uint64{
			"delivered": h.Delivered, "filtered": h.Filtered, "duplicate": h.Duplicates,
			"poisoned": h.Poisoned, "returned": h.Returned,
		} {
			ch <- routeMessages.with(float64(n), h.Name, outcome)
		}
		for class, n := range map[router.Class]uint64{
			router.ClassHandler:  h.RetriesByClass.Handler,
			router.ClassOutage:   h.RetriesByClass.Outage,
			router.ClassShutdown: h.RetriesByClass.Shutdown,
		} {
			ch <- routeRetries.with(float64(n), h.Name, class.String())
		}
		ch <- routeMaybeRepeated.with(float64(h.MaybeRepeated), h.Name)
		ch <- routeInFlight.with(float64(h.InFlight), h.Name)
		ch <- routeWaiting.with(float64(h.Waiting), h.Name)
		ch <- routeRefused.with(float64(len(h.Refused)), h.Name)
		for _, state := range routeStates {
			ch <- routeState.with(truth(h.State == state), h.Name, string(state))
		}
		ch <- routeSince.with(unix(h.Since), h.Name)
		ch <- routeSuccess.with(unix(h.LastSuccess), h.Name)
	}
}
