// Package metrics exports the counts of clients, subscribers, routers and sinks to
// Prometheus. A program that does not import it does not compile Prometheus.
//
// The collectors read snapshots when they are scraped, so they add no cost per message;
// only a sink wrapped by [Sinks.Wrap] measures each call. All names begin with agrimill_;
// [Metrics] lists them, docs/metrics.md explains them. There is one series per value, route
// and sink; no label value is chosen by a sender.
//
// Distinguish several subscribers or routers in one registry by a label:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"gateway": "test"}, registry)
package metrics
