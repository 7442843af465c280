package pipeline

import (
	"errors"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
)

// What fails has failed since the first look that found it, or since when it says itself.
func TestFailsSince(t *testing.T) {
	start := time.Now()
	var r readiness
	down, well := found("sink farm", errors.New("no route to host")), found("sink farm", nil)
	outage := checkRoute(admin.FromGateway, router.RouteHealth{Name: "orders", State: router.StateOutage, Since: start.Add(time.Minute), LastError: "down"})
	for at, look := range []struct { // in seconds
		found admin.Check
		since int // -1: it does not fail
	}{{well, -1}, {down, 1}, {down, 1}, {well, -1}, {down, 4}, {outage, 60}} {
		now := start.Add(time.Duration(at) * time.Second)
		r.record([]admin.Check{look.found}, now)
		checks, _ := r.latest(now)
		if since := checks[0].Since; since.IsZero() != (look.since < 0) || look.since >= 0 && !since.Equal(start.Add(time.Duration(look.since)*time.Second)) {
			t.Errorf("after %d s: fails since %v, want %d s", at, since.Sub(start), look.since)
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
		if v := new(admin.Steady).Judge(admin.Snapshot{Time: now, Checks: checks}); v.Ready != ready || !at.Equal(start) {
			t.Errorf("after %v: ready is %v: %s", age, v.Ready, v.Sentence)
		}
	}
}

func TestCheckRoute(t *testing.T) {
	for state, want := range map[router.RouteState]struct{ from, to, final bool }{
		router.StateStarting: {from: true}, router.StateRunning: {from: true, to: true}, router.StateOutage: {},
		router.StateEnded: {final: true}, router.StateFailed: {final: true}, router.StateStopped: {from: true, to: true},
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
