package subscriber

import (
	"cmp"
	"container/heap"
	"time"
)

// timeline is virtual time for a state machine: events happen in order, and nothing waits.
type timeline struct {
	began, now time.Time
	events     timelineEvents
	planned    int
}

type timelineEvent struct {
	at    time.Time
	place int // among those that are planned for the same time
	do    func()
}

// timelineEvents is a heap, the next event first.
type timelineEvents []timelineEvent

func (e timelineEvents) Len() int      { return len(e) }
func (e timelineEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e timelineEvents) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].place, e[j].place)) < 0
}
func (e *timelineEvents) Push(x any) { *e = append(*e, x.(timelineEvent)) }
func (e *timelineEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newTimeline() timeline {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return timeline{began: began, now: began}
}

// at calls do at the given time, after what was planned for the same time.
func (l *timeline) at(t time.Time, do func()) {
	l.planned++
	heap.Push(&l.events, timelineEvent{t, l.planned, do})
}

// run lets time pass until end: pump does what is due and returns when it is to be called
// again although nothing has happened, zero for never; passed is called after each step.
func (l *timeline) run(end time.Duration, pump func() time.Time, passed func()) {
	until := l.began.Add(end)
	for {
		next := pump()
		if len(l.events) > 0 && (next.IsZero() || l.events[0].at.Before(next)) {
			next = l.events[0].at
		}
		if next.IsZero() || next.After(until) {
			l.now = until
			return
		}
		l.now = next
		passed()
		for len(l.events) > 0 && !l.events[0].at.After(l.now) {
			heap.Pop(&l.events).(timelineEvent).do()
		}
	}
}
