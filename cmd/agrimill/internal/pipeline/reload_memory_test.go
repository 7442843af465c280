package pipeline_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
)

// A reload leaves nothing of what it replaces: whatever the configuration has, the routers of earlier ones are collected.
func TestReloadsLeaveNothing(t *testing.T) {
	t.Parallel()
	const reloads, most = 4, 2 // the current one, and its predecessor while something still ends
	for name, text := range map[string]func(w *world, i int) string{
		"routes, filters and transforms": func(w *world, i int) string {
			return w.head() + w.natsSink() + fmt.Sprintf("tracing: {otlp_endpoint: \"http://127.0.0.1:1\"}\njournal: {max_age: %dh}\nroutes:\n", 1+i) + w.outRoute() +
				fmt.Sprintf("  - {name: farm-data, from: {gateway: all}, filter: {expr: \"true\", farm: {machine: [\"M%d*\"]}}, transform: {records: {}}, to: {sink: farm, topic: t%d}}\n", i, i) +
				route(fmt.Sprint("r", i), "all", "", "t")
		},
		"sink": func(w *world, i int) string {
			return w.head() + strings.Replace(w.natsSink(), "publish_timeout: 2s", fmt.Sprintf("publish_timeout: %dms", 2000+i), 1) + allRoute
		},
		"sink and source in Kafka": func(w *world, i int) string {
			return w.head() + fmt.Sprintf("sinks: {farm: {kafka: {brokers: %q, publish_timeout: %dms}}}\npoison: {sink: farm}\n", w.env["KAFKA"], 2000+i) + allRoute +
				fmt.Sprintf("  - {name: back, from: {kafka: {brokers: %q, topics: [out], group: g%d}}, to: {gateway: {tenant: %s, type: %q, endpoint: %s}}}\n",
					w.env["KAFKA"], i, w.gate.Tenant(), taskData, w.sender.ID)
		},
		"lease": func(w *world, i int) string {
			return w.head() + w.natsSink() + w.ha(w.server.URL(), "ttl: 5s") + "routes:\n" + route("farm-data", "all", "", fmt.Sprint("t", i))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t)
			if strings.Contains(name, "Kafka") {
				w.env["KAFKA"] = kafkatest.Start(t, kfake.SeedTopics(1, "out")).Addr()
			}
			b := w.start(text(w, 0))
			b.waitReady()
			var routers []weak.Pointer[router.Router]
			for i := range reloads {
				routers = append(routers, b.Router())
				w.send(taskData, 5)
				if !strings.Contains(name, "Kafka") {
					w.waitConfirmed()
				}
				b.reload(text(w, i+1))
			}
			w.waitConfirmed()
			b.waitReady()
			testkit.Eventually(t, fmt.Sprintf("fewer than %d of %d earlier routers are held", most, reloads), func() bool {
				runtime.GC()
				held := 0
				for _, r := range routers {
					if r.Value() != nil {
						held++
					}
				}
				return held < most
			})
			b.mustStop()
		})
	}
}

// A route and a sink that are gone leave no series of metrics and no counts: names that change with each reload do not add up.
func TestReloadsLeaveNoNames(t *testing.T) {
	const reloads = 3
	t.Parallel() // it waits
	w := newWorld(t)
	text := func(i int) string {
		name := func(text, kind string) string { return strings.ReplaceAll(text, kind, fmt.Sprint(kind, i)) }
		sinks := name(strings.Replace(w.natsSink(), "poison: {sink: farm}", "poison: {sink: farm, topic: dead}", 1), "farm")
		// Its topic has nothing to be made of, so it poisons everything.
		return w.head() + sinks + name("routes:\n  - {name: bad, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n", "farm") +
			strings.ReplaceAll(name(route("good", "all", "", "t"), "farm"), "good", fmt.Sprint("good", i))
	}
	series := func(b *agrimill) (names map[string]int) {
		families := testkit.Must(b.registry.Gather())(t)
		names = map[string]int{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					if label.GetName() == "route" || label.GetName() == "sink" {
						names[label.GetName()+" "+label.GetValue()]++
					}
				}
			}
		}
		return names
	}
	rename := func(i int) string { return strings.ReplaceAll(text(i), "name: bad", fmt.Sprint("name: bad", i)) }
	b := w.start(rename(0))
	b.waitReady()
	for i := range reloads {
		w.send(taskData, 1)
		w.waitConfirmed()
		b.reload(rename(i + 1))
	}
	w.send(taskData, 1)
	w.waitConfirmed()
	names := series(b)
	for _, want := range []string{"route bad3", "route good3", "sink farm3"} {
		if names[want] == 0 {
			t.Errorf("there is no series of %s: %v", want, names)
		}
	}
	if len(names) != 3 {
		t.Errorf("there are series of %v", names)
	}
	if n := b.Totals(); n != 0 {
		t.Errorf("there are counts of %d routes that are gone", n)
	}
}
