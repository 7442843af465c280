package kafka

import (
	"sync"
	"time"
)

// deadlines ends the wait for results that do not come in time, with one timer for all: a timer for
// each message would be as many allocations, and stopped nearly always. The zero value has none.
type deadlines struct {
	mu          sync.Mutex
	first, last *delivery // by deadline
	timer       *time.Timer
	at          time.Time // when the timer fires, at the latest at the first deadline; zero = it does not
}

// add has d expire at its deadline, unless it is removed before.
func (l *deadlines) add(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// All calls may take equally long, so most come last; those that have waited for room do not.
	after := l.last
	for after != nil && after.deadline.After(d.deadline) {
		after = after.previous
	}
	if d.previous = after; after == nil {
		d.next, l.first = l.first, d
	} else {
		d.next, after.next = after.next, d
	}
	if d.next == nil {
		l.last = d
	} else {
		d.next.previous = d
	}
	if l.first == d && (l.at.IsZero() || d.deadline.Before(l.at)) {
		l.set(d.deadline)
	}
}

// set sets the timer.
func (l *deadlines) set(at time.Time) {
	l.at = at
	if wait := time.Until(at); l.timer == nil {
		l.timer = time.AfterFunc(wait, l.expire)
	} else {
		l.timer.Reset(wait)
	}
}

// remove has d not expire any more. It may have.
func (l *deadlines) remove(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case d.previous != nil:
		d.previous.next = d.next
	case l.first == d:
		l.first = d.next
	default:
		return // not there
	}
	if d.next != nil {
		d.next.previous = d.previous
	} else {
		l.last = d.previous
	}
	d.next, d.previous = nil, nil
}

// expire is called by the timer.
func (l *deadlines) expire() {
	for _, d := range l.due() {
		d.expire()
	}
}

// due removes all whose deadline has come, and sets the timer for the next one.
func (l *deadlines) due() []*delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var due []*delivery
	for d := l.first; d != nil && !d.deadline.After(now); d = l.first {
		due = append(due, d)
		if l.first = d.next; l.first == nil {
			l.last = nil
		} else {
			l.first.previous = nil
		}
		d.next = nil
	}
	if l.at = (time.Time{}); l.first != nil {
		l.set(l.first.deadline)
	}
	return due
}

// stop stops the timer. Nothing may be added any more.
func (l *deadlines) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}
