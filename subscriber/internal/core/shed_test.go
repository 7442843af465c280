package core

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"
)

// load is what is sent, a message each millisecond, and to how many routes.
type load struct {
	tenants   int
	keys      int // of a tenant
	routes    int
	heavy     bool // the first tenant has 99 % of the load
	unordered bool
}

// scenario is something that is sick beside others that are not, from 10 s to 40 s.
type scenario struct {
	name string
	load
	sick      func(tenant, key, number, route int) bool
	outcome   Outcome
	hangs     bool
	takes     time.Duration // instead of an outcome
	confirms  bool          // it is confirmations that fail
	firstOnly bool          // what the first route does counts
	share     float64       // of the healthy messages that are confirmed in time; zero for 0.9
}

const (
	faultFrom = 10 * time.Second
	faultTo   = 40 * time.Second
)

// played is what became of a load, message by message.
type played struct {
	where                [][2]int        // its tenant and key
	at, confirmed, first []time.Duration // when it was sent, when confirmed, and when the first route had handled it; zero for never
	connects, read, most int
}

// play plays the load until the fault of sc ends; all is well without one.
func (l load) play(t testing.TB, sc *scenario, seed uint64) *played {
	w := newWorld(Config{MaxInFlight: 1000, MaxBytes: 1 << 30, MaxUnconfirmed: 2000, Ordered: !l.unordered, Recent: 1 << 16, RecentFor: 10 * time.Minute}, seed)
	w.fault = func(problem string) { t.Fatalf("seed %d: %s", seed, problem) }
	for i := range l.routes {
		w.addRoute(fmt.Sprint(i), func(*sent) bool { return true }, false)
	}
	tenants, keys := make([]string, l.tenants), make([]string, l.tenants*l.keys)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("t%d", i)
	}
	for i := range keys {
		keys[i] = fmt.Sprintf("k%d", i)
	}
	p := &played{}
	during := func() bool { return sc != nil && w.now >= faultFrom && w.now < faultTo }
	w.handle = func(it *Item, m *sent) work {
		route := it.Lane.Route.Owner.(*taker).number()
		service := 2500*time.Microsecond + time.Duration(w.random.Int64N(int64(5*ms)))
		switch ill := during() && !sc.confirms && sc.ails(p.where[m.number], m.number, route); {
		case ill && sc.takes > 0:
			return work{rest: sc.takes}
		case ill && sc.hangs:
			return work{rest: faultTo - w.now + service}
		case ill:
			return work{rest: service, outcome: sc.outcome}
		case route == 0 && p.first[m.number] == 0:
			p.first[m.number] = w.now
		}
		return work{rest: service}
	}
	w.confirm = func(m *sent) bool {
		return !during() || !sc.confirms || !sc.ails(p.where[m.number], m.number, anyRoute)
	}
	w.settled = func(m *sent) { p.confirmed[m.number] = w.now }
	var send func()
	send = func() {
		tenant := w.random.IntN(l.tenants)
		if l.heavy && w.random.IntN(100) > 0 {
			tenant = 0
		}
		key := tenant*l.keys + w.random.IntN(l.keys)
		p.where, p.at = append(p.where, [2]int{tenant, key}), append(p.at, w.now)
		p.confirmed, p.first = append(p.confirmed, 0), append(p.first, 0)
		w.send(&sent{tenant: tenants[tenant], key: keys[key]})
		w.after(ms, send)
	}
	w.after(0, send)
	w.after(0, w.connect)
	w.run(faultTo)
	p.connects, p.read, p.most = w.connects, w.read, w.most
	return p
}

const anyRoute = -1

// ails reports whether a message of a tenant and key is sick in a route.
func (sc *scenario) ails(where [2]int, number, route int) bool {
	for r := range sc.routes {
		if (route == anyRoute || route == r) && sc.sick(where[0], where[1], number, r) {
			return true
		}
	}
	return false
}

