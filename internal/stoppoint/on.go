//go:build stoppoints

package stoppoint

import (
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
)

// wanted returns the point to stop at, and whether that is due.
var wanted = sync.OnceValues(func() (Point, *atomic.Bool) {
	due := &atomic.Bool{}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR2)
	go func() { // ends with the process
		for range told {
			due.Store(true)
		}
	}()
	return Point(os.Getenv(Env)), due
})

// At stops the process if this is the point, and it is due.
func At(p Point) {
	point, due := wanted()
	if p != point || !due.CompareAndSwap(true, false) {
		return
	}
	going := make(chan os.Signal, 1)
	signal.Notify(going, syscall.SIGCONT)
	defer signal.Stop(going)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // nobody may keep a process from stopping itself
	<-going                                        // another thread may have taken the signal
}
