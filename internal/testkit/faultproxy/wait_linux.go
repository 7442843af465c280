package faultproxy

import (
	"syscall"
	"time"
)

// wait returns when a time has come, and holds a thread until then. A timer of the runtime is up to a
// millisecond late while nothing else runs, because that is the unit in which the runtime then
// waits, and so would double the delay for a client that waits for each answer.
func wait(due time.Time) {
	for {
		left := time.Until(due)
		if left <= 0 {
			return
		}
		pause := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&pause, nil) // interrupted, it goes on with what is left
	}
}
