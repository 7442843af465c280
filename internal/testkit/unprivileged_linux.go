package testkit

import (
	"os"
	"runtime"
	"syscall"
	"testing"
)

// Unprivileged takes root's right to every file from the calling goroutine until restore
// is called, which the same goroutine has to do. It does nothing for other users.
func Unprivileged(t testing.TB) (restore func()) {
	t.Helper()
	if os.Getuid() != 0 {
		return func() {}
	}
	runtime.LockOSThread() // the right belongs to a thread
	NoError(t, syscall.Setfsuid(65534))
	return func() {
		if err := syscall.Setfsuid(0); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	}
}
