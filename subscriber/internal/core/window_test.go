package core

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

func windowOf(size int, ordered bool) Config {
	return Config{
		MaxInFlight: size, MaxBytes: int64(100 * size), MaxUnconfirmed: 10 * size, Ordered: ordered,
		Recent: 1000, RecentFor: time.Hour, MaxHeld: 100,
	}
}

// small returns message n of a tenant and key.
func small(n int, tenant, key string) *Message {
	return &Message{Tenant: tenant, Key: key, IDs: []ID{numberedID(n)}, Family: uint64(n), Bytes: 1}
}

// goesOn has messages of other keys of a tenant acked while time passes, as many as fit, up to twenty at a time.
func (h *byHand) goesOn(r *Route, tenant string, d time.Duration) {
	h.Helper()
	for end := h.now + d; h.now < end; {
		var open []*Message
		for len(open) < 20 {
			h.goods++
			m := small(1_000_000+h.goods, tenant, fmt.Sprint("good ", h.goods))
			if h.Take(h.now, m) != Opened {
				break
			}
			h.do()
			open = append(open, m)
		}
		h.pass(stall / 4)
		for _, m := range open {
			h.settles(r, m, Acked)
		}
		h.confirmed()
	}
}

// With a window of one message there is never a second one in a handler, but one that is nacked, or whose payload cannot
// be fetched, makes room.
func TestWindowOfOne(t *testing.T) {
	h := newByHand(t, windowOf(1, false))
	r := h.add(everything)
	h.connects()
	first, second := small(1, "t", "1"), small(2, "t", "2")
	h.takes(Opened, first)
	h.takes(Full, second)
	h.pass(time.Hour)
	h.takes(Full, second)
	h.settles(r, first, Nacked)
	h.takes(Opened, second)
	h.settles(r, second, Acked)
	h.pass(time.Second)
	h.settles(r, first, Acked)
	h.confirmed()
	third := small(3, "t", "3")
	third.Fetching = true
	h.takes(Opened, third)
	h.takes(Full, small(4, "t", "4"))
	h.Unfetched(h.now, third)
	h.do()
	h.takes(Opened, small(4, "t", "4"))
}

// A route beside the others changes nothing for them: a route alone that is slow goes on, and in an outage it has half of the window.
func TestRouteBesideTheOthers(t *testing.T) {
	h := newByHand(t, windowOf(100, true))
	isRecord := func(m *Message) bool { return m.Tenant == "record" }
	beside := h.AddBeside(h.now, isRecord)
	r := h.add(func(m *Message) bool { return !isRecord(m) })
	h.connects()
	var open []*Message
	n := 0
	take := func() {
		n++
		open = append(open, small(n, "t", "k"))
		h.takes(Opened, open[len(open)-1])
	}
	pass := func(d time.Duration) { // in which records go on
		for end := h.now + d; h.now < end; h.pass(20 * time.Millisecond) {
			n++
			record := small(n, "record", "")
			h.takes(Opened, record)
			h.Take(h.now, small(1_000_000+n, "t", "k")) // which finds no room, or is left
			h.settles(beside, record, Acked)
			h.confirmed()
		}
	}
	for range 99 {
		take()
	}
	for range 150 {
		pass(20 * time.Millisecond)
		h.settles(r, open[0], Acked)
		h.confirmed()
		open = open[1:]
		take()
	}
	if r.open != 99 || h.Counts().Left > 0 {
		t.Fatalf("a route that goes on has %d of 99", r.open)
	}
	pass(3 * time.Second)
	if waiting := h.Counts().Waiting; r.open != 50 || waiting > 0 {
		t.Errorf("%d of 99 are kept in an outage, want half of the window; %d wait, want none: nothing goes on", r.open, waiting)
	}
}

