// Package metrics exports what subscribers and routers count to Prometheus. A
// program that does not import it compiles no Prometheus.
//
// The collectors read snapshots when they are scraped, so a message costs
// nothing more than without them. All names begin with agrimill_. There is one
// series per value and route; nothing that a sender chooses becomes a label.
//
// Several subscribers or routers in one registry are told apart by a label:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"gateway": "test"}, registry)
package metrics
