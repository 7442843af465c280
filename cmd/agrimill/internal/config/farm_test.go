package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
)

// Mistakes in what a route does with farm data have their place.
func TestFarmProblems(t *testing.T) {
	text := strings.Replace(small, "routes:\n", `routes:
  - name: broken
    from: {gateway: ENDPOINT_DELETED}
    filter: {farm: {ddi: 43h, from: yesterday, box: {south: 2, west: 0, north: 1, east: 0}, max_bytes: -1, unreadable: perhaps}}
    transform: {records: {batch_records: -1}, summary: {}}
    to: {sink: farm}
`, 1)
	if text == small {
		t.Fatal("the configuration has no routes")
	}
	problems := problemsOf(t, text, smallEnv)
	got := map[string]string{}
	for _, p := range problems.List {
		got[p.Path] = p.String()
	}
	for _, key := range []string{
		"routes[0].filter.farm", "routes[0].filter.farm.ddi", "routes[0].filter.farm.from", "routes[0].filter.farm.box.south", "routes[0].filter.farm.max_bytes",
		"routes[0].filter.farm.unreadable", "routes[0].transform", "routes[0].transform.summary", "routes[0].transform.records.batch_records",
	} {
		if !strings.Contains(got[key], "agrimill.yaml:") {
			t.Errorf("no problem of %s in %v", key, problems)
		}
	}
}

// Mistakes in what becomes of a map have their place.
func TestTaskDataProblems(t *testing.T) {
	text := strings.Replace(small, "routes:\n", `routes:
  - name: broken
    from: {gateway: all}
    transform: {taskdata: {grid: -1, columns: [{column: rate, ddi: "0006", unit: l/ha, product: {name: a, column: b}}]}}
    to: {sink: farm}
`, 1)
	problems := problemsOf(t, text, smallEnv)
	got := map[string]string{}
	for _, p := range problems.List {
		got[p.Path] = p.String()
	}
	for _, key := range []string{"grid", "columns[0].unit", "columns[0].product.column"} {
		if key = "routes[0].transform.taskdata." + key; !strings.Contains(got[key], "agrimill.yaml:") {
			t.Errorf("no problem of %s in %v", key, problems)
		}
	}
}

// Mistakes in expressions have their place, in the file and in the expression.
func TestExpressionProblems(t *testing.T) {
	text := strings.Replace(small, "routes:\n", `routes:
  - name: broken
    from: {gateway: all}
    filter: {expr: 'tenant == "a" && tenand == "b"'}
    set: {team: 'size(tenant)', `+gateway.KeyDedupID+`: '"a"', good: 'tenant'}
    to: {sink: farm}
`, 1)
	problems := problemsOf(t, text, smallEnv)
	got := map[string]string{}
	for _, p := range problems.List {
		got[p.Path] = p.String()
	}
	for key, want := range map[string]string{
		"routes[0].filter.expr":               "is no valid expression: line 1, column 18: undeclared reference to 'tenand'",
		"routes[0].set.team":                  "the result is a int, must be a string",
		"routes[0].set." + gateway.KeyDedupID: "the key is reserved",
		"routes[0].set.good":                  "",
	} {
		if !strings.Contains(got[key], want) || want != "" && !strings.Contains(got[key], "agrimill.yaml:") {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	if len(problems.List) != 3 {
		t.Errorf("got %v", problems)
	}
}

// Places for device descriptions exclude each other, and one that never learns anything is warned about.
func TestDevicesProblems(t *testing.T) {
	text := small + "devices: {nats_kv: {url: \"nats://127.0.0.1:4222\", replicas: 9}, kafka: {brokers: \"b:1\", replicas: -1}}\n"
	got := map[string]string{}
	for _, p := range problemsOf(t, text, smallEnv).List {
		got[p.Path] = p.String()
	}
	for _, key := range []string{"devices.nats_kv.replicas", "devices.kafka", "devices.kafka.replicas"} {
		if !strings.Contains(got[key], "agrimill.yaml:") {
			t.Errorf("no problem of %s in %v", key, got)
		}
	}
	for types, warned := range map[string]bool{
		`"iso:11783:-10:time_log:protobuf"`: true, `"iso:11783:-10:*"`: false, `"img:*"`: false,
	} {
		text := strings.Replace(small, "routes:\n", "routes:\n  - {name: records, from: {gateway: all}, filter: {type: ["+types+"]}, transform: {records: {}}, to: {sink: farm}}\n", 1) + "devices: {}\n"
		c, err := Parse("agrimill.yaml", []byte(text), smallEnv)
		must(t, err)
		found := slices.ContainsFunc(c.Warnings, func(p Problem) bool { return p.Path == "devices" })
		if found != warned {
			t.Errorf("%s: warned is %t, want %t: %v", types, found, warned, c.Warnings)
		}
	}
}
