package core

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A lane of a route that pipelines hands out the next message when the one before it has its place, nothing once one
// has failed, and then what failed in its order, the first one alone.
func TestPipelinedLane(t *testing.T) {
	type step struct {
		do   func(l *laneByHand)
		want string // what handlers have then
	}
	placed := func(n int) func(*laneByHand) { return func(l *laneByHand) { l.placed(n) } }
	settle := func(n int, outcome Outcome) func(*laneByHand) { return func(l *laneByHand) { l.settle(n, outcome) } }
	begun := func(n int) func(*laneByHand) { return func(l *laneByHand) { l.items[n].Begun = true } }
	due := func(l *laneByHand) { l.pass(time.Hour) }
	for name, c := range map[string]struct {
		steps     []step
		overtaken string
	}{
		"one by one": {[]step{{settle(0, Acked), "[1]"}, {settle(1, Acked), "[2]"}}, "[0 0 0 0]"},
		"placed":     {[]step{{placed(0), "[0 1]"}, {placed(1), "[0 1 2]"}, {settle(0, Acked), "[1 2]"}}, "[0 0 0 0]"},
		"acked out of order": {[]step{
			{placed(0), "[0 1]"}, {begun(1), "[0 1]"}, {placed(1), "[0 1 2]"}, {settle(1, Acked), "[0 2]"}, {settle(0, Acked), "[2]"},
		}, "[1 0 0 0]"},
		"the first fails": {[]step{
			{placed(0), "[0 1]"}, {begun(1), "[0 1]"}, {placed(1), "[0 1 2]"},
			{settle(0, Nacked), "[1 2]"}, {settle(1, Acked), "[2]"}, {settle(2, Nacked), "[]"}, {due, "[0]"},
			{placed(0), "[0]"}, {settle(0, Acked), "[2]"}, {placed(2), "[2 3]"},
		}, "[1 0 0 0]"},
		"fails twice": {[]step{
			{placed(0), "[0 1]"}, {settle(1, Nacked), "[0]"}, {settle(0, Nacked), "[]"}, {due, "[0]"},
			{placed(0), "[0]"}, {settle(0, Nacked), "[]"}, {due, "[0]"}, {settle(0, Acked), "[1]"},
		}, "[0 0 0 0]"},
		"left": {[]step{
			{placed(0), "[0 1]"}, {settle(0, Left), "[1]"}, {settle(1, Nacked), "[]"}, {due, "[1]"},
			{settle(1, Left), "[2]"}, {placed(2), "[2]"},
		}, "[0 0 0 0]"},
		"not placed": {[]step{
			{placed(0), "[0 1]"}, {settle(1, Nacked), "[0]"}, {settle(0, Acked), "[]"}, {due, "[1]"},
		}, "[0 0 0 0]"},
		"a part is placed": {[]step{
			{placed(0), "[0 1]"}, {begun(1), "[0 1]"}, {settle(1, Nacked), "[0]"}, {settle(0, Nacked), "[]"}, {due, "[0]"},
		}, "[1 0 0 0]"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLaneByHand(t)
			for i, s := range c.steps {
				s.do(l)
				if got := l.handedOut(); got != s.want {
					t.Errorf("step %d: handlers have %s, want %s", i, got, s.want)
				}
			}
			var overtaken []int
			for _, it := range l.items {
				overtaken = append(overtaken, int(it.Overtaken))
			}
			if got := fmt.Sprint(overtaken); got != c.overtaken {
				t.Errorf("overtaken: %s, want %s", got, c.overtaken)
			}
		})
	}
}

// laneByHand is a lane with four messages of a route that pipelines.
type laneByHand struct {
	*byHand
	route *Route
	items []*Item
}

func newLaneByHand(t *testing.T) *laneByHand {
	l := &laneByHand{byHand: newByHand(t, Config{})}
	l.route, _ = l.Add(l.now, "route", everything, true)
	l.connects()
	for n := range 4 {
		m := numbered(n, "t")
		m.Key = "key"
		l.takes(Opened, m)
		l.items = append(l.items, &m.item)
	}
	return l
}

func (l *laneByHand) placed(n int) {
	l.Placed(l.now, l.items[n])
	l.do()
}

func (l *laneByHand) settle(n int, outcome Outcome) {
	l.settles(l.route, l.items[n].Message, outcome)
}

// handedOut returns the numbers of what handlers have, in order.
func (l *laneByHand) handedOut() string {
	numbers := []int{}
	for i, it := range l.items {
		if slices.Contains(l.handed, it) {
			numbers = append(numbers, i)
		}
	}
	return fmt.Sprint(numbers)
}

// Nothing is placed behind what failed, until it comes again.
func TestLaneIsHaltedUntilItsRetry(t *testing.T) {
	l := newLaneByHand(t)
	lane := l.items[0].Lane
	l.placed(0)
	lane.Halted = true
	if l.settle(0, Nacked); !lane.Halted {
		t.Error("not halted, although it is not known what became of the second")
	}
	if l.settle(1, Nacked); lane.Halted {
		t.Error("still halted when they come again")
	}
}
