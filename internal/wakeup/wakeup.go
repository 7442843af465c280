// Package wakeup notifies waiting goroutines of an event, by channels that are closed or take a token.
package wakeup

import "sync/atomic"

// Signal can be raised any number of times. The zero value is ready for use; all methods
// are safe for concurrent use and do not block.
type Signal struct{ next atomic.Pointer[chan struct{}] }

// Next returns a channel that is closed by the next Raise.
func (s *Signal) Next() <-chan struct{} {
	for {
		if next := s.next.Load(); next != nil {
			return *next
		}
		next := make(chan struct{})
		if s.next.CompareAndSwap(nil, &next) {
			return next
		}
	}
}

// Raise closes the channels that Next has returned since the last Raise.
func (s *Signal) Raise() {
	if next := s.next.Swap(nil); next != nil {
		close(*next)
	}
}

// Token puts a token into c. Without room for it whoever takes them has been told already.
func Token(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Raised reports whether c is closed, or has a token, which it takes.
func Raised(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
