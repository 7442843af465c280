package config

import (
	"strings"
	"testing"
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
