package core

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

// program is a random program: what is sent, what is sick, and for how long.
type program struct {
	*world
	t        testing.TB
	seed     uint64
	messages int
	types    []string
	from, to time.Duration // of what is sick
	faults   []sickness
	faulty   bool
	healthy  int
}

// sickness is what is sick: everything that matches.
type sickness struct {
	kind   sickKind
	tenant string // or any
	key    string
	route  int // or -1
	every  int // or 1: each message
	takes  time.Duration
}

type sickKind int

const (
	fails sickKind = iota
	hangs
	slow
	gives
	unfetched
	lost
	unconfirmable
	sickKinds
)

func (s sickness) of(m *sent, route int) bool {
	return (s.tenant == "" || s.tenant == m.tenant) && (s.key == "" || s.key == m.key) && (s.route < 0 || route < 0 || s.route == route) &&
		m.number%s.every == 0
}

// sickNow returns what ails m in the route now.
func (p *program) sickNow(m *sent, route int, kinds ...sickKind) *sickness {
	if !p.faulty || p.now < p.from || p.now >= p.to {
		return nil
	}
	for i := range p.faults {
		if s := &p.faults[i]; slices.Contains(kinds, s.kind) && s.of(m, route) {
			return s
		}
	}
	return nil
}

func newProgram(t testing.TB, seed uint64, faulty bool) *program {
	windows := []int{8, 16, 50, 200, 1000}
	p := &program{t: t, seed: seed, faulty: faulty}
	w := newWorld(Config{}, seed)
	p.world = w
	r := w.random
	window := windows[r.IntN(len(windows))]
	w.core = New(Config{
		MaxInFlight: window, MaxBytes: int64(100 * window), MaxUnconfirmed: 10 * window, Ordered: r.IntN(5) > 0, Recent: 1 << 14, RecentFor: time.Hour,
		Hold: time.Minute, HoldWhole: 2 * time.Second, MaxHeld: []int{5, 100, 1000}[r.IntN(3)],
	})
	w.fault = func(problem string) {
		t.Errorf("seed %d: %s", seed, problem)
		for _, line := range p.trace[max(0, len(p.trace)-4000):] {
			t.Log(line)
		}
		t.FailNow()
	}
	return p
}

// setUp decides what happens.
func (p *program) setUp() {
	r := p.random
	p.messages = 200 + r.IntN(400)
	p.types = []string{"a", "b", "held"}
	routes := 1 + r.IntN(3)
	for i := range routes {
		p.addRoute(i)
	}
	tenants, keys := 1+r.IntN(6), 1+r.IntN(8)
	p.from = time.Duration(1+r.IntN(5)) * time.Second
	p.to = p.from + time.Duration(1+r.IntN(30))*time.Second
	for range r.IntN(4) {
		s := sickness{kind: sickKind(r.IntN(int(sickKinds))), route: -1, every: 1, takes: time.Duration(50+r.IntN(2000)) * ms}
		if r.IntN(4) > 0 {
			s.tenant = fmt.Sprint("t", r.IntN(tenants))
		}
		if r.IntN(3) == 0 {
			s.key = fmt.Sprint(s.tenant, "k", r.IntN(keys))
		}
		if r.IntN(3) == 0 {
			s.route = r.IntN(routes)
		}
		if r.IntN(3) == 0 {
			s.every = 2 + r.IntN(20)
		}
		p.faults = append(p.faults, s)
	}
	p.handle = p.handler
	p.fetches = func(m *sent) bool { return r.IntN(4) == 0 || p.sickNow(m, -1, unfetched, lost) != nil }
	p.fetch = p.download
	p.confirm = func(m *sent) bool { return p.sickNow(m, -1, unconfirmable) == nil }
	gap := time.Duration(1+r.IntN(40)) * ms
	var send func()
	send = func() {
		tenant := fmt.Sprint("t", r.IntN(tenants))
		key := fmt.Sprint(tenant, "k", r.IntN(keys))
		kind := p.types[r.IntN(len(p.types))]
		if r.IntN(8) == 0 {
			p.sendFile(tenant, key, kind)
		} else {
			p.sendOne(tenant, key, kind)
		}
		if len(p.sent) < p.messages {
			p.after(gap, send)
		}
	}
	p.after(0, send)
	p.after(0, p.connect)
	for range r.IntN(4) { // cuts
		p.after(time.Duration(r.IntN(20_000))*ms, func() {
			p.say("cut")
			p.connection++
			p.core.Disconnected(p.now)
			p.after(time.Duration(r.IntN(2000))*ms, p.connect)
		})
	}
	if r.IntN(3) == 0 { // a route ends, and another one comes
		p.after(time.Duration(r.IntN(20_000))*ms, func() {
			ended := p.routes[len(p.routes)-1]
			p.routes = p.routes[:len(p.routes)-1]
			p.say("route %s ends", ended.Name)
			p.core.End(p.now, ended)
			p.do()
			p.after(time.Duration(r.IntN(3000))*ms, func() {
				p.addRoute(routes)
				p.say("a route is added")
				p.core.Want(p.now)
				p.do()
			})
		})
	}
}

