package metrics_test

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/agrimill/agrimill/router/metrics"
)

// The query of a dashboard, held against the metrics that exist.
func ExampleNames() {
	query := `histogram_quantile(0.99, rate(agrimill_sink_publish_duration_seconds_bucket[5m])) > agrimill_sink_latency`
	for _, name := range regexp.MustCompile(`agrimill_\w+`).FindAllString(query, -1) {
		fmt.Println(name, slices.Contains(metrics.Names(), name))
	}
	// Output:
	// agrimill_sink_publish_duration_seconds_bucket true
	// agrimill_sink_latency false
}

// Type and labels of one metric.
func ExampleMetrics() {
	for _, m := range metrics.Metrics() {
		if m.Name == "agrimill_route_retries_total" {
			fmt.Println(m.Type, m.Labels)
			fmt.Println(m.Help)
		}
	}
	// Output:
	// counter [route class]
	// Failed attempts that were retried, by error class.
}
