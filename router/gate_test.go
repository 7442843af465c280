package router

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

func newGates(stop <-chan struct{}) *gates {
	policy := backoff.Policy{Initial: 200 * time.Millisecond, Max: 30 * time.Second}
	return &gates{delay: policy.Delay, stop: stop, company: &company{members: 1}}
}

// refuse lets an attempt at the topic fail.
func (g *gates) refuse(t *turn, topic string) verdict {
	return g.failed(t, outageFailure{topic: topic, seen: g.successes.Load(), seenTopic: g.counter(topic).Load()})
}

// Senders may choose topics. What waits costs no goroutine here, and gates end.
func TestGatesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(nil)
		g.reached([]string{"well"})
		before := runtime.NumGoroutine()
		for i := range 100_000 {
			seen := g.successes.Load()
			topic := fmt.Sprint("sick", i)
			f := outageFailure{topic: topic, seen: seen, seenTopic: g.counter(topic).Load()}
			g.successes.Add(1) // something else passes
			g.failed(nil, f)
		}
		if n := len(g.topics); n != maxTopicGates {
			t.Errorf("%d gates, want %d", n, maxTopicGates)
		}
		if n := runtime.NumGoroutine(); n > before { // one of another test may have ended
			t.Errorf("%d goroutines, want %d", n, before)
		}
		if g.all != nil {
			t.Error("everything is closed")
		}
		time.Sleep(topicGateForgotten)
		g.at([]string{"well"}, true, false)
		if n := len(g.topics); n != 0 || g.closed.Load() {
			t.Errorf("%d gates, want none after a minute without anybody", n)
		}
	})
}

// Pauses are long while everything at the source is down, and short once something passes.
// A sink that tells its return is probed at once.
func TestGateIsProbedSoonerWhenOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(nil)
		g.delay = func(int) time.Duration { return time.Hour }
		wake := make(chan struct{})
		g.failed(nil, outageFailure{topic: "t", wake: wake})
		if !g.company.stuck() {
			t.Fatal("not stuck, want the only one to be down")
		}
		time.Sleep(refusedMaxDelay)
		if g.try(g.all, true) != nil {
			t.Error("probed early, although nothing passes")
		}
		g.company.join() // another one, which is not down
		g.company.set(true)
		g.company.set(false)
		if d := g.comeBack(g.all, true); d > time.Second {
			t.Errorf("a message stays away for %v although the probe is due", d)
		}
		probe := g.try(g.all, true)
		if probe == nil {
			t.Fatal("not probed, although something passes")
		}
		g.failed(probe, outageFailure{topic: "t", wake: wake})
		if d := g.comeBack(g.all, true); d > 2*refusedMaxDelay {
			t.Errorf("a message stays away for %v, want at most about %v", d, refusedMaxDelay)
		}
		if g.try(g.all, true) != nil {
			t.Error("probed at once")
		}
		close(wake)
		if g.try(g.all, true) == nil {
			t.Error("not probed, although the sink is back")
		}
	})
}

// A failure that came before the topic was known may be the message's own: others go on.
func TestEarlyFailureHoldsUpItselfAlone(t *testing.T) {
	g := newGates(nil)
	if v := g.failed(nil, outageFailure{alone: true}); v.began != nil || v.closed {
		t.Errorf("got %+v, want nothing closed while messages are delivered", v)
	}
	if v := g.failed(nil, outageFailure{}); v.began == nil {
		t.Errorf("got %+v, want an outage", v)
	}
	if g.at([]string{"t"}, true, false) != nil || g.at(nil, false, false) != nil {
		t.Error("what has not failed is held up")
	}
	if g.at(nil, false, true) != g.all {
		t.Error("what has failed is not held up")
	}
	if !g.company.stuck() {
		t.Error("not stuck: the source is not held back")
	}
	g.reached([]string{"t"})
	if g.at(nil, false, true) != nil {
		t.Error("it is not over")
	}
}
