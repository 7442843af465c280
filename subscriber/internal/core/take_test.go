package core

import (
	"testing"
	"time"
)

// What a route left that has ended comes again while another one still has it: there is nobody else who has to ack it.
func TestLeftByRouteThatEndedAndOpenForAnother(t *testing.T) {
	c := New(Config{MaxInFlight: 10, MaxBytes: 1000, MaxUnconfirmed: 1000, Recent: 1000, RecentFor: time.Hour})
	all := func(*Message) bool { return true }
	c.Add(0, "stays", all, false)
	ends, _ := c.Add(0, "ends", all, false)
	refuses, _ := c.Add(0, "refuses", all, false)
	event := func() *Message { return &Message{IDs: []ID{newID(1)}, Bytes: 1} }
	m := event()
	c.Take(ms, m)
	c.End(2*ms, ends)
	for _, it := range m.items {
		switch it.Lane.route {
		case ends:
			c.Done(3*ms, it, Left, 0)
		case refuses:
			c.Refuse(it, true)
			c.Done(3*ms, it, Acked, 0)
		}
	}
	if taken := c.Take(4*ms, event()); taken != Joined {
		t.Fatalf("what is open was taken as %d", taken)
	}
	c.Done(5*ms, m.items[0], Acked, 0)
	if len(m.Confirm) != 1 {
		t.Error("it is not to be confirmed, although all who want it have acked or refused it")
	}
}