// healthy returns how many of the messages that nothing of sc ails were done in its time.
func (p *played) healthy(sc *scenario) (n int) {
	done, route := p.confirmed, anyRoute
	if sc.firstOnly {
		done, route = p.first, 0
	}
	for i, at := range p.at {
		if done[i] != 0 && at >= faultFrom+2*time.Second && at < faultTo-2*time.Second && !sc.ails(p.where[i], i, route) {
			n++
		}
	}
	return n
}

func scenarios() []scenario {
	first := func(tenant, _, _, _ int) bool { return tenant == 0 }
	of := func(n int) func(int, int, int, int) bool {
		return func(tenant, _, _, _ int) bool { return tenant < n }
	}
	all := func(int, int, int, int) bool { return true }
	return []scenario{
		{name: "a tenant of five fails", load: load{tenants: 5, keys: 20, routes: 1}, sick: first, outcome: Nacked},
		{name: "a tenant of five hangs", load: load{tenants: 5, keys: 20, routes: 1}, sick: first, hangs: true},
		{name: "three tenants of five hang", load: load{tenants: 5, keys: 20, routes: 1}, sick: of(3), hangs: true},
		{name: "a key of one tenant hangs", load: load{tenants: 1, keys: 20, routes: 1}, sick: func(_, key, _, _ int) bool { return key == 0 }, hangs: true},
		{name: "a key of one tenant fails", load: load{tenants: 1, keys: 20, routes: 1}, sick: func(_, key, _, _ int) bool { return key == 0 }, outcome: Nacked},
		{name: "10,000 keys of a tenant hang", load: load{tenants: 5, keys: 10000, routes: 1}, sick: first, hangs: true},
		{name: "10,000 keys of a tenant fail", load: load{tenants: 5, keys: 10000, routes: 1}, sick: first, outcome: Nacked},
		{name: "100 of 1,000 tenants hang", load: load{tenants: 1000, keys: 3, routes: 1}, sick: of(100), hangs: true},
		{name: "every tenth key hangs", load: load{tenants: 20, keys: 100, routes: 1}, sick: func(_, key, _, _ int) bool { return key%10 == 0 }, hangs: true},
		{name: "nine of ten of the 1,000 keys of the only tenant hang", load: load{tenants: 1, keys: 1000, routes: 1}, sick: func(_, key, _, _ int) bool { return key%10 > 0 }, hangs: true},
		{name: "nine of ten of the 10,000 keys of the only tenant fail", load: load{tenants: 1, keys: 10000, routes: 1}, sick: func(_, key, _, _ int) bool { return key%10 > 0 }, outcome: Nacked},
		{name: "half of 20,000 tenants fail", load: load{tenants: 20000, keys: 1, routes: 1}, sick: func(tenant, _, _, _ int) bool { return tenant%2 == 0 }, outcome: Nacked},
		{name: "a tenant takes 1 s", load: load{tenants: 5, keys: 20, routes: 1}, sick: first, takes: time.Second},
		{name: "a tenant takes 200 ms", load: load{tenants: 5, keys: 20, routes: 1}, sick: first, takes: 200 * ms},
		{name: "a tenant hangs in one of two routes", load: load{tenants: 5, keys: 20, routes: 2}, sick: func(tenant, _, _, route int) bool { return route == 1 && tenant == 0 }, hangs: true},
		{name: "confirmations of a tenant fail", load: load{tenants: 5, keys: 20, routes: 1}, sick: first, confirms: true},
		{name: "confirmations of three tenants of five fail", load: load{tenants: 5, keys: 20, routes: 1}, sick: of(3), confirms: true},
		{name: "confirmations of 100 of 1,000 tenants fail", load: load{tenants: 1000, keys: 3, routes: 1}, sick: of(100), confirms: true},
		{name: "confirmations of the tenant with most of the load fail", load: load{tenants: 5, keys: 20, routes: 1, heavy: true}, sick: first, confirms: true},
		{name: "confirmations fail", load: load{tenants: 5, keys: 20, routes: 1}, sick: all, confirms: true},
		{name: "the tenant with most of the load hangs", load: load{tenants: 5, keys: 20, routes: 1, heavy: true}, sick: first, hangs: true},
		{name: "the tenant with most of the load fails", load: load{tenants: 5, keys: 20, routes: 1, heavy: true}, sick: first, outcome: Nacked},
		{name: "the tenant with most of the load takes 200 ms", load: load{tenants: 5, keys: 20, routes: 1, heavy: true}, sick: first, takes: 200 * ms},
		{name: "one of two routes takes 200 ms", load: load{tenants: 5, keys: 20, routes: 2}, sick: func(_, _, _, route int) bool { return route == 1 }, takes: 200 * ms, firstOnly: true},
		{name: "one of two routes hangs", load: load{tenants: 5, keys: 20, routes: 2}, sick: func(_, _, _, route int) bool { return route == 1 }, hangs: true, firstOnly: true},
		{name: "30 % of the messages of two tenants fail", load: load{tenants: 20, keys: 20, routes: 1}, sick: func(tenant, _, number, _ int) bool { return tenant < 2 && number%10 < 3 }, outcome: Nacked},
		{name: "every 50th message fails", load: load{tenants: 20, keys: 50, routes: 1}, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, outcome: Nacked, share: 0.7}, // what comes behind one of them waits
		{name: "everything hangs", load: load{tenants: 5, keys: 20, routes: 1}, sick: all, hangs: true},
		{name: "everything fails", load: load{tenants: 5, keys: 20, routes: 1}, sick: all, outcome: Nacked},
		{name: "a tenant of five fails, without an order", load: load{tenants: 5, keys: 20, routes: 1, unordered: true}, sick: first, outcome: Nacked},
		{name: "a tenant of five hangs, without an order", load: load{tenants: 5, keys: 20, routes: 1, unordered: true}, sick: first, hangs: true},
		{name: "every 50th message fails, without an order", load: load{tenants: 20, keys: 50, routes: 1, unordered: true}, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, outcome: Nacked},
		{name: "every 50th message hangs, without an order", load: load{tenants: 20, keys: 50, routes: 1, unordered: true}, sick: func(_, _, number, _ int) bool { return number%50 == 0 }, hangs: true},
	}
}

