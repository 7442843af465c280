package core

import (
	"testing"
	"time"
)

// Who has acked what another route left gets no copy of it, and of what was left and never comes again, the oldest are
// forgotten.
func TestOldestThatWereLeftAreForgotten(t *testing.T) {
	h := newByHand(t, Config{})
	acks, leaves := h.add(everything), h.add(everything)
	h.connects()
	const many = 1000
	for n := range many {
		m := numbered(n, "t")
		h.takes(Opened, m)
		h.settles(acks, m, Acked)
		h.settles(leaves, m, Left)
		again := numbered(n, "t")
		h.takes(Opened, again)
		if h.has(acks, again) {
			t.Fatalf("message %d comes again to the one that has acked it", n)
		}
		h.settles(leaves, again, Left)
	}
	l := &h.ledger
	if l.index.Len() != 100 || l.acked.Len() != 100 || l.entries > 110 {
		t.Errorf("%d messages, the acks of %d, in %d entries, want those of 100", l.index.Len(), l.acked.Len(), l.entries)
	}
	h.End(h.now, acks)
	if l.acked.Len() != 0 {
		t.Error("the acks of a route that ended are remembered")
	}
}

// What was confirmed is confirmed again for a while when it comes again, and then it is a message like any other.
func TestConfirmedIsRememberedForAWhile(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	h.acks(r, numbered(1, "t"))
	h.confirmed()
	h.wants("acked", 1)
	h.pass(time.Hour)
	h.takes(Joined, numbered(1, "t"))
	h.confirmed() // it counts from then on
	h.wants("it came again", 1)
	h.pass(time.Hour + 1)
	h.takes(Opened, numbered(1, "t"))

	h.acks(r, fileOf(2, 3))
	h.pass(time.Hour + 1)
	h.takes(Joined, fileOf(2, 3), numbered(2, "t")) // it is not confirmed yet
	h.confirmed()
	h.takes(Joined, fileOf(2, 3))
	h.wants("the file came again", 2, 3, 2, 3)
	h.confirmed()
	h.pass(time.Hour + 1)
	h.takes(Opened, fileOf(2, 3))
}

// A message has two deliveries, its own and a file, and each left it to the other to have it stored in the
// quarantine: it is not confirmed before one of them was, and it is asked for.
func TestNothingIsConfirmedThatNobodyStored(t *testing.T) {
	h := newByHand(t, Config{
		MaxInFlight: 100, MaxBytes: 1000, MaxUnconfirmed: 1000, Ordered: true, Recent: 100, RecentFor: time.Hour, MaxHeld: 100, Quarantines: true,
	})
	r := h.add(everything)
	h.connects()
	refuses := func(m *Message) {
		h.takes(Opened, m)
		m.item.Refused = true
		h.settles(r, m, Acked)
	}
	refuses(numbered(1, "t"))
	h.wants("everybody refused it")
	h.pass(2 * reconnectEvery)
	if h.reconnects != 1 {
		t.Errorf("%d reconnects, want 1", h.reconnects)
	}
	h.connects()
	h.acks(r, numbered(1, "t"))
	h.wants("it was stored", 1)
}

// Parts that were confirmed are not set aside with their file: the service does not have them.
func TestConfirmedPartsAreNotSetAside(t *testing.T) {
	h := newByHand(t, Config{})
	r := h.add(everything)
	h.connects()
	h.acks(r, numbered(1, "t"))
	h.confirmed()
	file := fileOf(1, 2)
	h.takes(Opened, file)
	file.Aside = true
	h.settles(r, file, Left)
	if n, _ := h.SetAside(); n != 1 {
		t.Errorf("%d are set aside, want the part that was not confirmed", n)
	}
	h.connects()
	h.takes(Opened, numbered(1, "t"))
	file = fileOf(1, 2)
	h.takes(Opened, file)
	file.Aside = true
	h.settles(r, file, Left)
	h.settles(r, h.handed[0].Message, Left)
	if n, _ := h.SetAside(); n != 2 {
		t.Errorf("%d are set aside, want both: the service has sent the first one again", n)
	}
}
