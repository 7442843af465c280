// Package lifecycle counts the calls in progress in something that can be
// closed, so that closing rejects new calls, waits for the others, and happens once.
package lifecycle

import "sync"

// Life is the lifecycle of one such object. Create it with [New]. Its methods are safe
// for concurrent use.
type Life struct {
	mu     sync.Mutex // guards ending against calls.Add
	ending bool
	calls  sync.WaitGroup
	ended  chan struct{}
}

// New returns a Life that accepts calls.
func New() *Life { return &Life{ended: make(chan struct{})} }

// Enter reports whether a call may start; it may not once Close was called. If it may, the
// call is counted, and [Life.Leave] must follow.
func (l *Life) Enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return false
	}
	l.calls.Add(1)
	return true
}

// Fork counts a goroutine that outlives the call that starts it. It must be called before
// that call leaves, and must be followed by another Leave.
func (l *Life) Fork() { l.calls.Add(1) }

// Leave ends a call.
func (l *Life) Leave() { l.calls.Done() }

// Close rejects further calls and then runs end, which waits for those in progress with
// [Life.Idle]. Only the first Close runs end; the others wait until it has returned.
func (l *Life) Close(end func()) {
	l.mu.Lock()
	first := !l.ending
	l.ending = true
	l.mu.Unlock()
	if !first {
		<-l.ended
		return
	}
	defer close(l.ended)
	end()
}

// Idle returns a channel that is closed when no calls are in progress. It is meant for
// the end function of Close, which must make the calls end.
func (l *Life) Idle() <-chan struct{} { return Ended(&l.calls) }

// Ended returns a channel that is closed when calls counts nothing any longer. Nothing may be added after that.
func Ended(calls *sync.WaitGroup) <-chan struct{} {
	ended := make(chan struct{})
	go func() { // ends with the last that is counted
		defer close(ended)
		calls.Wait()
	}()
	return ended
}
