package core

import (
	"slices"
	"testing"
	"time"
)

// Beyond MaxHeld, the confirmations that have waited longest are sent early, even while the file may be the next event. A
// file still confirms those that wait.
func TestOldestConfirmationsAreSentEarly(t *testing.T) {
	c := New(Config{MaxInFlight: 10, MaxBytes: 1000, MaxUnconfirmed: 1000, Recent: 1000, RecentFor: time.Hour, MaxHeld: 2})
	c.Add(0, "r", func(*Message) bool { return true }, false)
	now := time.Duration(0)
	var confirmed []ID
	do := func() {
		e := c.Effects()
		start := slices.Clone(e.Start)
		for _, m := range slices.Concat(e.Closed, e.Confirm) {
			for _, confirmation := range m.Confirm {
				confirmed = append(confirmed, m.IDs[confirmation.Index])
			}
		}
		e.Reset()
		for _, it := range start {
			c.Done(now, it, Acked, 0)
		}
	}
	settle := func() {
		for range 2 { // handed out, and acked
			do()
		}
		if at := c.NextWake(); at != 0 && at <= now {
			c.Wake(now)
			do()
		}
	}
	for n := range 1000 {
		now += ms
		c.Take(now, &Message{IDs: []ID{newID(n)}, Large: true, FileTaken: true})
		settle()
		if counts := c.Counts(); n >= 2 && (counts.Awaiting != 2 || counts.Released != int64(n-1)) {
			t.Fatalf("%d wait and %d were sent early, want 2 and %d", counts.Awaiting, counts.Released, n-1)
		}
	}
	for n, id := range confirmed {
		if id != newID(n) {
			t.Fatalf("the %d-th that was sent early is %x", n, id)
		}
	}
	file := &Message{IDs: []ID{newID(998), newID(999)}, File: true, FileID: ID{1}}
	confirmed = nil
	c.Take(now, file)
	settle()
	if counts := c.Counts(); counts.Awaiting != 0 || !slices.Equal(confirmed, file.IDs) {
		t.Errorf("%d wait, the file has confirmed %d, want none and 2", counts.Awaiting, len(confirmed))
	}
}
