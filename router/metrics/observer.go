package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/router"
)

// Observer counts what a router reports but does not keep in its health: why messages were
// retried, poisoned or returned, and outages. It is a router.Observer for
// router.Config.Observer and a prometheus.Collector. A successful message costs one
// comparison. It is safe for concurrent use, and one Observer may serve several routers
// whose routes have different names.
type Observer struct {
	prometheus.Collector
	next    router.Observer
	events  *prometheus.CounterVec
	outages *prometheus.CounterVec
}

var (
	_ router.Observer      = (*Observer)(nil)
	_ prometheus.Collector = (*Observer)(nil)
)

// NewObserver returns an Observer that passes every event on to next; nil means none.
func NewObserver(next router.Observer) *Observer {
	o := &Observer{next: next, events: counterVec(routeEvents), outages: counterVec(routeOutages)}
	o.Collector = vectors(o.events, o.outages)
	return o
}

var (
	routeEvents = Metric{
		Name: "agrimill_route_events_total", Type: typeCounter, Labels: []string{"route", "event", "class"},
		Help: "Events of the route's messages other than success, by error class.",
	}
	routeOutages = Metric{
		Name: "agrimill_route_outage_seconds_total", Type: typeCounter, Labels: []string{"route"},
		Help: "Duration of past outages.",
	}
)

// Observe implements router.Observer.
func (o *Observer) Observe(e router.Event) {
	if name := eventName(e.Kind); name != "" {
		class := "none"
		if e.Err != nil {
			class = e.Class.String()
		}
		o.events.WithLabelValues(e.Route, name, class).Inc()
		if e.Kind == router.EventOutageEnded {
			o.outages.WithLabelValues(e.Route).Add(e.Delay.Seconds())
		}
	}
	if o.next != nil {
		o.next.Observe(e)
	}
}

// eventName is the label of an event, empty for those that have no error and are counted in
// the router's health.
func eventName(kind router.EventKind) string {
	switch kind {
	case router.EventPoisoned, router.EventReturned, router.EventRetry, router.EventOutageBegan, router.EventOutageEnded,
		router.EventPoisonFailed, router.EventDedupFailed:
		return strings.ReplaceAll(kind.String(), " ", "_")
	}
	return ""
}

// Forget removes the series of a route that no longer exists.
func (o *Observer) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	o.events.DeletePartialMatch(labels)
	o.outages.DeletePartialMatch(labels)
}
