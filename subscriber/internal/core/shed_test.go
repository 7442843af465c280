package core

import (
	"cmp"
	"fmt"
	"testing"
	"time"
)

// scenario is something that is sick beside others that are not, from 10 s to 40 s.
type scenario struct {
	name      string
	tenants   int
	keys      int // of a tenant
	routes    int
	sick      func(tenant, key, number, route int) bool
	outcome   Outcome
	hangs     bool
	takes     time.Duration // instead of an outcome
	confirms  bool          // it is confirmations that fail
	heavy     bool          // the first tenant has 99 % of the load
	firstOnly bool          // what the first route does counts
	unordered bool
	share     float64 // of the healthy messages that are confirmed in time; zero for 0.9
}

const (
	faultFrom = 10 * time.Second
	faultTo   = 40 * time.Second
)

func (sc scenario) play(t testing.TB, fault bool, seed uint64) (healthy int, w *world) {
	w = newWorld(Config{MaxInFlight: 1000, MaxBytes: 1 << 30, MaxUnconfirmed: 2000, Ordered: !sc.unordered, Recent: 1 << 16, RecentFor: 10 * time.Minute}, seed)
	w.fault = func(problem string) { t.Fatalf("%s, seed %d: %s", sc.name, seed, problem) }
	number := make(map[*Route]int)
	for i := range sc.routes {
		number[w.addRoute(fmt.Sprint(i), func(*sent) bool { return true }, false).route] = i
	}
	tenants, keys := make([]string, sc.tenants), make([]string, sc.tenants*sc.keys)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("t%d", i)
	}
	for i := range keys {
		keys[i] = fmt.Sprintf("k%d", i)
	}
	where := make(map[*sent][2]int)
	during := func() bool { return fault && w.now >= faultFrom && w.now < faultTo }
	count := func(m *sent) {
		if !m.sick && m.at >= faultFrom+2*time.Second && m.at < faultTo-2*time.Second && w.now < faultTo {
			healthy++
		}
	}
	w.handle = func(it *Item, m *sent) work {
		r := it.Lane.Route()
		service := 2500*time.Microsecond + time.Duration(w.random.Int64N(int64(5*ms)))
		at := where[m]
		if during() && !sc.confirms && sc.sick(at[0], at[1], m.number, number[r]) {
			switch {
			case sc.takes > 0:
				return work{rest: sc.takes}
			case sc.hangs:
				return work{rest: faultTo - w.now + service}
			}
			return work{rest: service, outcome: sc.outcome}
		}
		if sc.firstOnly && number[r] == 0 {
			count(m)
		}
		return work{rest: service}
	}
	w.confirm = func(m *sent) bool { return !(during() && sc.confirms && m.sick) }
	if !sc.firstOnly {
		w.settled = count
	}
	var send func()
	send = func() {
		tenant := w.random.IntN(sc.tenants)
		if sc.heavy && w.random.IntN(100) > 0 {
			tenant = 0
		}
		key := tenant*sc.keys + w.random.IntN(sc.keys)
		m := w.send(&sent{tenant: tenants[tenant], key: keys[key]})
		where[m] = [2]int{tenant, key}
		if !sc.firstOnly {
			for i := range sc.routes {
				m.sick = m.sick || sc.sick(tenant, key, m.number, i)
			}
		}
		if w.now < 60*time.Second {
			w.after(ms, send)
		}
	}
	w.after(0, send)
	w.after(0, w.connect)
	w.run(100 * time.Second)
	return healthy, w
}

