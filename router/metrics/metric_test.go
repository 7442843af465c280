package metrics_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// everything returns a registry in which each metric of the package has a value.
func everything(t *testing.T) *prometheus.Registry {
	t.Helper()
	observer := metrics.NewObserver(nil)
	observer.Observe(router.Event{Route: "r", Kind: router.EventOutageEnded, Delay: time.Second})
	measured := metrics.NewSinks()
	testkit.NoError(t, measured.Wrap("s", newSink(t, "memory", &testkit.Publisher{}, sinks.PublisherConfig{})).Publish("topic", message.NewMessage("1", nil)))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(
		metrics.NewClientCollector(&clientState{}),
		metrics.NewSubscriberCollector(statsFunc(func() subscriber.Stats { return subscriber.Stats{} })),
		metrics.NewRouterCollector(healthFunc(func() []router.RouteHealth { return []router.RouteHealth{{Name: "r"}} })),
		observer, measured,
	)
	return registry
}

// TestMetricsListsWhatIsExported holds the list against what a scrape finds, and
// what a scrape finds against the conventions of Prometheus.
func TestMetricsListsWhatIsExported(t *testing.T) {
	t.Parallel()
	families := testkit.Must(everything(t).Gather())(t)
	listed := metrics.Metrics()
	if !slices.IsSortedFunc(listed, func(a, b metrics.Metric) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the list is not sorted")
	}
	if len(listed) != len(families) {
		t.Errorf("%d metrics are listed, %d are exported", len(listed), len(families))
	}
	for i, family := range families[:min(len(listed), len(families))] {
		m := listed[i]
		var labels []string
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, pair.GetName())
		}
		want := slices.Sorted(slices.Values(m.Labels))
		if family.GetName() != m.Name || family.GetHelp() != m.Help || !slices.Equal(labels, want) ||
			strings.ToLower(family.GetType().String()) != m.Type {
			t.Errorf("listed as %+v, exported as %s %s %v %q", m, family.GetName(), family.GetType(), labels, family.GetHelp())
		}
	}
	problems := testkit.Must(promlint.NewWithMetricFamilies(families).Lint())(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	names := metrics.Names()
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Error("the names are not sorted, or not unique")
	}
	for _, name := range []string{
		"agrimill_route_messages_total", "agrimill_sink_publish_duration_seconds_bucket",
		"agrimill_sink_publish_duration_seconds_sum", "agrimill_sink_publish_duration_seconds_count",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing", name)
		}
	}
	if slices.Contains(names, "agrimill_sink_publish_duration_seconds") {
		t.Error("no series has the name of the histogram itself")
	}
}

// TestDocumentation checks that docs/metrics.md has a row for each metric, with
// its labels and by its rule for types, and for no other.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page := testkit.Must(os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md")))(t)
	// A test of cmd/agrimill/internal/pipeline checks the last section.
	page, _, found := bytes.Cut(page, []byte("\n## The program agrimill\n"))
	if !found {
		t.Fatal("docs/metrics.md has no section about the program")
	}
	type row struct{ kind, labels string }
	documented := map[string]row{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(agrimill_[a-z_]+)(?:{([a-z,]+)})?` \\| (histogram)?").FindAllStringSubmatch(string(page), -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s has two rows", m[1])
		}
		kind := "gauge"
		switch {
		case m[3] != "":
			kind = m[3]
		case strings.HasSuffix(m[1], "_total"):
			kind = "counter"
		}
		documented[m[1]] = row{kind, m[2]}
	}
	for _, m := range metrics.Metrics() {
		want := row{m.Type, strings.Join(m.Labels, ",")}
		if got, ok := documented[m.Name]; !ok {
			t.Errorf("docs/metrics.md has no row for %s", m.Name)
		} else if got != want {
			t.Errorf("docs/metrics.md has %s as %+v, it is %+v", m.Name, got, want)
		}
		delete(documented, m.Name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md has %s, which does not exist", name)
	}
	names := metrics.Names()
	for _, name := range regexp.MustCompile(`agrimill_[a-z_]+`).FindAllString(string(page), -1) {
		isMetric := slices.ContainsFunc(metrics.Metrics(), func(m metrics.Metric) bool { return m.Name == name })
		if !isMetric && !slices.Contains(names, name) && name != "agrimill_" {
			t.Errorf("docs/metrics.md mentions %s, which does not exist", name)
		}
	}
}
