//go:build faults && soak

package faulttest

import (
	"fmt"
	"github.com/agrimill/agrimill/internal/testkit"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestSoak runs the pipeline in a process of its own for the time T, at RATE
// messages per second, with a cut stream every ten seconds, and prints what that
// process takes. T, in the environment, is a duration; RATE is a number.
func TestSoak(t *testing.T) {
	total := testkit.Must(time.ParseDuration(env("T", "1m")))(t)
	rate, err := strconv.Atoi(env("RATE", "200"))
	if err != nil || rate < 1 {
		t.Fatalf("RATE: %q", os.Getenv("RATE"))
	}
	kind := env("BROKER", kindNATS)
	w := newWorld(t, worldConfig{kind: kind, heap: 8 << 30}) // the ledger holds everything
	w.oracle.archive.lean = true
	every := max(total/30, time.Second)
	c := w.startChild(order{Store: t.TempDir() + "/dedup", Report: every})

	fmt.Printf("%s, %d messages per second\n\n| time | sent | confirmed | per second | heap MB | runtime MB | RSS MB | goroutines | files |\n"+
		"|-----:|-----:|----------:|-----------:|--------:|-----------:|-------:|-----------:|------:|\n", kind, rate)
	began := time.Now()
	sent, shown, lastConfirmed, lastAt := 0, 0, 0, began
	cutAt := began.Add(10 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < total {
		<-tick.C
		due := int(time.Since(began).Seconds() * float64(rate))
		w.send(due - sent)
		sent = due
		if time.Now().After(cutAt) {
			w.gateway.CutStreams()
			cutAt = time.Now().Add(10 * time.Second)
		}
		if c.ended() {
			t.Fatalf("the pipeline ended with code %d", w.waitChild(c))
		}
		if len(c.samples) > shown {
			shown = len(c.samples)
			s := c.samples[shown-1]
			confirmed, now := w.confirmed(), time.Now()
			fmt.Printf("| %v | %d | %d | %.0f | %.1f | %.1f | %.1f | %d | %d |\n", now.Sub(began).Round(time.Second), sent, confirmed,
				float64(confirmed-lastConfirmed)/now.Sub(lastAt).Seconds(), s.HeapMB, s.SystemMB, s.RSSMB, s.Goroutines, s.Files)
			lastConfirmed, lastAt = confirmed, now
		}
	}
	w.waitConfirmed()
	testkit.NoError(t, c.terminate())
	if code := w.waitChild(c); code != childStoppedNormal {
		t.Errorf("exit code %d", code)
	}
	v := w.judge(expectation{})
	fmt.Printf("\nsent %d, stored %d, raw duplicates %d\n", v.sent, v.stored, v.duplicates)
	if len(c.samples) < 4 {
		return
	}
	half, end := c.samples[len(c.samples)/2], c.samples[len(c.samples)-1]
	if end.SystemMB > half.SystemMB*1.25+16 {
		t.Errorf("memory grows: %.0f MB at half of the time, %.0f MB at the end", half.SystemMB, end.SystemMB)
	}
	if end.Goroutines > half.Goroutines+50 || end.Files > half.Files+10 {
		t.Errorf("%d goroutines and %d files at half of the time, %d and %d at the end", half.Goroutines, half.Files, end.Goroutines, end.Files)
	}
}

func env(name, value string) string {
	if text := os.Getenv(name); text != "" {
		return text
	}
	return value
}
