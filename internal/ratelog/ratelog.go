// Package ratelog limits how often a log line is written whose cause can repeat
// indefinitely, such as a full disk, and counts the suppressed occurrences.
package ratelog

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// Field is the log field for the number of suppressed
// occurrences.
const Field = "suppressed"

// every is the interval in which the burst of occurrences is logged. It starts with an occurrence.
const every = time.Minute

// Line limits one log line. The zero value is ready for use. Its methods are
// safe for concurrent use and never block. It must not be copied after first use.
type Line struct {
	// Burst is how many occurrences are logged in a minute. 0 means 1.
	Burst int

	pending atomic.Bool // Over has something to report

	mu         sync.Mutex
	began      time.Time // start of the interval of Next; zero if none
	logged     int       // in this interval
	open       bool      // something was logged since Over last returned true
	closed     time.Time // when Over last returned true; zero if never
	suppressed int       // since the last line that was logged
}

// Next counts an occurrence and reports whether to log it, with the number of preceding ones that were not logged.
func (l *Line) Next() (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending.Store(true)
	if now := time.Now(); l.began.IsZero() || now.Sub(l.began) >= every {
		l.began, l.logged = now, 0
	}
	if l.logged >= cmp.Or(l.Burst, 1) {
		l.suppressed++
		return 0, false
	}
	l.logged++
	l.open = true
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}

// Over records that the cause is gone and reports whether to log that, with the number of occurrences that were not logged:
// if one was logged since the last time, otherwise at most once per minute. It costs an atomic load if there is nothing to
// report.
func (l *Line) Over() (suppressed int, ok bool) {
	if !l.pending.Load() {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.pending.Load() || !l.open && now.Sub(l.closed) < every {
		return 0, false
	}
	l.pending.Store(false)
	l.open, l.closed = false, now
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
