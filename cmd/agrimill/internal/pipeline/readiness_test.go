package pipeline

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
)

// What fails is reported at once, with the time since when, counts when it has lasted, and is over when it has been well for
// as long.
func TestReadinessDoesNotFlap(t *testing.T) {
	start := time.Now()
	var r readiness
	steady := admin.Steady{Grace: 15 * time.Second}
	down, final := found("sink farm", errors.New("no route to host")), found("dedup", errors.New("damaged"))
	final.Final = true
	outage := checkRoute(admin.FromGateway, router.RouteHealth{Name: "orders", State: router.StateOutage, Since: start.Add(time.Minute), LastError: "down"})
	well := []admin.Check{found("sink farm", nil), found("dedup", nil)}
	for _, step := range []struct {
		at       time.Duration
		what     string
		findings []admin.Check
		ready    bool
		since    time.Duration // of the first finding
	}{
		{0, "at the start everything counts", []admin.Check{down}, false, 0},
		{5 * time.Second, "all is well for the first time", well, true, -1},
		{20 * time.Second, "it fails", []admin.Check{down, well[1]}, true, 20 * time.Second},
		{34 * time.Second, "for almost too long", []admin.Check{down, well[1]}, true, 20 * time.Second},
		{35 * time.Second, "for too long", []admin.Check{down, well[1]}, false, 20 * time.Second},
		{36 * time.Second, "it is back, for now", well, false, 20 * time.Second},
		{37 * time.Second, "it fails again", []admin.Check{down, well[1]}, false, 37 * time.Second},
		{52 * time.Second, "it has been back for long", well, true, -1},
		{53 * time.Second, "what does not come back counts at once", []admin.Check{final, well[0]}, false, 53 * time.Second},
		{74 * time.Second, "a route waits, and has said since when", []admin.Check{outage}, true, time.Minute},
		{75 * time.Second, "for too long", []admin.Check{outage}, false, time.Minute},
		{90 * time.Second, "it goes on", well, true, -1},
	} {
		at := start.Add(step.at)
		r.record(step.findings, at)
		raw, _ := r.latest(at)
		v := steady.Judge(admin.Snapshot{Time: at, Checks: raw})
		checks, ready := v.Apply(raw), true
		for _, c := range checks {
			ready = ready && c.OK
			if !c.Since.IsZero() && c.Message == "" {
				t.Errorf("%s: %s does not say what fails", step.what, c.Name)
			}
		}
		if ready != step.ready || v.Ready != ready {
			t.Errorf("%s: ready is %v, and the verdict %v: %+v", step.what, ready, v.Ready, checks)
		}
		if since := checks[0].Since; step.since < 0 && !since.IsZero() || step.since >= 0 && !since.Equal(start.Add(step.since)) {
			t.Errorf("%s: since %v", step.what, since.Sub(start))
		}
	}
}

// A look that does not end leaves nothing that looks well.
func TestLookThatDoesNotEnd(t *testing.T) {
	start := time.Now()
	var r readiness
	if checks, _ := r.latest(start.Add(time.Hour)); len(checks) > 0 {
		t.Errorf("before the first look: %+v", checks)
	}
	r.record([]admin.Check{found("gateway", nil)}, start)
	for age, ready := range map[time.Duration]bool{lookOverdue: true, lookOverdue + 1: false} {
		now := start.Add(age)
		checks, at := r.latest(now)
		if v := admin.Judge(admin.Snapshot{Time: now, Checks: checks}); v.Ready != ready || !at.Equal(start) {
			t.Errorf("after %v: ready is %v: %s", age, v.Ready, v.Sentence)
		}
	}
}

func TestCheckRoute(t *testing.T) {
	for state, want := range map[router.RouteState]struct{ from, to, final bool }{
		router.StateStarting: {from: true}, router.StateRunning: {from: true, to: true}, router.StateOutage: {},
		router.StateEnded: {final: true}, router.StateFailed: {final: true}, router.StateStopped: {},
	} {
		h := router.RouteHealth{Name: "r", State: state, LastError: "why"}
		from, to := checkRoute(admin.FromGateway, h), checkRoute(admin.ToGateway, h)
		if from.OK != want.from || to.OK != want.to || from.Final != want.final || to.Final != want.final {
			t.Errorf("%s: %+v, %+v", state, from, to)
		}
		if past := checkRoute(admin.BrokerToSink, h); past != to {
			t.Errorf("%s: a route past the gateway: %+v, one to it: %+v", state, past, to)
		}
		if !to.OK && to.Message != string(state)+": why" {
			t.Errorf("%s: %q", state, to.Message)
		}
	}
}