func TestScenarios(t *testing.T) {
	var mu sync.Mutex
	well := make(map[load]*played)
	wellOf := func(t *testing.T, l load) *played {
		mu.Lock()
		defer mu.Unlock()
		if well[l] == nil {
			well[l] = l.play(t, nil, 1)
		}
		return well[l]
	}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			before, with := wellOf(t, sc.load), sc.play(t, &sc, 1)
			share := float64(with.healthy(&sc)) / float64(max(1, before.healthy(&sc)))
			t.Logf("share %.3f streams %2d read x %.2f open %4d", share, with.connects, float64(with.read)/float64(before.read), with.most)
			if least := cmp.Or(sc.share, 0.9); share < least && before.healthy(&sc) > 0 {
				t.Errorf("%.3f of the healthy messages are confirmed in time, want %.2f", share, least)
			}
		})
	}
}

// When the stream is faster than all handlers together, they work nearly all the time: what they will soon have
// worked off is not left with the service.
func TestHandlersThatAreSlowerThanTheStream(t *testing.T) {
	for _, keys := range []int{2, 20} { // of each of five tenants
		takes := time.Duration(10*keys) * ms
		all := func(int, int, int, int) bool { return true }
		l := load{tenants: 5, keys: keys, routes: 1}
		n := 0
		for _, at := range l.play(t, &scenario{load: l, sick: all, takes: takes}, 1).confirmed {
			if at >= faultFrom {
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
		r := it.Lane.Route
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
