package testkit

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// bubbles are those of Bubble.
var bubbles struct {
	mu         sync.Mutex
	open       int
	processors int // before the first of them
}

// Bubble runs a test in a bubble of testing/synctest, for one that has a server in it. The race detector crashes when two timers of a
// bubble end at a time on two processors (https://go.dev/issue/78156), so with it there is one processor meanwhile.
func Bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if raceDetector {
		processors(1)
		defer processors(-1)
	}
	synctest.Test(t, test)
}

// processors takes in that there are n more bubbles.
func processors(n int) {
	bubbles.mu.Lock()
	defer bubbles.mu.Unlock()
	if bubbles.open == 0 {
		bubbles.processors = runtime.GOMAXPROCS(1)
	}
	if bubbles.open += n; bubbles.open == 0 {
		runtime.GOMAXPROCS(bubbles.processors)
	}
}

// RunBubble runs a subtest in a bubble of testing/synctest.
func RunBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
