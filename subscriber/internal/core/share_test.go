package core

import (
	"slices"
	"time"
)

const (
	// healthyShare is how much of what nothing ails is confirmed in time beside something that is sick, of what is confirmed
	// in the same program without it.
	healthyShare = 0.9
	// lateness is how much later that may be.
	lateness = 2 * time.Second
)

// sharesFairly reports whether the share can be measured. A quarter of a window of fewer messages is less than one of each sick key, and what
// handlers have is never left, so it may be all of such a window. The first takers are those that the program began with.
func (p *program) sharesFairly(first []*taker) bool {
	holds := func(t *taker) bool { return t.horizon != nil } // what is not synced takes the room of all, has no lane, and may be lost
	return len(p.faults) > 0 && !slices.ContainsFunc(first, holds) && !slices.ContainsFunc(p.takers, holds) && p.windowHolds() >= 25
}

// windowHolds returns how many messages the window has room for.
func (p *program) windowHolds() int {
	cfg := &p.core.cfg
	return min(cfg.MaxInFlight, int(cfg.MaxBytes/slices.Max(p.sizes)))
}

// ails reports whether something that is sick may hold m up: all of a lane waits for what is sick in it.
func (p *program) ails(m *sent, takers []*taker) bool {
	ordered := p.core.cfg.Ordered
	return slices.ContainsFunc(p.faults, func(s sickness) bool {
		tenant := s.tenant == "" || s.tenant == m.tenant || ordered && p.shared
		key := s.key == "" || s.key == m.key || !ordered
		route := s.route < 0 || s.kind > gated || slices.ContainsFunc(takers, func(t *taker) bool { return t.number() == s.route && t.wants(m) })
		return tenant && key && route
	})
}

// checkShare reports it when what is sick holds up others. It compares with the same program without it, of which it runs as much
// as is needed.
func (p *program) checkShare() {
	well := newProgram(p.seed)
	well.faults = nil
	takers := slices.Clone(well.takers)
	if !p.sharesFairly(takers) {
		return
	}
	well.run(p.to)
	before, with := 0, 0
	for i, m := range well.sent {
		switch {
		case m.once, m.confirmed < p.from, m.confirmed >= p.to-lateness, p.ails(m, takers):
		case m.part, m.kind == "held": // how long it waits for a file depends on how many others do
		case p.added != 0 && m.confirmed >= p.added && m.confirmed < p.added+reconnectEvery+lateness: // the new route may get nothing before the next connection
		default:
			before++
			if at := p.sent[i].confirmed; at != 0 && at < p.to {
				with++
			}
		}
	}
	// What was behind the sick ones when they filled the window is left before anybody can tell, and comes again when the stream is
	// opened the next time: no sooner than reconnectEvery after the time before.
	if p.to-p.from < stall+reconnectEvery && before < p.windowHolds() {
		return
	}
	if float64(with) < healthyShare*float64(before) {
		p.wrong("%d of %d that nothing ails are confirmed in time", with, before)
	}
}
