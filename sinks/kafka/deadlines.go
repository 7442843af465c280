package kafka

import (
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/duequeue"
)

// deadlines ends the wait for results that do not come in time, with one timer for all: a timer for
// each message would be as many allocations, and stopped nearly always. The zero value has none.
type deadlines struct {
	mu    sync.Mutex
	queue duequeue.Queue[*delivery]
	timer *time.Timer
	at    time.Time // when the timer fires, at the latest at the first deadline; zero = it does not
}

// add has d expire at a time, unless it is removed before.
func (l *deadlines) add(d *delivery, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.due.Item = d
	l.queue.Put(&d.due, at)
	l.set()
}

// set sets the timer, if it would fire too late.
func (l *deadlines) set() {
	first := l.queue.First()
	if first == nil || !l.at.IsZero() && !first.At().Before(l.at) {
		return
	}
	l.at = first.At()
	if wait := time.Until(l.at); l.timer == nil {
		l.timer = time.AfterFunc(wait, l.expire)
	} else {
		l.timer.Reset(wait)
	}
}

// remove has d not expire any more.
func (l *deadlines) remove(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.due.Remove()
}

// expire is called by the timer, which it sets for the next deadline.
func (l *deadlines) expire() {
	var due []*delivery
	l.mu.Lock()
	now := time.Now()
	for e := l.queue.Due(now); e != nil; e = l.queue.Due(now) {
		e.Remove()
		due = append(due, e.Item)
	}
	l.at = time.Time{}
	l.set()
	l.mu.Unlock()
	for _, d := range due {
		d.expire()
	}
}

// stop stops the timer. Nothing may be added any more.
func (l *deadlines) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}