// What a route beside the others hangs with makes room for them, and comes again soon once that goes on.
func TestRouteBesideTheOthersHangs(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		for _, size := range []int{1, 20} {
			h := newByHand(t, windowOf(size, ordered))
			isRecord := func(m *Message) bool { return m.Tenant == "" }
			beside := h.AddBeside(h.now, isRecord)
			r := h.add(func(m *Message) bool { return !isRecord(m) })
			h.connects()
			good := small(1000, "t", "k")
			for n := range size {
				h.takes(Opened, small(n+1, "", ""))
			}
			h.takes(Full, good)
			h.pass(2 * stall)
			h.acks(r, good)
			h.confirmed()
			for n := size; h.Counts().Left == 0; n++ {
				if h.Take(h.now, small(n+1, "", "")) == Full {
					h.pass(time.Second)
				}
				h.do()
			}
			for beside.open > 0 {
				h.settles(beside, beside.first.first.first.Message, Acked)
				h.confirmed()
			}
			if h.pass(reconnectEvery) != 1 {
				t.Errorf("ordered: %t, window of %d: what was left is not asked for", ordered, size)
			}
		}
	}
}

// What a route beside the others leaves and acks says nothing about their pace.
func TestRouteBesideTheOthersSetsNoPace(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		h := newByHand(t, windowOf(20, true))
		isRecord := func(m *Message) bool { return m.Tenant == "" }
		beside := h.AddBeside(h.now, isRecord)
		r := h.add(func(m *Message) bool { return !isRecord(m) })
		h.connects()
		fills := r // and what it does not ack at once is left in vain
		tenant, want := "t", 4*stall
		if hangs {
			fills, tenant, want = beside, "", stall
		}
		first := small(1, tenant, "")
		h.takes(Opened, first)
		for n := 2; h.Counts().Left == 0; n++ {
			if h.Take(h.now, small(n, tenant, "")) == Full {
				h.pass(stall)
			}
			h.do()
		}
		quick, slow := small(1000, "", ""), small(1001, "t", "k")
		if !hangs {
			h.acks(beside, quick)
			slow = first
		} else {
			h.takes(Opened, slow)
		}
		h.pass(stall / 2)
		h.settles(r, slow, Acked)
		h.connects()
		if got := h.window.tempo.patience; got != want {
			t.Errorf("what %s has is late after %s, want %s", fills.Name, got, want)
		}
	}
}

// Keys of which nothing is finished for a second keep a quarter of a full window together, each an equal share, beside
// what goes on. What comes later of them is left as well until the next connection, which brings all of it.
func TestStalledKeysShareAQuarter(t *testing.T) {
	for _, c := range []struct{ stalled, keeps []int }{
		{[]int{90}, []int{25}}, {[]int{60, 30}, []int{12, 12}}, {[]int{80, 10}, []int{12, 10}},
	} {
		t.Run(fmt.Sprint(c.stalled), func(t *testing.T) {
			h := newByHand(t, windowOf(100, true))
			r := h.add(everything)
			h.connects()
			number := 0
			for i, n := range c.stalled {
				for range n {
					number++
					h.takes(Opened, small(number, "t", fmt.Sprint(i)))
				}
			}
			h.goesOn(r, "t", 4*time.Second)
			for i, keeps := range c.keeps {
				if got := len(h.itemsOf(r, fmt.Sprint(i))); got != keeps {
					t.Errorf("key %d keeps %d, want %d", i, got, keeps)
				}
			}
			h.takes(LeftWithService, small(1001, "t", "0"))
			h.takes(Opened, small(1002, "t", "another key"))
			if h.reconnects > 0 {
				t.Error("it is reconnected although nothing gets on")
			}
			for range c.keeps[0] {
				h.settles(r, h.itemsOf(r, "0")[0].Message, Acked)
			}
			h.confirmed()
			h.pass(reconnectEvery)
			if h.reconnects != 1 {
				t.Errorf("%d reconnects when the key has got on, want 1", h.reconnects)
			}
			h.connects()
			h.takes(Opened, small(1001, "t", "0"))
		})
	}
}

