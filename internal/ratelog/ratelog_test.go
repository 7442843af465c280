package ratelog_test

import (
	"sync"
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
		time.Sleep(ratelog.DefaultEvery - 1)
		expect(t, &line, 0, false)
		time.Sleep(time.Nanosecond)
		expect(t, &line, 5799, true) // told once,
		expect(t, &line, 0, false)   // and the next interval has begun
		time.Sleep(ratelog.DefaultEvery)
		expect(t, &line, 1, true)
		time.Sleep(ratelog.DefaultEvery)
		expect(t, &line, 0, true)
	})
}

func TestABurstIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		line := ratelog.Line{Every: time.Second, Burst: 3}
		for range 3 {
			expect(t, &line, 0, true)
		}
		expect(t, &line, 0, false)
		expect(t, &line, 0, false)
		time.Sleep(time.Second)
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
			time.Sleep(ratelog.DefaultEvery / 100)
		}
		if lines > 22 {
			t.Errorf("%d lines in ten minutes, want two a minute", lines)
		}
		time.Sleep(ratelog.DefaultEvery)
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
	const goroutines, each = 8, 1000
	line := ratelog.Line{Every: time.Microsecond}
	var mu sync.Mutex
	total := 0
	add := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		total += n
	}
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for range each {
				if suppressed, ok := line.Next(); ok {
					add(1 + suppressed)
				}
				if suppressed, ok := line.Over(); ok {
					add(suppressed)
				}
			}
		})
	}
	group.Wait()
	if suppressed, ok := line.Over(); ok {
		add(suppressed)
	}
	if total != goroutines*each {
		t.Errorf("%d occurrences accounted for, want %d", total, goroutines*each)
	}
}

func expect(t *testing.T, line *ratelog.Line, suppressed int, ok bool) {
	t.Helper()
	if n, logged := line.Next(); n != suppressed || logged != ok {
		t.Fatalf("Next() = %d, %t, want %d, %t", n, logged, suppressed, ok)
	}
}
