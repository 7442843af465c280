package peakmem

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// held is what the Go runtime holds from the system, in bytes.
func held() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// peakOf runs work and returns the most that was held meanwhile, and the
// kernel's figure, 0 when it has none.
func peakOf(tb testing.TB, work func()) (peak, rss int64) {
	tb.Helper()
	testkit.Eventually(tb, "what earlier work left is freed", func() bool { // a connection may hold a payload for a while
		debug.FreeOSMemory()
		return held() < 32*mega
	})
	resetRSS()
	stop, done := make(chan struct{}), make(chan int64)
	// Ends when stop is closed, below.
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		most := held()
		for {
			select {
			case <-tick.C:
				most = max(most, held())
			case <-stop:
				done <- max(most, held())
				return
			}
		}
	}()
	work()
	rss = readRSS()
	close(stop)
	return <-done, rss
}

// resetRSS makes the kernel forget the high-water mark (Linux, proc(5)).
func resetRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// readRSS is the high-water mark in bytes.
func readRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")
	kb, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return kb << 10
}
