package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Mistakes in what a route does with farm data, in what becomes of a map, and in expressions have their place, those in
// expressions also in the expression.
func TestFarmProblems(t *testing.T) {
	for route, want := range map[string]map[string]string{
		`{gateway: ENDPOINT_DELETED}
    filter: {farm: {ddi: 43h, from: yesterday, box: {south: 2, west: 0, north: 1, east: 0}, max_bytes: -1, unreadable: perhaps}}
    transform: {records: {batch_records: -1}, summary: {}}`: {
			"filter.farm": "", "filter.farm.ddi": "", "filter.farm.from": "", "filter.farm.box.south": "", "filter.farm.max_bytes": "",
			"filter.farm.unreadable": "", "transform": "", "transform.summary": "", "transform.records.batch_records": "",
		},
		`{gateway: all}
    transform: {taskdata: {grid: -1, columns: [{column: rate, ddi: "0006", unit: l/ha, product: {name: a, column: b}}]}}`: {
			"transform.taskdata.grid": "", "transform.taskdata.columns[0].unit": "", "transform.taskdata.columns[0].product.column": "",
		},
		`{gateway: all}
    filter: {expr: 'tenant == "a" && tenand == "b"'}
    set: {team: 'size(tenant)', ` + gateway.KeyDedupID + `: '"a"', good: 'tenant'}`: {
			"filter.expr":               "is no valid expression: line 1, column 18: undeclared reference to 'tenand'",
			"set.team":                  "the result is a int, must be a string",
			"set." + gateway.KeyDedupID: "the key is reserved",
		},
	} {
		problems := problemsOf(t, strings.Replace(small, "routes:\n", "routes:\n  - name: broken\n    from: "+route+"\n    to: {sink: farm}\n", 1), smallEnv)
		got := map[string]string{}
		for _, p := range problems.List {
			got[strings.TrimPrefix(p.Path, "routes[0].")] = p.String()
		}
		for key, text := range want {
			if !strings.Contains(got[key], "agrimill.yaml:") || !strings.Contains(got[key], text) {
				t.Errorf("%s: %q, want %q", key, got[key], text)
			}
		}
		if len(problems.List) != len(want) {
			t.Errorf("got %v", problems)
		}
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
		c := testkit.Must(Parse("agrimill.yaml", []byte(text), smallEnv))(t)
		found := slices.ContainsFunc(c.Warnings, func(p Problem) bool { return p.Path == "devices" })
		if found != warned {
			t.Errorf("%s: warned is %t, want %t: %v", types, found, warned, c.Warnings)
		}
	}
}
