package core

import (
	"testing"
	"time"
)

// What a route that ends leaves comes again soon if there are others, which may have it left to do.
func TestLeftByRouteThatEndedIsAskedFor(t *testing.T) {
	for _, others := range []int{0, 1} {
		h := newByHand(t, Config{})
		ends := h.add(everything)
		for range others {
			h.add(everything)
		}
		h.connects()
		h.takes(Opened, small(1, "t", "key"), small(2, "t", "key")) // the second one waits for the first one
		h.End(h.now, ends)
		h.do()
		if got := h.pass(2 * reconnectEvery); got != others {
			t.Errorf("with %d others, a reconnect was asked for %d times", others, got)
		}
	}
}

// What the handlers of a route that ended still have leaves the others their room.
func TestHandlersOfARouteThatEndedHang(t *testing.T) {
	h := newByHand(t, windowOf(5, true))
	ends := h.add(func(m *Message) bool { return m.Tenant == "ends" })
	r := h.add(func(m *Message) bool { return m.Tenant != "ends" })
	h.connects()
	for n := range 5 {
		h.takes(Opened, numbered(n+1, "ends"))
	}
	h.takes(Full, numbered(10, "t"))
	h.End(h.now, ends)
	h.do()
	for n := range 20 {
		h.acks(r, numbered(10+n, "t"))
		h.pass(time.Second)
		h.confirmed()
	}
}

// In a window of one message, there is never a second one in a handler.
func TestHandlerOfARouteThatEndedInAWindowOfOne(t *testing.T) {
	h := newByHand(t, windowOf(1, true))
	ends := h.add(func(m *Message) bool { return m.Tenant == "ends" })
	h.add(func(m *Message) bool { return m.Tenant != "ends" })
	h.connects()
	m := numbered(1, "ends")
	h.takes(Opened, m)
	h.End(h.now, ends)
	h.pass(time.Minute)
	h.connects()
	h.takes(Full, numbered(2, "t"))
	h.settles(ends, m, Left)
	h.takes(Opened, numbered(2, "t"))
}

// What one route has stored waits until that survives a power cut, also when another one, which has stored nothing that has
// to wait, acks it later than that, on another connection.
func TestStoredByOneAndAckedByAnother(t *testing.T) {
	cfg := windowOf(10, true)
	cfg.MaxUnsynced, cfg.Names = 10, func(m *Message, _ int32) *Names { return &Names{Tenant: m.Tenant} }
	h := newByHand(t, cfg)
	stores, acks := h.add(everything), h.add(everything)
	h.connects()
	m := small(1, "t", "key")
	h.takes(Opened, m)
	h.Stored(h.now, &m.item, &Horizon{After: time.Second}, h.now, nil)
	h.settles(stores, m, Acked)
	h.settles(acks, m, Left)
	h.connects()
	again := small(1, "t", "key")
	h.takes(Opened, again)
	h.settles(acks, again, Acked)
	h.wants("it may be lost")
	if len(h.holds) != 1 || h.holds[0].Len() != 1 || h.holds[0].names[0].Tenant != "t" {
		t.Errorf("%d confirmations wait: %v", h.Counts().Unsynced, h.holds)
	}
}

// A payload waits for room: among what moves, and among what waits.
func TestPayloadsFit(t *testing.T) {
	h := newByHand(t, windowOf(10, true)) // of 1,000 bytes
	r := h.add(everything)
	h.connects()
	waits, moves, large := small(2, "t", "waits"), small(3, "t", "moves"), small(4, "t", "large")
	waits.Fetching, moves.Fetching, large.Bytes = true, true, 900
	h.takes(Opened, small(1, "t", "first"), waits, moves, large)
	h.settles(r, large, Nacked)
	h.Unfetched(h.now, waits)
	fits := func(m *Message, n int64, want bool) {
		t.Helper()
		if got := h.Fits(h.now, m, n); got != want {
			t.Errorf("%d bytes fit: %v, want %v, while %d bytes wait and %d move", n, got, want, h.window.waitingBytes, h.window.movingBytes)
		}
	}
	fits(waits, 99, true)
	fits(waits, 100, false)
	fits(moves, 998, true)
	fits(moves, 999, false)
	h.Grow(waits, 99)
	fits(moves, 1, false)
	h.Grow(waits, -99)
	fits(moves, 1, true)
}
