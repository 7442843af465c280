package subscriber

import (
	"cmp"
	"slices"
	"time"
)

// timeline is virtual time for a state machine: events happen in order, and nothing waits.
type timeline struct {
	began, now time.Time
	events     []timelineEvent
}

type timelineEvent struct {
	at time.Time
	do func()
}

func newTimeline() timeline {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return timeline{began: began, now: began}
}

// at calls do at the given time, after what was planned for the same time.
func (l *timeline) at(t time.Time, do func()) {
	i, _ := slices.BinarySearchFunc(l.events, t, func(e timelineEvent, t time.Time) int { return cmp.Or(e.at.Compare(t), -1) })
	l.events = slices.Insert(l.events, i, timelineEvent{t, do})
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
			do := l.events[0].do
			l.events = l.events[1:]
			do()
		}
	}
}
