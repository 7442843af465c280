package core

import (
	"testing"
	"time"
)

func TestPutOff(t *testing.T) {
	w := newWorld(Config{MaxInFlight: 10, MaxBytes: 1 << 20, MaxUnconfirmed: 1000, Recent: 1000, RecentFor: time.Hour}, 1)
	w.fault = func(s string) { t.Fatal(s) }
	w.addRoute("r", func(*sent) bool { return true }, false)
	w.handle = func(_ *Item, m *sent) work {
		if m.key == "sick" {
			return work{rest: ms, outcome: Nacked, waits: time.Hour}
		}
		return work{rest: ms}
	}
	w.traced = true
	for range 40 {
		w.send(&sent{tenant: "t", key: "sick"})
	}
	for range 40 {
		w.send(&sent{tenant: "t", key: "well"})
	}
	w.after(0, w.connect)
	w.run(10 * time.Second)
	n := 0
	for _, m := range w.sent {
		if m.confirmed != 0 {
			n++
		}
	}
	if n != 40 {
		for _, l := range w.trace[:min(len(w.trace), 200)] {
			t.Log(l)
		}
		t.Fatal(n, w.core.Counts())
	}
}