func scenarios() []scenario {
	first := func(tenant, _, _, _ int) bool { return tenant == 0 }
	of := func(n int) func(int, int, int, int) bool {
		return func(tenant, _, _, _ int) bool { return tenant < n }
	}
	all := func(int, int, int, int) bool { return true }
	return []scenario{
		{name: "a tenant of five fails", tenants: 5, keys: 20, routes: 1, sick: first, outcome: Nacked},
		{name: "a tenant of five hangs", tenants: 5, keys: 20, routes: 1, sick: first, hangs: true},
		{name: "three tenants of five hang", tenants: 5, keys: 20, routes: 1, sick: of(3), hangs: true},
		{name: "a key of one tenant hangs", tenants: 1, keys: 20, routes: 1, sick: func(_, key, _, _ int) bool { return key == 0 }, hangs: true},
		{name: "a key of one tenant fails", tenants: 1, keys: 20, routes: 1, sick: func(_, key, _, _ int) bool { return key == 0 }, outcome: Nacked},
		{name: "10,000 keys of a tenant hang", tenants: 5, keys: 10000, routes: 1, sick: first, hangs: true},
		{name: "10,000 keys of a tenant fail", tenants: 5, keys: 10000, routes: 1, sick: first, outcome: Nacked},
		{name: "100 of 1,000 tenants hang", tenants: 1000, keys: 3, routes: 1, sick: of(100), hangs: true},
		{name: "every tenth key hangs", tenants: 20, keys: 100, routes: 1, sick: func(_, key, _, _ int) bool { return key%10 == 0 }, hangs: true},
		{name: "nine of ten of the 1,000 keys of the only tenant hang", tenants: 1, keys: 1000, routes: 1, sick: func(_, key, _, _ int) bool { return key%10 > 0 }, hangs: true},
		{name: "nine of ten of the 10,000 keys of the only tenant fail", tenants: 1, keys: 10000, routes: 1, sick: func(_, key, _, _ int) bool { return key%10 > 0 }, outcome: Nacked},
		{name: "half of 20,000 tenants fail", tenants: 20000, keys: 1, routes: 1, sick: func(tenant, _, _, _ int) bool { return tenant%2 == 0 }, outcome: Nacked},
		{name: "a tenant takes 1 s", tenants: 5, keys: 20, routes: 1, sick: first, takes: time.Second},
		{name: "a tenant takes 200 ms", tenants: 5, keys: 20, routes: 1, sick: first, takes: 200 * ms},
		{name: "a tenant hangs in one of two routes", tenants: 5, keys: 20, routes: 2, sick: func(tenant, _, _, route int) bool { return route == 1 && tenant == 0 }, hangs: true},
		{name: "confirmations of a tenant fail", tenants: 5, keys: 20, routes: 1, sick: first, confirms: true},
		{name: "confirmations of three tenants of five fail", tenants: 5, keys: 20, routes: 1, sick: of(3), confirms: true},
		{name: "confirmations of 100 of 1,000 tenants fail", tenants: 1000, keys: 3, routes: 1, sick: of(100), confirms: true},
		{name: "confirmations of the tenant with most of the load fail", tenants: 5, keys: 20, routes: 1, sick: first, confirms: true, heavy: true},
		{name: "confirmations fail", tenants: 5, keys: 20, routes: 1, sick: all, confirms: true},
		{name: "the tenant with most of the load hangs", tenants: 5, keys: 20, routes: 1, sick: first, hangs: true, heavy: true},
		{name: "the tenant with most of the load fails", tenants: 5, keys: 20, routes: 1, sick: first, outcome: Nacked, heavy: true},
		{name: "the tenant with most of the load takes 200 ms", tenants: 5, keys: 20, routes: 1, sick: first, takes: 200 * ms, heavy: true},
		{name: "one of two routes takes 200 ms", tenants: 5, keys: 20, routes: 2, sick: func(_, _, _, route int) bool { return route == 1 }, takes: 200 * ms, firstOnly: true},
		{name: "one of two routes hangs", tenants: 5, keys: 20, routes: 2, sick: func(_, _, _, route int) bool { return route == 1 }, hangs: true, firstOnly: true},
		{name: "30 % of the messages of two tenants fail", tenants: 20, keys: 20, routes: 1, sick: func(tenant, _, number, _ int) bool { return tenant < 2 && number%10 < 3 }, outcome: Nacked},
		{name: "every 50th message fails", tenants: 20, keys: 50, routes: 1, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, outcome: Nacked, share: 0.7}, // what comes behind one of them waits
		{name: "everything hangs", tenants: 5, keys: 20, routes: 1, sick: all, hangs: true},
		{name: "everything fails", tenants: 5, keys: 20, routes: 1, sick: all, outcome: Nacked},
		{name: "a tenant of five fails, without an order", tenants: 5, keys: 20, routes: 1, sick: first, outcome: Nacked, unordered: true},
		{name: "a tenant of five hangs, without an order", tenants: 5, keys: 20, routes: 1, sick: first, hangs: true, unordered: true},
		{name: "every 50th message fails, without an order", tenants: 20, keys: 50, routes: 1, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, outcome: Nacked, unordered: true},
		{name: "every 50th message hangs, without an order", tenants: 20, keys: 50, routes: 1, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, hangs: true, unordered: true},
	}
}

func TestScenarios(t *testing.T) {
	for _, sc := range scenarios() {
		before, healthy := sc.play(t, false, 1)
		with, w := sc.play(t, true, 1)
		left := 0
		for _, m := range w.sent {
			if m.confirmed == 0 {
				left++
			}
		}
		share := 1.0
		if before > 0 {
			share = float64(with) / float64(before)
		}
		if least := cmp.Or(sc.share, 0.9); share < least {
			t.Errorf("%s: %.3f of the healthy messages are confirmed in time, want %.2f", sc.name, share, least)
		}
		t.Logf("%-60s share %.3f streams %2d read x %.2f open %4d left %d", sc.name, share, w.connects, float64(w.read)/float64(healthy.read), w.most, left)
	}
}

