package linttest

import (
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

type staticConfig = discovery.StaticConfig

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// metric is what docs/metrics.md says of one. That page is held against the program
// by a test of router/metrics.
type metric struct {
	kind   string
	labels []string
}

func documentedMetrics(t *testing.T) map[string]metric {
	t.Helper()
	metrics := map[string]metric{}
	row := regexp.MustCompile("(?m)^\\| `(agrimill_\\w+)(?:{([a-z,]+)})?` \\| (histogram)?")
	for _, match := range row.FindAllStringSubmatch(string(read(t, top, "docs", "metrics.md")), -1) {
		m := metric{kind: "gauge"}
		switch {
		case match[3] != "":
			m.kind = match[3]
		case strings.HasSuffix(match[1], "_total"):
			m.kind = "counter"
		}
		if match[2] != "" {
			m.labels = strings.Split(match[2], ",")
		}
		metrics[match[1]] = m
	}
	if len(metrics) < 40 {
		t.Fatalf("docs/metrics.md lists only %d metrics", len(metrics))
	}
	return metrics
}

// foreign are metrics that Prometheus and its Go client make.
var foreign = []string{"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}

// targetLabels are those that Prometheus adds.
var targetLabels = []string{"instance", "job"}

// checkQuery parses a PromQL expression and holds its metrics and labels against
// those that agrimill exports.
func checkQuery(t *testing.T, metrics map[string]metric, where, query string) {
	t.Helper()
	// Variables that Grafana replaces.
	query = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(query)
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %s: %v", where, query, err)
		return
	}
	for _, selectors := range parser.ExtractSelectors(expr) {
		checkSelector(t, metrics, where, selectors)
	}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		checkRate(t, metrics, where, node)
		return nil
	})
}

func checkSelector(t *testing.T, metrics map[string]metric, where string, matchers []*labels.Matcher) {
	t.Helper()
	var name string
	for _, matcher := range matchers {
		if matcher.Name == model.MetricNameLabel {
			name = matcher.Value
		}
	}
	if slices.Contains(foreign, name) {
		return
	}
	m, ok := metricOf(metrics, name)
	if !ok {
		t.Errorf("%s: agrimill exports no %s", where, name)
		return
	}
	for _, matcher := range matchers {
		allowed := slices.Concat(m.labels, targetLabels, []string{model.MetricNameLabel})
		if m.kind == "histogram" {
			allowed = append(allowed, "le")
		}
		if !slices.Contains(allowed, matcher.Name) {
			t.Errorf("%s: %s has no label %s", where, name, matcher.Name)
		}
	}
}

// metricOf finds the metric that a series belongs to.
func metricOf(metrics map[string]metric, series string) (metric, bool) {
	if m, ok := metrics[series]; ok {
		return m, m.kind != "histogram"
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok {
			if m, ok := metrics[base]; ok {
				return m, m.kind == "histogram"
			}
		}
	}
	return metric{}, false
}

// checkRate: counters are only good for rate and increase, gauges are not.
func checkRate(t *testing.T, metrics map[string]metric, where string, node parser.Node) {
	t.Helper()
	call, ok := node.(*parser.Call)
	if !ok || !slices.Contains([]string{"rate", "increase", "irate"}, call.Func.Name) {
		return
	}
	selector, ok := call.Args[0].(*parser.MatrixSelector)
	if !ok {
		return
	}
	name := selector.VectorSelector.(*parser.VectorSelector).Name
	if m, _ := metricOf(metrics, name); m.kind == "gauge" {
		t.Errorf("%s: %s of %s, a gauge", where, call.Func.Name, name)
	}
}

func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse(read(t, deploy, "prometheus", "alerts.yaml"), false, model.UTF8Validation, parser.NewParser(parser.Options{}), discardLogger())
	for _, err := range errs {
		t.Error(err)
	}
	var list []rulefmt.Rule
	for _, group := range groups.Groups {
		list = append(list, group.Rules...)
	}
	if len(list) < 10 {
		t.Fatalf("only %d rules", len(list))
	}
	return list
}

