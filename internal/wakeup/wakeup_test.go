package wakeup_test

import (
	"sync"
	"testing"

	"github.com/agrimill/agrimill/internal/wakeup"
)

func TestSignal(t *testing.T) {
	var s wakeup.Signal
	s.Raise() // nobody waits
	first, same := s.Next(), s.Next()
	if wakeup.Raised(first) {
		t.Error("raised before there was anybody")
	}
	s.Raise()
	if !wakeup.Raised(first) || !wakeup.Raised(same) {
		t.Error("not every waiter was woken")
	}
	if wakeup.Raised(s.Next()) {
		t.Error("the next one was raised before its time")
	}
}

// Nobody misses a Raise that comes after their Next.
func TestSignalConcurrently(t *testing.T) {
	var s wakeup.Signal
	var waiting, ready sync.WaitGroup
	for range 8 {
		ready.Add(1)
		waiting.Go(func() {
			for i := range 200 {
				next := s.Next()
				if i == 0 {
					ready.Done()
				}
				s.Raise()
				<-next
			}
		})
	}
	ready.Wait()
	waiting.Wait()
}
