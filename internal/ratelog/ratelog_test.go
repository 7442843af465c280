package ratelog_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/ratelog"
)

func TestTheFirstOccurrenceIsLoggedAndTheRestCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var line ratelog.Line
		expect(t, &line, 0, true)
		for range 5798 {
			expect(t, &line, 0, false)
		}
		time.Sleep(time.Minute - 1)
		expect(t, &line, 0, false)
		time.Sleep(time.Nanosecond)
		expect(t, &line, 5799, true) // told once,
		expect(t, &line, 0, false)   // and the next interval has begun
		time.Sleep(time.Minute)
		expect(t, &line, 1, true)
		time.Sleep(time.Minute)
		expect(t, &line, 0, true)
	})
}

func TestABurstIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		line := ratelog.Line{Burst: 3}
		for range 3 {
			expect(t, &line, 0, true)
		}
		expect(t, &line, 0, false)
		expect(t, &line, 0, false)
		time.Sleep(time.Minute)
		expect(t, &line, 2, true)
		expect(t, &line, 0, true)
	})
}

func TestOverTellsWhatWasNotLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var line ratelog.Line
		if _, ok := line.Over(); ok {
			t.Fatal("over before anything has happened")
		}
		for range 3 {
			line.Next()
		}
		if suppressed, ok := line.Over(); suppressed != 2 || !ok {
			t.Fatalf("Over() = %d, %t, want 2, true", suppressed, ok)
		}
		if suppressed, ok := line.Over(); suppressed != 0 || ok {
			t.Fatalf("the second Over() = %d, %t, want 0, false", suppressed, ok)
		}
	})
}

// TestWhatComesAndGoesIsLimited checks that neither the occurrences nor their ends fill
// a log when every other operation fails, and that all are logged in the end.
func TestWhatComesAndGoesIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var line ratelog.Line
		lines, told := 0, 0
		note := func(suppressed int, ok bool, own int) {
			if ok {
				lines, told = lines+1, told+suppressed+own
			}
		}
		const occurrences = 1000
		for range occurrences { // in ten minutes
			suppressed, ok := line.Next()
			note(suppressed, ok, 1)
			suppressed, ok = line.Over()
			note(suppressed, ok, 0)
			time.Sleep(time.Minute / 100)
		}
		if lines > 22 {
			t.Errorf("%d lines in ten minutes, want two a minute", lines)
		}
		time.Sleep(time.Minute)
		suppressed, ok := line.Over()
		note(suppressed, ok, 0)
		if told != occurrences {
			t.Errorf("%d occurrences told, want %d", told, occurrences)
		}
	})
}

// TestConcurrentOccurrencesAreAllAccountedFor checks that every occurrence is logged or
// counted exactly once.
func TestConcurrentOccurrencesAreAllAccountedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const goroutines, each = 8, 1000
		line := ratelog.Line{Burst: 100}
		var total atomic.Int64
		var group sync.WaitGroup
		for range goroutines {
			group.Go(func() {
				for range each {
					if suppressed, ok := line.Next(); ok {
						total.Add(int64(1 + suppressed))
					}
					if suppressed, ok := line.Over(); ok {
						total.Add(int64(suppressed))
					}
				}
			})
		}
		group.Wait()
		time.Sleep(time.Minute)
		if suppressed, ok := line.Over(); ok {
			total.Add(int64(suppressed))
		}
		if total.Load() != goroutines*each {
			t.Errorf("%d occurrences accounted for, want %d", total.Load(), goroutines*each)
		}
	})
}

func expect(t *testing.T, line *ratelog.Line, suppressed int, ok bool) {
	t.Helper()
	if n, logged := line.Next(); n != suppressed || logged != ok {
		t.Fatalf("Next() = %d, %t, want %d, %t", n, logged, suppressed, ok)
	}
}
