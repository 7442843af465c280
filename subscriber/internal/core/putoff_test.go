package core

import (
	"testing"
	"time"
)

func TestPutOff(t *testing.T) {
	w := newWorld(Config{MaxInFlight: 10, MaxBytes: 1 << 20, MaxUnconfirmed: 1000, Recent: 1000, RecentFor: time.Hour}, 1)
	w.fault = func(s string) { t.Fatal(s) }
	r, _ := w.core.Add(1, "r", func(*Message) bool { return true }, false)
	w.routes = append(w.routes, r)
	w.handle = func(_ *Route, m *sent) (time.Duration, Outcome) {
		if m.key == "sick" {
			return ms, Nacked
		}
		return ms, Acked
	}
	w.traced, w.putOff = true, time.Hour
	for range 40 {
		w.send("t", "sick")
	}
	for range 40 {
		w.send("t", "well")
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
