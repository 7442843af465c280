package core

import (
	"slices"
	"testing"
	"time"
)

// Beyond MaxHeld, the confirmations that have waited longest are sent early, even while the file may be the next event. A
// file still confirms those that wait.
func TestOldestConfirmationsAreSentEarly(t *testing.T) {
	c := New(Config{MaxInFlight: 10, MaxBytes: 1000, MaxUnconfirmed: 1000, Recent: 1000, RecentFor: time.Hour, MaxHeld: 2, FileTaken: true})
	c.Add(0, "r", func(*Message) bool { return true }, false)
	now := time.Duration(0)
	var confirmed []ID
	released := int64(0)
	do := func() {
		e := c.Effects()
		start := slices.Clone(e.Start)
		for _, m := range slices.Concat(e.Closed, e.Confirm) {
			for _, confirmation := range m.Confirm {
				confirmed = append(confirmed, m.IDs[confirmation.Index])
			}
		}
		released += e.Released
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
		c.Take(now, &Message{IDs: []ID{newID(n)}, Large: true})
		settle()
		if counts := c.Counts(); n >= 2 && (counts.Awaiting != 2 || released != int64(n-1)) {
			t.Fatalf("%d wait and %d were sent early, want 2 and %d", counts.Awaiting, released, n-1)
		}
	}
	for n, id := range confirmed {
		if id != newID(n) {
			t.Fatalf("the %d-th that was sent early is %x", n, id)
		}
	}
	file := &Message{IDs: []ID{newID(998), newID(999)}, File: &File{ID: ID{1}}}
	confirmed = nil
	c.Take(now, file)
	settle()
	if counts := c.Counts(); counts.Awaiting != 0 || !slices.Equal(confirmed, file.IDs) {
		t.Errorf("%d wait, the file has confirmed %d, want none and 2", counts.Awaiting, len(confirmed))
	}
}

// What may be a part of a file is confirmed with that, or by itself when none has come.
func TestConfirmationsOfPartsWaitForTheirFile(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	h.acks(r, partOf(1))
	h.acks(r, numbered(2, "t"))
	h.wants("what is no part", 2)
	h.pass(partWait - 1)
	h.wants("too early")
	h.pass(1)
	h.wants("no file came", 1)
	h.acks(r, partOf(3))
	file := fileOf(3, 4) // 4 was never seen here
	h.takes(Opened, file)
	h.pass(time.Hour)
	h.wants("its file is open")
	h.settles(r, file, Acked)
	h.wants("the file", 3, 4)
	if got := h.Counts().Awaiting; got != 0 {
		t.Errorf("%d wait", got)
	}
}

// The wait for a file counts only while the file could come.
func TestClockOfPartsStandsStill(t *testing.T) {
	h := newByHand(t, Config{MaxInFlight: 1, MaxBytes: 1000, MaxUnconfirmed: 1000, Ordered: true, Recent: 100, RecentFor: time.Hour, MaxHeld: 100, FileTaken: true})
	r := h.add(everything)
	h.connects()
	h.acks(r, partOf(1))
	h.pass(partWait - 1)
	hangs, next := numbered(2, "t"), numbered(3, "t")
	h.takes(Opened, hangs)
	h.takes(Full, next)
	h.pass(time.Hour)
	h.wants("no room")
	h.settles(r, hangs, Acked)
	h.wants("what hung", 2)
	h.takes(Opened, next)
	h.pass(1)
	h.wants("room", 1)
	h.settles(r, next, Acked)
	h.wants("the next one", 3)

	h.acks(r, partOf(4))
	h.pass(partWait - 1)
	h.Disconnected(h.now)
	h.pass(time.Hour)
	h.connects()
	h.pass(partWait - 1)
	h.wants("the stream begins again")
	h.pass(1)
	h.wants("no file came", 4)
}

// A file confirms all its messages but those that are open, or were given up, by themselves.
func TestFileConfirmsAllButWhatIsOpenOrWasLeft(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	open, left, file := numbered(1, "t"), numbered(2, "t"), fileOf(1, 2, 3)
	h.takes(Opened, open, left)
	h.settles(r, left, Left)
	h.acks(r, file)
	h.wants("the file", 3)
	h.settles(r, open, Acked)
	h.wants("what was open", 1)
	h.acks(r, numbered(2, "t"))
	h.wants("what was left", 2)

	// Left while the file is open, and acked when it comes again.
	left, file = numbered(4, "t"), fileOf(4, 5)
	h.takes(Opened, left, file)
	h.settles(r, left, Left)
	again := numbered(4, "t")
	h.takes(Opened, again)
	h.takes(Joined, numbered(5, "t")) // the file stands for it
	h.settles(r, file, Acked)
	h.wants("the file", 5)
	h.settles(r, again, Acked)
	h.wants("acked in the end", 4)
}

// Nothing of a file that was left is confirmed before the file comes again, whether it was acked before, is
// open, or comes behind it.
func TestLeftFileIsNotConfirmedByItsParts(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	h.acks(r, partOf(1))
	open, file := partOf(2), fileOf(1, 2, 3)
	h.takes(Opened, open)
	r.shut = true
	h.takes(LeftWithService, file)
	h.settles(r, open, Acked)
	r.shut = false
	h.acks(r, partOf(3))
	h.pass(partWait / 2)
	h.wants("parts of a file that was left")
	h.connects()
	h.takes(Joined, partOf(1))
	h.takes(Joined, partOf(2))
	h.takes(Joined, partOf(3))
	h.wants("the file has not come yet")
	h.acks(r, fileOf(1, 2, 3))
	h.wants("the file", 1, 2, 3)
}

// What was held for a file that was left does not come alone, and neither does what comes behind the file.
func TestPartsOfALeftFileDoNotComeAlone(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	held := func(n int) *Message {
		m := partOf(n)
		m.Hold = true
		return m
	}
	h.takes(Held, held(1))
	r.shut = true
	h.takes(LeftWithService, fileOf(1, 2))
	h.takes(Held, held(2))
	h.pass(time.Hour)
	if len(h.handed) > 0 {
		t.Errorf("%d came alone", len(h.handed))
	}
	h.connects()
	h.takes(Held, held(1), held(2))
	h.acks(r, fileOf(1, 2))
	h.wants("the file", 1, 2)
	h.pass(time.Hour)
	if h.unclaimed > 0 {
		t.Errorf("%d came alone", h.unclaimed)
	}
}

// A family is known to have several messages when two have come; the same one twice is one.
func TestFamilies(t *testing.T) {
	var f families
	message := func(n int) *Message { return &Message{IDs: []ID{numberedID(n)}, Family: 7} }
	f.add(message(1))
	f.add(message(1))
	if f.several(7) {
		t.Error("what came twice is taken for two")
	}
	f.add(message(2))
	if !f.several(7) || f.several(8) {
		t.Error("two of a family are not known, or one of another is")
	}
}
