package pipeline_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The history goes on across reloads of the whole program: a route that stays counts on, one that is gone keeps what it
// did, one that is new begins at nothing, and one that comes again counts on; of a tenant the same.
func TestHistoryAcrossReloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := w.head() + w.natsSink() + "routes:\n"
	stays := route("stays", "all", "", "stays.{type|none}")
	b := w.start(base + stays + route("gone", "all", "", "gone.{type|none}"))
	b.waitReady()
	tenant := w.gate.Tenant()

	// delivered returns what each route has delivered, as the history knows by route and by tenant; the same of both.
	delivered := func(r history.Range) map[string]uint64 {
		counts := map[string]uint64{}
		of := b.History().Record(r, history.Selection{Tenant: tenant})
		for i, route := range b.History().Record(r, history.Selection{}).Routes {
			counts[route.Name] = route.Total.Delivered
			if theirs := of.Routes[i].Total.Delivered; theirs != route.Total.Delivered {
				counts[route.Name+" of the tenant"] = theirs
			}
		}
		return counts
	}
	wait := func(what string, want map[string]uint64) {
		t.Helper()
		testkit.Eventually(w, what+" is in the history", func() bool {
			for _, r := range []history.Range{history.RangeHour, history.RangeDay} {
				got := delivered(r)
				if len(got) != len(want) {
					return false
				}
				for name, n := range want {
					if got[name] != n {
						return false
					}
				}
			}
			f := b.History().Selected(history.Selection{Tenant: tenant}).Figures
			return f.Received == uint64(b.Snapshot().Subscriber.Received) && f.Confirmed == uint64(b.Snapshot().Subscriber.Confirmed)
		})
	}
	w.send(taskData, 7)
	w.waitConfirmed()
	wait("what was before", map[string]uint64{"stays": 7, "gone": 7})

	b.reload(base + stays + route("new", "all", "", "new.{type|none}"))
	w.send(taskData, 5)
	w.waitConfirmed()
	wait("what came after a reload", map[string]uint64{"stays": 12, "gone": 7, "new": 5})

	b.reload(base + route("gone", "all", "", "gone.{type|none}") + stays)
	w.send(taskData, 3)
	w.waitConfirmed()
	wait("what came after another one", map[string]uint64{"stays": 15, "gone": 10, "new": 5})
	b.mustStop()
}

// Each route from the gateway has its own lag: one whose sink is down does not make another one look late.
func TestLagOfRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := w.head() + strings.Replace(w.natsSink(), "sinks:\n", "sinks:\n  seen: {log: {}}\n", 1)
	b := w.start(base + "routes:\n" + route("waits", "all", "", "one") + "  - {name: passes, from: {gateway: all}, to: {sink: seen}}\n")
	b.waitReady()
	w.send(taskData, 1)
	w.waitConfirmed()
	w.proxy.Hang()
	w.send(taskData, 3)
	tenant := w.gate.Tenant()
	testkit.Eventually(w, "one route waits", func() bool {
		routes := b.Snapshot().Routes
		return routes[0].Open == 3 && !routes[0].Oldest.IsZero() && routes[1].Open == 0 && routes[1].Oldest.IsZero() && routes[1].Delivered == 4
	})
	testkit.Eventually(w, "the history knows", func() bool {
		lag := map[string]float64{}
		for _, selection := range []history.Selection{{}, {Tenant: tenant}} {
			for _, route := range b.History().Record(history.RangeHour, selection).Routes {
				if route.Total.AgeSeconds != nil {
					lag[selection.Tenant+route.Name] = *route.Total.AgeSeconds
				}
			}
		}
		return lag["waits"] > 0.5 && lag[tenant+"waits"] > 0.5 && lag["passes"] < lag["waits"] && lag[tenant+"passes"] < lag["waits"]
	})
	w.proxy.Resume()
	w.waitConfirmed()
	testkit.Eventually(w, "nothing waits", func() bool {
		routes := b.Snapshot().Routes
		return routes[0].Open == 0 && routes[0].Oldest.IsZero() && len(b.Open()) == 0
	})
	b.mustStop()
}