func (p *program) addRoute(i int) {
	all := i == 0 || len(p.routes) == 0 || p.random.IntN(2) == 0
	r, _ := p.core.Add(p.now, fmt.Sprint(i), func(m *Message) bool { return all || p.byEvent(m).kind == "a" }, false)
	p.routes = append(p.routes, r)
}

func (p *program) sendOne(tenant, key, kind string) *sent {
	m := p.send(tenant, key)
	m.kind = kind
	p.say("sent %d, %s, %s", m.number, m.key, kind)
	return m
}

func (p *program) sendFile(tenant, key, kind string) {
	n := 2 + p.random.IntN(4)
	var parts []*sent
	for range n {
		m := p.sendOne(tenant, key, kind)
		m.part = true
		parts = append(parts, m)
	}
	for _, m := range parts {
		m.payload = parts[0].number
	}
	p.after(time.Duration(p.random.IntN(1500))*ms, func() {
		f := p.sendOne(tenant, key, kind)
		f.parts = parts
		for _, part := range parts {
			part.files = append(part.files, f)
		}
		p.say("file %d of %d to %d", f.number, parts[0].number, parts[n-1].number)
	})
}

func (p *program) handler(r *Route, m *sent) (time.Duration, Outcome) {
	p.checkOrder(r, m)
	service := time.Duration(1+p.random.IntN(10)) * ms
	number := int(r.Name[0] - '0')
	p.say("route %s gets %d", r.Name, m.number)
	s := p.sickNow(m, number, fails, hangs, slow, gives)
	if s == nil {
		return service, Acked
	}
	switch s.kind {
	case fails:
		return service, Nacked
	case hangs:
		return p.to - p.now + service, Acked
	case slow:
		return s.takes, Acked
	}
	p.stepped[m] = true
	return service, Left
}

// checkOrder reports it when an earlier message of the key, which r has to get as well, is not acked.
func (p *program) checkOrder(r *Route, m *sent) {
	if !r.ordered {
		return
	}
	for _, other := range p.sent[:m.number] {
		if other.key != m.key || other.confirmed != 0 || p.stepped[other] || other.part || len(other.parts) > 0 || other.kind == "held" {
			continue
		}
		if m.part || len(m.parts) > 0 || m.kind == "held" {
			continue
		}
		if at, got := p.came[opening{other, r}]; got && at < p.came[opening{m, r}] && !slices.Contains(other.acked, r) {
			p.fault(fmt.Sprintf("%d overtakes %d in route %s", m.number, other.number, r.Name))
		}
	}
}

// download fetches the payload of m.
func (p *program) download(m *sent, event *Message) {
	took := time.Duration(1+p.random.IntN(100)) * ms
	s := p.sickNow(m, -1, unfetched, lost)
	p.say("fetching %d: %v", m.number, s)
	switch {
	case s == nil:
		p.after(took, func() {
			p.core.Fetched(p.now, event)
			p.do()
		})
	case s.kind == lost:
		p.stepped[m] = true
		p.after(took, func() {
			p.core.Lost(p.now, event)
			p.do()
		})
	default:
		p.after(took, func() {
			p.core.Unfetched(p.now, event)
			p.do()
		})
		p.after(p.to-p.now, func() {
			p.core.Fetched(p.now, event)
			p.do()
		})
	}
}

// finish runs the program to its end and checks what there is then.
func (p *program) finish() {
	p.setUp()
	for until := p.to; ; until += 10 * time.Second {
		p.run(until)
		p.checkCaps()
		left := slices.IndexFunc(p.sent, func(m *sent) bool { return !m.done() })
		if len(p.sent) >= p.messages && left < 0 {
			return
		}
		if until > p.to+10*time.Minute {
			p.fault(fmt.Sprintf("%d is not confirmed at the end", p.sent[max(left, 0)].number))
		}
		// What was given up comes again when the stream is opened the next time.
		if until > p.to+30*time.Second && int((until-p.to)/time.Second)%30 == 0 {
			p.core.Want(p.now)
			p.setWake()
		}
	}
}

// checkCaps reports it when more is open than may be.
func (p *program) checkCaps() {
	w := &p.core.window
	if w.moving > w.cfg.MaxInFlight+len(p.routes) || w.moving < 0 || w.waiting < 0 || w.unconfirmedNow < 0 {
		p.fault(fmt.Sprintf("%d are moving, and %d waiting, in a window of %d", w.moving, w.waiting, w.cfg.MaxInFlight))
	}
}

func TestPrograms(t *testing.T) {
	for seed := uint64(1); seed <= uint64(*programs); seed++ {
		newProgram(t, seed, true).finish()
	}
}

// TestProgram prints what happens in the program with a seed.
func TestProgram(t *testing.T) {
	if *program1 == 0 {
		t.Skip()
	}
	p := newProgram(t, *program1, true)
	p.traced = true
	p.finish()
}

var (
	programs = flag.Int("programs", 200, "how many random programs are run")
	program1 = flag.Uint64("program", 0, "the seed of a program that is to be traced")
)
