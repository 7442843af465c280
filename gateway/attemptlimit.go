package gateway

import (
	"context"
	"sync"
	"time"
)

// attemptLimit bounds the duration of one attempt. What it limits, and for how long,
// can change along the way: a stream waits for its request to be written, and then
// for its response head. It aborts the attempt with the cause of the limit that expired.
type attemptLimit struct {
	abort context.CancelCauseFunc

	mu      sync.Mutex
	timer   *time.Timer // of the current limit, nil if there is none
	current int         // number of limits set so far
	cause   error       // why the attempt was aborted; nil if it was not
	over    bool
}

// set replaces the limit of the attempt; zero means no limit. It returns false if
// the attempt is already over.
func (l *attemptLimit) set(limit time.Duration, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.cause != nil {
		return false
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.current++
	if limit > 0 {
		own := l.current
		l.timer = time.AfterFunc(limit, func() { l.expire(own, cause) })
	}
	return true
}

// expire aborts the attempt, unless its limit has been replaced in the meantime.
func (l *attemptLimit) expire(own int, cause error) {
	l.mu.Lock()
	expired := !l.over && l.current == own
	if expired {
		l.cause = cause
	}
	l.mu.Unlock()
	if expired {
		l.abort(cause)
	}
}

// stop ends the limit and returns its cause if it had already expired.
func (l *attemptLimit) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.timer != nil {
		l.timer.Stop()
	}
	return l.cause
}