// A key of which everything was left has not got on: it is no reason to open the stream again.
func TestKeysOfWhichAllIsLeft(t *testing.T) {
	h := newByHand(t, windowOf(100, true))
	r := h.add(everything)
	h.connects()
	h.takes(Opened, small(1000, "t", "hangs")) // so that the tenant is known to go on
	h.goesOn(r, "t", time.Second)
	for i := range 150 {
		m := small(i+1, "t", fmt.Sprint(i))
		h.takes(Opened, m)
		h.settles(r, m, Nacked)
	}
	for range 20 {
		h.goesOn(r, "t", time.Second)
		for _, it := range slices.Clone(h.handed) {
			if it.Nacks > 0 {
				h.settles(r, it.Message, Nacked)
			}
		}
	}
	if h.reconnects > 0 || h.Counts().Left == 0 {
		t.Errorf("%d reconnects, %d are left", h.reconnects, h.Counts().Left)
	}
}

// itemsOf returns what is open of a key.
func (h *byHand) itemsOf(r *Route, key string) (items []*Item) {
	if l := r.lanes[key]; l != nil {
		items = slices.AppendSeq(items, l.Items)
	}
	return items
}

// The stream is opened again for what was left every four seconds at most, once for all of it. What is asked for before it
// has been opened for another reason comes with that.
func TestReconnectsForWhatWasLeft(t *testing.T) {
	h := newByHand(t, Config{})
	h.connects()
	const seconds = 60
	for range seconds {
		h.Want(h.now)
		h.Want(h.now)
		if asked := h.reconnects; h.pass(time.Second) > asked {
			h.connects()
		}
	}
	if h.reconnects > seconds/4 || h.reconnects < seconds/5 {
		t.Errorf("%d reconnects in %d seconds", h.reconnects, seconds)
	}
	before := h.reconnects
	h.Disconnected(h.now)
	h.Want(h.now)
	h.connects()
	if h.pass(time.Hour); h.reconnects > before {
		t.Error("reconnected although everything has come")
	}
}

// What does not fit at all while it waits is asked for again when it has been left for half a minute, twice as long each
// time in the same fault, whatever was in the faults before.
func TestRecallByTheClock(t *testing.T) {
	cfg := windowOf(20, true)
	cfg.MaxBytes = 10
	h := newByHand(t, cfg)
	r := h.add(everything)
	h.connects()
	for fault := range 3 {
		large := func() *Message {
			m := small(fault+1, "t", "k")
			m.Bytes = 10
			return m
		}
		h.pass(time.Hour) // nothing ails
		began := h.reconnects
		for _, minutes := range []float64{0.5, 1, 2, 4, 8, 8} {
			want := time.Duration(minutes * float64(time.Minute))
			m := large()
			h.takes(Opened, m)
			h.settles(r, m, Nacked)
			for h.Counts().Left == 0 {
				h.pass(reviewEvery)
			}
			asked := h.reconnects
			if h.pass(want-time.Second) > asked {
				t.Fatalf("it is asked for before %s, after %d times", want, asked-began)
			}
			if h.pass(2*time.Second) == asked {
				t.Fatalf("it is not asked for after %s, after %d times", want, asked-began)
			}
			h.Disconnected(h.now)
			h.pass(time.Hour) // which says nothing about the fault
			h.connects()
		}
		h.acks(r, large())
		h.confirmed()
	}
}

// What the service never delivers again is not left.
func TestWhatDoesNotComeAgainIsNotLeft(t *testing.T) {
	h := newByHand(t, windowOf(20, true))
	r := h.add(everything)
	h.connects()
	for i := range 18 {
		m := small(i+1, "t", "sick")
		if i%2 == 1 {
			m.IDs = nil
		}
		h.takes(Opened, m)
	}
	h.goesOn(r, "good", 3*time.Second)
	if got := len(h.itemsOf(r, "sick")); got != 10 { // one of the others is in its handler
		t.Errorf("%d are kept", got)
	}
	h.takes(Opened, &Message{Tenant: "t", Key: "sick"})
}

// When nothing goes on, what came first keeps half of the window, so that others can show whether it is an outage, and the
// stream is reconnected seldom.
func TestOutage(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		h := newByHand(t, windowOf(20, ordered))
		r := h.add(everything)
		h.connects()
		for i := range 20 {
			h.takes(Opened, small(i+1, fmt.Sprint("bad ", i%2), fmt.Sprint("key ", i%4)))
		}
		h.takes(Full, small(100, "good", "good"))
		h.pass(3 * time.Second)
		if ordered { // else all are in handlers
			if got := r.open; got > 10 || got < 8 {
				t.Errorf("%d are kept, want half of the window", got)
			}
			h.takes(LeftWithService, small(101, "bad 0", "key 0"))
		}
		h.acks(r, small(100, "good", "good"))
		if h.pass(time.Hour); h.reconnects > 10 {
			t.Errorf("ordered %v: %d reconnects in an hour", ordered, h.reconnects)
		}
	}
}

