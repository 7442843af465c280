package lifecycle

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		if !l.Enter() {
			t.Fatal("a new life lets nobody in")
		}
		l.Fork()
		var ends, returned atomic.Int64
		for range 3 {
			go func() {
				l.Close(func() {
					ends.Add(1)
					<-l.Idle()
					time.Sleep(time.Second)
				})
				returned.Add(1)
			}()
		}
		synctest.Wait()
		if l.Enter() {
			t.Error("Enter after Close")
		}
		l.Leave()
		time.Sleep(time.Minute)
		if returned.Load() != 0 {
			t.Error("Close did not wait for the forked goroutine")
		}
		l.Leave()
		synctest.Wait()
		if returned.Load() != 0 {
			t.Error("a second Close did not wait for the first one")
		}
		time.Sleep(2 * time.Second)
		if ends.Load() != 1 || returned.Load() != 3 {
			t.Errorf("end ran %d times, %d calls of Close returned; want 1 and 3", ends.Load(), returned.Load())
		}
	})
}