// When the stream is faster than all handlers together, they work nearly all the time: what they will soon have
// worked off is not left with the service.
func TestHandlersThatAreSlowerThanTheStream(t *testing.T) {
	for _, keys := range []int{2, 20} { // of each of five tenants
		takes := time.Duration(10*keys) * ms
		all := func(int, int, int, int) bool { return true }
		_, w := scenario{name: "all are slow", tenants: 5, keys: keys, routes: 1, sick: all, takes: takes}.play(t, true, 1)
		n := 0
		for _, m := range w.sent {
			if m.confirmed >= faultFrom && m.confirmed < faultTo {
				n++
			}
		}
		if could := int((faultTo - faultFrom) / takes * time.Duration(5*keys)); n < could*9/10 {
			t.Errorf("%d keys: %d messages are handled in the time for %d", 5*keys, n, could)
		}
	}
}

// What has come just now is to blame for nothing, however full the window is: after a pause, a burst is read once, and nothing
// of it left with the service.
func TestBurst(t *testing.T) {
	w := newWorld(Config{MaxInFlight: 80, MaxBytes: 1 << 20, MaxUnconfirmed: 100, Ordered: true, Recent: 1000, RecentFor: time.Hour}, 1)
	w.fault = func(problem string) { t.Fatal(problem) }
	w.addRoute("0", func(*sent) bool { return true }, false)
	w.handle = func(*Item, *sent) work { return work{rest: 600 * ms} }
	w.after(0, w.connect)
	w.run(10 * time.Second)
	for n := range 300 {
		w.send(&sent{tenant: fmt.Sprintf("t%d", n%5), key: fmt.Sprintf("k%d", n%40)})
	}
	w.run(30 * time.Second)
	if w.read != len(w.sent) || w.connects != 1 {
		t.Errorf("%d messages were read %d times, on %d streams", len(w.sent), w.read, w.connects)
	}
}

// slowRoute is a route that is slower than the stream.
type slowRoute struct {
	name         string
	keys, routes int
	takes        time.Duration // a message, more or less
	consumer     bool          // one for all keys, else one for each
	inTurn       bool          // a key comes after the other
}

// play has it work off n messages that are there when it starts, and returns how often one was read, and when the last one
// was confirmed.
func (s slowRoute) play(t *testing.T, n, window int) (read float64, last time.Duration) {
	w := newWorld(Config{MaxInFlight: window, MaxBytes: 1 << 30, MaxUnconfirmed: 2 * n, Ordered: true, Recent: 1 << 16, RecentFor: time.Hour}, 1)
	w.fault = func(problem string) { t.Fatal(problem) }
	for i := range s.routes {
		w.addRoute(fmt.Sprint(i), func(*sent) bool { return true }, false)
	}
	free := make(map[*Route]time.Duration) // when the consumer is
	w.handle = func(it *Item, m *sent) work {
		takes := s.takes/2 + s.takes*time.Duration(m.number%64)/63
		if !s.consumer {
			return work{rest: takes}
		}
		r := it.Lane.Route()
		free[r] = max(free[r], w.now) + takes
		return work{rest: free[r] - w.now}
	}
	for i := range n {
		w.send(&sent{tenant: fmt.Sprint(i % 3), key: fmt.Sprint(i%3, " ", w.random.IntN(s.keys))})
	}
	w.after(0, w.connect)
	w.run(3 * time.Duration(n) * s.takes)
	for _, m := range w.sent {
		if m.confirmed == 0 {
			t.Fatalf("%s: %d is not confirmed", s.name, m.number)
		}
		last = max(last, m.confirmed)
	}
	return float64(w.read) / float64(n), last
}

// A backlog that handlers are slower than is read a few times until that is known, however long it takes, and they are not idle
// meanwhile.
func TestBacklogOfASlowRoute(t *testing.T) {
	for _, s := range []slowRoute{
		{"a consumer of one key", 1, 1, 10 * ms, true, false},
		{"a consumer of few keys", 10, 1, 10 * ms, true, false},
		{"a consumer of keys in turn", 10, 1, 10 * ms, true, true},
		{"a consumer of many keys", 5000, 1, 10 * ms, true, false},
		{"a very slow consumer", 1, 1, 50 * ms, true, false},
		{"few keys", 7, 1, 200 * ms, false, false},
		{"many keys", 60, 1, 2 * time.Second, false, false},
		{"two routes", 10, 2, 100 * ms, false, false},
	} {
		const n = 6000
		_, could := s.play(t, n, n)
		read, last := s.play(t, n, 500)
		t.Logf("%-25s read x %.2f, in %.0f s of %.0f s", s.name, read, last.Seconds(), could.Seconds())
		if read > 4 {
			t.Errorf("%s: each message is read %.1f times", s.name, read)
		}
		if last > could+3*(reconnectEvery+2*reviewEvery) { // each time that patience grows
			t.Errorf("%s: it took %s; handlers need %s", s.name, last, could)
		}
	}
}
