package pipeline

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/admin"
	"github.com/agrimill/agrimill/router"
)

// What fails is reported at once, with the time since when, and counts when it has lasted.
func TestReadinessDoesNotFlap(t *testing.T) {
	start := time.Now()
	r := readiness{grace: 15 * time.Second}
	down, final := found("sink farm", errors.New("no route to host")), found("dedup", errors.New("damaged"))
	final.final = true
	outage := checkRoute(admin.FromGateway, router.RouteHealth{Name: "orders", State: router.StateOutage, Since: start.Add(time.Minute), LastError: "down"})
	well := []finding{found("sink farm", nil), found("dedup", nil)}
	for _, step := range []struct {
		at       time.Duration
		what     string
		findings []finding
		ready    bool
		since    time.Duration // of the first finding
	}{
		{0, "at the start everything counts", []finding{down}, false, 0},
		{5 * time.Second, "all is well for the first time", well, true, -1},
		{10 * time.Second, "it fails", []finding{down, well[1]}, true, 10 * time.Second},
		{24 * time.Second, "for almost too long", []finding{down, well[1]}, true, 10 * time.Second},
		{25 * time.Second, "for too long", []finding{down, well[1]}, false, 10 * time.Second},
		{26 * time.Second, "it is back", well, true, -1},
		{27 * time.Second, "it fails again", []finding{down, well[1]}, true, 27 * time.Second},
		{30 * time.Second, "what does not come back counts at once", []finding{final, well[0]}, false, 30 * time.Second},
		{74 * time.Second, "a route waits, and has said since when", []finding{outage}, true, time.Minute},
		{75 * time.Second, "for too long", []finding{outage}, false, time.Minute},
		{80 * time.Second, "it goes on", well, true, -1},
	} {
		ready := true
		checks := r.checks(step.findings, start.Add(step.at))
		for _, c := range checks {
			ready = ready && c.OK
			if !c.Since.IsZero() && c.Message == "" {
				t.Errorf("%s: %s does not say what fails", step.what, c.Name)
			}
		}
		if ready != step.ready {
			t.Errorf("%s: ready is %v: %+v", step.what, ready, checks)
		}
		if since := checks[0].Since; step.since < 0 && !since.IsZero() || step.since >= 0 && !since.Equal(start.Add(step.since)) {
			t.Errorf("%s: since %v", step.what, since)
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
		if from.OK != want.from || to.OK != want.to || from.final != want.final || to.final != want.final {
			t.Errorf("%s: %+v, %+v", state, from, to)
		}
		if past := checkRoute(admin.BrokerToSink, h); past.Check != to.Check || past.final != to.final {
			t.Errorf("%s: a route past the gateway: %+v, one to it: %+v", state, past, to)
		}
		if !to.OK && to.Message != string(state)+": why" {
			t.Errorf("%s: %q", state, to.Message)
		}
	}
}
