package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

func TestDelayGrowsAndIsCapped(t *testing.T) {
	p := backoff.Policy{Initial: 100 * time.Millisecond, Max: time.Second}
	want := []time.Duration{100, 200, 400, 800, 1000, 1000}
	for n, ms := range want {
		full := ms * time.Millisecond
		different := map[time.Duration]bool{}
		for range 100 {
			if got := p.Delay(n); got < full/2 || got > full {
				t.Fatalf("Delay(%d) = %v, want between %v and %v", n, got, full/2, full)
			}
			different[p.Delay(n)] = true
		}
		if len(different) < 50 {
			t.Errorf("Delay(%d) has %d values in 100", n, len(different))
		}
	}
	for _, n := range []int{31, 32, 63, 64, 1 << 30} {
		if got := p.Delay(n); got < p.Max/2 || got > p.Max {
			t.Fatalf("Delay(%d) = %v, want at most %v", n, got, p.Max)
		}
	}
	if got := p.Delay(-5); got > p.Initial {
		t.Fatalf("Delay(-5) = %v, want at most %v", got, p.Initial)
	}
}

func TestDelaySurvivesOverflow(t *testing.T) {
	p := backoff.Policy{Initial: time.Hour, Max: 2 * time.Hour}
	for n := range 40 {
		if got := p.Delay(n); got < time.Hour/2 || got > 2*time.Hour {
			t.Fatalf("Delay(%d) = %v", n, got)
		}
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := backoff.Policy{Initial: time.Hour, Max: time.Hour}
		if err := p.Wait(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait = %v, want deadline exceeded", err)
		}
		if err := (backoff.Policy{Initial: time.Second, Max: time.Second}).Wait(t.Context(), 0); err != nil {
			t.Fatalf("Wait = %v, want nil", err)
		}
	})
}