func TestPrometheusReadsItsFiles(t *testing.T) {
	t.Parallel()
	c := prometheusConfig(t)
	for _, file := range c.RuleFiles {
		if !exists(file) {
			t.Errorf("rule file %s is not there", file)
		}
	}
	// The alert for an instance that is away knows it by the name of its job.
	if !strings.Contains(c.ScrapeConfigs[0].JobName, "agrimill") {
		t.Errorf("job %q is unknown to the alerts", c.ScrapeConfigs[0].JobName)
	}
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	metrics := documentedMetrics(t)
	seen := map[string]bool{}
	for _, rule := range rules(t) {
		if rule.Alert == "" || seen[rule.Alert] {
			t.Errorf("%+v: not an alert, or there twice", rule)
		}
		seen[rule.Alert] = true
		checkQuery(t, metrics, "alert "+rule.Alert, rule.Expr)
		if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", rule.Alert, severity)
		}
		for _, annotation := range []string{"summary", "description", "runbook_url"} {
			if rule.Annotations[annotation] == "" {
				t.Errorf("%s: no %s", rule.Alert, annotation)
			}
		}
		want := "https://github.com/agrimill/agrimill/blob/main/docs/runbook.md#" + strings.ToLower(rule.Alert)
		if got := rule.Annotations["runbook_url"]; got != want {
			t.Errorf("%s: runbook_url is %s, want %s", rule.Alert, got, want)
		}
	}
}

// TestAlertsHaveARunbook: every alert has its section in docs/runbook.md, with the
// three answers that someone woken at night looks for, and no section is left of
// an alert that is gone.
func TestAlertsHaveARunbook(t *testing.T) {
	t.Parallel()
	runbook := string(read(t, top, "docs", "runbook.md"))
	sections := map[string]string{}
	for _, section := range strings.Split(runbook, "\n### ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		sections[title] = text
	}
	alerts := map[string]bool{}
	for _, rule := range rules(t) {
		alerts[rule.Alert] = true
		text, ok := sections[rule.Alert]
		if !ok {
			t.Errorf("docs/runbook.md has no section %s", rule.Alert)
			continue
		}
		for _, answer := range []string{"**Means.**", "**Look at.**", "**Do.**", "**Worry**"} {
			if !strings.Contains(text, answer) {
				t.Errorf("docs/runbook.md, %s: no %s", rule.Alert, answer)
			}
		}
	}
	for title := range sections {
		if strings.HasPrefix(title, "Agrimill") && !alerts[title] {
			t.Errorf("docs/runbook.md explains %s, which is no alert", title)
		}
	}
}

// Names of metrics in the whole documentation and in the files for deployment exist.
func TestNamesOfMetrics(t *testing.T) {
	t.Parallel()
	metrics := documentedMetrics(t)
	name := regexp.MustCompile(`\bagrimill_[a-z_]+[a-z]\b`)
	for _, dir := range []string{filepath.Join(top, "docs"), deploy} {
		ends(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) == ".go" {
				return err
			}
			for _, found := range name.FindAllString(string(read(t, path)), -1) {
				if _, ok := metrics[found]; ok {
					continue
				}
				if _, ok := metricOf(metrics, found); !ok {
					t.Errorf("%s: there is no metric %s", path, found)
				}
			}
			return nil
		}))
	}
}

// checkLegend: what a legend names is a label that the query leaves.
func checkLegend(t *testing.T, where, query, legend string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(legend, -1) {
		aggregated := regexp.MustCompile(`\b(sum|min|max)\b`).MatchString(query)
		kept := regexp.MustCompile(`\bby \([^)]*\b` + match[1] + `\b`).MatchString(query)
		if aggregated && !kept || !aggregated && !slices.Contains(targetLabels, match[1]) {
			t.Errorf("%s: the legend names %s, which %s does not leave", where, match[1], query)
		}
	}
}

type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct{ Name, Definition string } `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct{ Name, Expr string } `json:"list"`
	} `json:"annotations"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		RefID        string `json:"refId"`
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	metrics := documentedMetrics(t)
	var d dashboard
	ends(t, json.Unmarshal(read(t, deploy, "grafana", "dashboards", "agrimill.json"), &d))
	if d.UID == "" || d.Title == "" || len(d.Panels) < 10 {
		t.Fatalf("dashboard %q %q with %d panels", d.UID, d.Title, len(d.Panels))
	}
	ids := map[int]bool{}
	queries := 0
	for i, p := range d.Panels {
		where := "panel " + p.Title
		if ids[p.ID] {
			t.Errorf("%s: ID %d is there twice", where, p.ID)
		}
		ids[p.ID] = true
		for _, other := range d.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies on %s", where, other.Title)
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s is wider than the dashboard", where)
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: no title, description or query", where)
		}
		for _, target := range p.Targets {
			queries++
			checkQuery(t, metrics, where, target.Expr)
			checkLegend(t, where, target.Expr, target.LegendFormat)
		}
	}
	if queries < 20 {
		t.Errorf("only %d queries", queries)
	}
	for _, annotation := range d.Annotations.List {
		checkQuery(t, metrics, "annotation "+annotation.Name, annotation.Expr)
	}
	for _, variable := range d.Templating.List {
		if match := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(variable.Definition); match != nil {
			checkQuery(t, metrics, "variable "+variable.Name, match[1])
		}
	}
}