// Who has little beside another that has much keeps it.
func TestWhoHasLittleKeepsIt(t *testing.T) {
	h := newByHand(t, windowOf(100, true))
	r := h.add(everything)
	h.connects()
	for i := range 90 {
		h.takes(Opened, small(i+1, "much", fmt.Sprint("much ", i%10)))
	}
	for i := range 9 {
		h.takes(Opened, small(100+i, "little", fmt.Sprint("little ", i%3)))
	}
	h.goesOn(r, "good", 3*time.Second)
	if much, little := r.tenants["much"].open, r.tenants["little"].open; much > 13 || little != 9 {
		t.Errorf("who had 90 keeps %d, want 12; who had 9 keeps %d", much, little)
	}
	h.takes(Opened, small(200, "little", "little 0"))
	h.takes(LeftWithService, small(201, "much", "much 0"))
}

// The bytes of what waits are bounded: as many as may move, and the message that took the last room.
func TestBytesThatWaitAreBounded(t *testing.T) {
	for _, size := range []int64{100, 1000} {
		for _, others := range []time.Duration{0, stall / 4} { // before a review, and with reviews, while others go on
			h := newByHand(t, windowOf(10, false)) // of 1,000 bytes
			r := h.add(everything)
			h.connects()
			most := int64(0)
			for i := range 100 {
				m := small(i+1, fmt.Sprint("tenant ", i), "key")
				m.Bytes = size
				if h.Take(h.now, m) == Opened {
					h.do()
					h.settles(r, m, Nacked)
				}
				most = max(most, h.window.waitingBytes)
				h.goesOn(r, "good", others)
			}
			if most > 1000+size || most < 1000 && others == 0 || most < size {
				t.Errorf("up to %d bytes wait, each message has %d", most, size)
			}
		}
	}
}

// A message that hangs and does not fill the window keeps nobody else out, however large it is.
func TestLargeMessageThatHangsShutsNobodyElse(t *testing.T) {
	h := newByHand(t, windowOf(10, true)) // of 1,000 bytes
	r := h.add(everything)
	h.connects()
	large := func(n int, key string) *Message {
		m := small(n, "tenant", key)
		m.Bytes = 600
		return m
	}
	hangs, next := large(1, "hangs"), large(2, "good")
	h.takes(Opened, hangs)
	for waited := time.Duration(0); waited < 2*stall; waited += stall / 4 { // it is offered again
		h.takes(Full, next)
		if h.pass(stall / 4); h.window.moving == 0 {
			break
		}
	}
	h.acks(r, next)
}

// Tenants whose confirmations fail can fill the backlog before those of any other were confirmed: others come in
// nevertheless.
func TestFullBacklogOfTenantsThatFail(t *testing.T) {
	for _, most := range []int{10, 200} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			cfg := windowOf(100, true)
			cfg.MaxUnconfirmed = most
			h := newByHand(t, cfg)
			r := h.add(everything)
			h.connects()
			for i := range most {
				h.acks(r, small(i+1, fmt.Sprint("sick ", i%5), fmt.Sprint("sick ", i%5)))
			}
			good := small(1000, "good", "good")
			for range 12 { // it is offered again and again
				h.takes(Full, good)
				if h.pass(reviewEvery); h.window.hasRoom(good) {
					break
				}
			}
			h.acks(r, good)
		})
	}
}

