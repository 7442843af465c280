// Package metrics exports what clients, subscribers, routers and sinks count to
// Prometheus. A program that does not import it compiles no Prometheus.
//
// The collectors read snapshots when they are scraped, so a message costs
// nothing more than without them; only a sink wrapped by [Sinks.Wrap] measures
// each call. All names begin with agrimill_; [Metrics] lists them, docs/metrics.md
// explains them. There is one series per value, route and sink; nothing that a
// sender chooses becomes a label.
//
// Several subscribers or routers in one registry are told apart by a label:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"gateway": "test"}, registry)
package metrics
