package subscriber

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// A lane takes the next message when the last one has its place, nothing once one has failed, and
// then what failed in its order, the first one alone.
func TestLane(t *testing.T) {
	const (
		acked  = msgctx.Acked
		nacked = msgctx.Nacked
		left   = msgctx.Left
	)
	type step struct {
		do   func(*lane, []*flight)
		want string // whether it takes more, and what it returns to be retried; empty: not looked at
	}
	deliver := func(n int) step {
		return step{do: func(l *lane, f []*flight) { f[n].lane = l; l.deliver(f[n]) }}
	}
	placed := func(n int) step { return step{do: func(_ *lane, f []*flight) { f[n].Placed() }} }
	begun := func(n int) step { return step{do: func(_ *lane, f []*flight) { f[n].Begun() }} }
	settle := func(n int, outcome msgctx.Outcome) step {
		return step{do: func(l *lane, f []*flight) { l.settle(f[n], outcome) }}
	}
	then := func(s step, want string) step { s.want = want; return s }
	for name, c := range map[string]struct {
		steps     []step
		overtaken string
	}{
		"one by one": {steps: []step{
			then(deliver(0), "waits"), then(settle(0, acked), "takes"), then(deliver(1), "waits"), then(settle(1, acked), "takes"),
		}, overtaken: "0 0 0 0"},
		"placed": {steps: []step{
			deliver(0), then(placed(0), "takes"), then(deliver(1), "waits"), then(placed(1), "takes"), then(settle(0, acked), "takes"),
		}, overtaken: "0 0 0 0"},
		"acked out of order": {steps: []step{
			deliver(0), placed(0), deliver(1), placed(1), then(settle(1, acked), "takes"), then(settle(0, acked), "takes"),
		}, overtaken: "1 0 0 0"},
		"the first fails": {steps: []step{
			deliver(0), placed(0), deliver(1), placed(1), deliver(2),
			then(settle(0, nacked), "waits"), then(settle(1, acked), "waits"), then(settle(2, nacked), "retry 0 2"),
			then(deliver(0), "waits"), then(placed(0), "waits"), then(settle(0, acked), "takes"), then(deliver(2), "waits"), then(placed(2), "takes"),
		}, overtaken: "1 0 0 0"},
		"fails twice": {steps: []step{
			deliver(0), placed(0), deliver(1), placed(1), settle(1, nacked), then(settle(0, nacked), "retry 0 1"),
			deliver(0), then(placed(0), "waits"), then(settle(0, nacked), "retry 0"),
			deliver(0), then(settle(0, acked), "takes"),
		}, overtaken: "1 0 0 0"},
		"left": {steps: []step{
			deliver(0), placed(0), deliver(1), placed(1), then(settle(0, left), "takes"), then(settle(1, nacked), "retry 1"),
			deliver(1), then(settle(1, left), "takes"), then(deliver(2), "waits"), then(placed(2), "waits"),
		}, overtaken: "0 0 0 0"},
		"not placed": {steps: []step{
			deliver(0), placed(0), deliver(1), then(settle(1, nacked), "waits"), then(settle(0, acked), "retry 1"),
		}, overtaken: "0 0 0 0"},
		"a part is placed": {steps: []step{
			deliver(0), placed(0), deliver(1), then(begun(1), "waits"), then(settle(1, nacked), "waits"), then(settle(0, nacked), "retry 0 1"),
		}, overtaken: "1 0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLane()
			flights := []*flight{{}, {}, {}, {}}
			index := map[*flight]int{flights[0]: 0, flights[1]: 1, flights[2]: 2, flights[3]: 3}
			for i, s := range c.steps {
				s.do(l, flights)
				got := "waits"
				if l.takes() {
					got = "takes"
				}
				if failed := l.retry(); failed != nil {
					got = "retry"
					for _, f := range failed {
						got += fmt.Sprint(" ", index[f])
						f.begun, f.placed, f.settled = false, false, false // they come as new ones
					}
				}
				if s.want != "" && got != s.want {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
			}
			var overtaken []string
			for _, f := range flights {
				overtaken = append(overtaken, fmt.Sprint(f.overtaken))
			}
			if got := strings.Join(overtaken, " "); got != c.overtaken {
				t.Errorf("overtaken: %s, want %s", got, c.overtaken)
			}
		})
	}
}

// Nothing is placed behind what failed, until it comes again.
func TestLaneHalts(t *testing.T) {
	l := newLane()
	first, second := &flight{lane: l}, &flight{lane: l}
	l.deliver(first)
	first.Placed()
	l.deliver(second)
	if second.Halted() {
		t.Fatal("halted before anything has failed")
	}
	first.Halt()
	if !second.Halted() {
		t.Fatal("not halted although the first has failed")
	}
	l.settle(second, msgctx.Nacked)
	l.settle(first, msgctx.Nacked)
	if got := l.retry(); len(got) != 2 || got[0] != first {
		t.Fatalf("retry() = %v", got)
	}
	if second.Halted() {
		t.Error("still halted when they come again")
	}
}
