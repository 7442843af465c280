package router

import (
	"context"
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

// A topic that is refused right after a success may be the only one there is.
func TestRefusedTopicBecomesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, other := range []bool{false, true} {
			g := newGates(nil)
			seen := g.successes.Load()
			g.reached([]string{"only"}) // while the next one is tried
			since := time.Now()
			g.failed(nil, outageFailure{topic: "only", seen: seen, seenTopic: g.counter("only").Load()})
			if v := g.refuse(nil, "only"); v.began != nil {
				t.Error("everything is closed at once: others had no time to pass")
			}
			if other {
				g.reached([]string{"other"})
			}
			time.Sleep(refusedMaxDelay)
			v := g.refuse(g.try(g.topics["only"], true), "only")
			if outage := v.began != nil && v.first; outage == other {
				t.Errorf("outage %t while something else passes: %t", outage, other)
			}
			if began, _ := g.outage(); !other && !began.Equal(since) {
				t.Errorf("the outage began at %s, want %s: nothing has passed since", began, since)
			}
			g.reached([]string{"only"})
			if g.closed.Load() {
				t.Error("not all is open")
			}
		}
	})
}

// While nothing succeeds there is one gate for everything. What failed with everything gets
// one probe of its own as soon as anything succeeds.
func TestGateOfEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(nil)
		if v := g.refuse(nil, "a"); v.began == nil || !v.first {
			t.Fatalf("got %+v, want an outage", v)
		}
		for i := range 20 {
			g.refuse(nil, fmt.Sprint("b", i))
			time.Sleep(time.Second)
		}
		if got := g.refused(nil); len(got) != 0 {
			t.Errorf("refused alone: %v, want none in an outage", got)
		}
		for _, topic := range []string{"a", "new"} {
			if o := g.at([]string{topic}, true, false); o == nil || o != g.all {
				t.Errorf("%s waits at %+v, want the gate for everything", topic, o)
			}
		}
		all := g.all
		g.reached([]string{"new"})
		select {
		case <-all.over:
		default:
			t.Error("the gate for everything is closed")
		}
		o := g.at([]string{"b19"}, true, false)
		if o == nil {
			t.Fatal("the topic is open: all that waits would rush to it")
		}
		probe := g.try(o, true)
		if probe == nil {
			t.Fatal("the topic is not probed at once")
		}
		if got := g.refused(nil); len(got) != 0 {
			t.Errorf("refused alone: %v, want none yet", got)
		}
		if v := g.refuse(probe, "b19"); v.began != nil {
			t.Error("what is refused as before begins another outage")
		}
		if got := g.refused(nil); len(got) != 1 || got[0].Topic != "b19" {
			t.Errorf("refused alone: %v, want one", got)
		}
	})
}

// A probe that hangs loses the turn, and what comes of it later is not counted twice.
func TestHangingProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(nil)
		g.reached([]string{"well"})
		g.refuse(nil, "sick")
		o := g.at([]string{"sick"}, true, false)
		hanging := g.try(o, false)
		time.Sleep(probePatience + refusedMaxDelay)
		next := g.try(o, false)
		if hanging == nil || next == nil {
			t.Fatal("the turn does not go on")
		}
		g.refuse(hanging, "sick")
		if g.try(o, false) != nil {
			t.Error("the turn is there twice")
		}
		g.passed(next)
		time.Sleep(refusedMaxDelay)
		if g.try(o, false) == nil {
			t.Error("the turn is lost")
		}
	})
}

// A message that fails at a topic where others pass closes nothing.
func TestOddMessageClosesNothing(t *testing.T) {
	g := newGates(nil)
	seen, seenTopic := g.successes.Load(), g.counter("t").Load()
	g.reached([]string{"t"})
	if v := g.failed(nil, outageFailure{topic: "t", seen: seen, seenTopic: seenTopic}); v.closed || g.closed.Load() {
		t.Errorf("got %+v, want nothing closed", v)
	}
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
		time.Sleep(gateForgotten)
		g.at([]string{"well"}, true, false)
		if n := len(g.topics); n != 0 || g.closed.Load() {
			t.Errorf("%d gates, want none after a minute without anybody", n)
		}
	})
}

// Waits end with the context, with the gates, and when the caller is to yield.
func TestGateWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		g := newGates(stop)
		g.refuse(nil, "t")
		ctx, cancel := context.WithCancel(t.Context())
		yield := make(chan struct{})
		results := make(chan waited, 6)
		for range 2 { // one of them has the turn
			for _, a := range []struct {
				ctx   context.Context
				yield <-chan struct{}
			}{{ctx, nil}, {t.Context(), yield}, {t.Context(), nil}} {
				go func() {
					_, result := g.wait(a.ctx, g.all, true, a.yield)
					results <- result
				}()
			}
		}
		synctest.Wait()
		for _, step := range []struct {
			end  func()
			want waited
		}{{cancel, waitEnded}, {func() { close(yield) }, waitYielded}, {func() { close(stop) }, waitEnded}} {
			step.end()
			for range 2 {
				if got := <-results; got != step.want {
					t.Errorf("a wait ended with %d, want %d", got, step.want)
				}
			}
		}
		if here := g.all.fresh.here + g.all.again.here; here != 0 {
			t.Errorf("%d wait, want none", here)
		}
		if g.waiting.Load() != 0 {
			t.Errorf("%d wait, want none", g.waiting.Load())
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