// Few large messages of a tenant that hang fill the window as many small ones do: others come in, with an order and without.
func TestLargeMessagesThatHang(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint(ordered), func(t *testing.T) {
			cfg := windowOf(1000, ordered)
			cfg.MaxBytes = 1000
			h := newByHand(t, cfg)
			r := h.add(everything)
			h.connects()
			large := func(number int, tenant string) *Message {
				m := small(number, tenant, fmt.Sprint(tenant, number))
				m.Bytes = 100
				return m
			}
			for i := range 10 {
				h.takes(Opened, large(i+1, "sick"))
			}
			for i := range 100 {
				good := large(1000+i, "good")
				for range 12 { // it is offered again and again
					if taken := h.Take(h.now, good); taken == Opened {
						break
					}
					h.pass(reviewEvery)
				}
				h.do()
				h.settles(r, good, Acked)
				if m := large(100+i, "sick"); h.Take(h.now, m) == Full {
					t.Fatalf("there is no room after %d", i)
				}
				h.do()
			}
		})
	}
}

// A backlog of tenants, or keys, that fail in one of two routes can fill the window before anything of any other comes: others get on
// in that route nevertheless.
func TestFullWindowOfWhatFailsInARoute(t *testing.T) {
	for name, sickTenant := range map[string]func(int) string{
		"tenants": func(n int) string { return fmt.Sprint("sick ", n%2) }, "keys": func(int) string { return "good" },
	} {
		t.Run(name, func(t *testing.T) {
			h := newByHand(t, windowOf(100, true))
			a, b := h.add(everything), h.add(everything)
			h.connects()
			for i := range 100 {
				m := small(i+1, sickTenant(i), fmt.Sprint("sick ", i%2))
				h.takes(Opened, m)
				h.settles(b, m, Acked)
			}
			for range 8 {
				for _, it := range slices.Clone(h.handed) {
					h.settles(a, it.Message, Nacked)
				}
				h.goesOn(b, "other", reviewEvery)
			}
			good := small(1000, "good", "good")
			h.takes(Opened, good)
			h.settles(a, good, Acked)
		})
	}
}

// However many keys are shut, all of them are, few others, and what is remembered of them is bounded.
func TestManyShutKeys(t *testing.T) {
	const many = 100_000
	h := newByHand(t, windowOf(100, true))
	r := h.add(everything)
	before := heapInUse()
	for i := range many {
		h.window.shut.add(r.number, laneKind, fmt.Sprint(i))
	}
	if grown := heapInUse() - before; grown > 2<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
	wrong := 0
	for i := range many {
		h.takes(LeftWithService, small(i, "t", fmt.Sprint(i)))
		if h.window.shut.has(r.number, laneKind, fmt.Sprint("other ", i)) {
			wrong++
		}
	}
	if wrong > many/10_000 {
		t.Errorf("%d of %d others are shut", wrong, many)
	}
	if got := h.ledger.entries; got > 1010 {
		t.Errorf("%d of those that were left are remembered", got)
	}
	h.connects()
	h.takes(Opened, small(0, "t", "0"))
}

// heapInUse returns how much of the heap is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A tenant that was shut because its confirmations failed is open again as soon as they succeed, if nothing of it was left.
func TestShutWithoutAnythingLeft(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		cfg := windowOf(20, true)
		cfg.MaxUnconfirmed = 20
		h := newByHand(t, cfg)
		r := h.add(everything)
		h.connects()
		const sick = 15
		for n := range sick {
			m := small(n, "sick", fmt.Sprint(n))
			h.takes(Opened, m)
			h.settles(r, m, Acked)
		}
		fail := h.flying
		h.flying = nil
		h.goesOn(r, "well", 3*time.Second)
		shut := 0
		h.Shut(h.now, func(_ *Route, tenant string, _ int, since time.Duration) {
			if shut++; tenant != "sick" || h.now-since < 3*time.Second {
				t.Errorf("%s is shut, and has finished nothing for %s", tenant, h.now-since)
			}
		})
		if shut != 1 {
			t.Errorf("%d are shut, want 1", shut)
		}
		if leaves {
			h.takes(LeftWithService, small(sick, "sick", "0"))
		}
		h.flying = fail
		h.confirmed()
		want := Opened
		if leaves {
			want = LeftWithService
		}
		h.takes(want, small(sick+1, "sick", "0"))
		h.pass(reconnectEvery)
		if reconnects := h.reconnects > 0; reconnects != leaves {
			t.Errorf("something is left: %v; reconnects: %v", leaves, reconnects)
		}
	}
}
