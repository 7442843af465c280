package gateway

import "time"

const (
	// knownTenants is of how many tenants the limiter remembers what they were answered.
	knownTenants = 128
	// recentFor is for how long an answer tells something about the next one.
	recentFor = 10 * time.Second
	// ownRun is how many 429s in a row, and ownAccepted how many requests of other tenants that are
	// accepted meanwhile, show that it is the tenant's own limit.
	ownRun      = 3
	ownAccepted = 10
)

// limitedTenants tells whether 429s are those of a few tenants, or everybody's, without clock and lock.
type limitedTenants struct {
	// known is a ring. When there are more tenants, those in it are a sample that is new within as many
	// answers, and those with a limit of their own.
	known []tenantAnswers
	index map[string]int // of the tenants in known
	next  int            // in known, to be replaced
	last  int            // the one that was answered last

	accepted int // requests of tenants
	// shared is true if a limit of everybody is not due to some tenants alone: one that got 429 was served
	// since it began, or a request that is no tenant's got 429.
	shared bool
}

// tenantAnswers is what a tenant was answered.
type tenantAnswers struct {
	tenant    string
	answered  time.Time
	refusedAt time.Time // the latest 429; zero if there was none

	run    int  // how many 429s it got since it was served last, up to ownRun
	before int  // how many requests of tenants had been accepted when that began
	own    bool // it has gone on while others were served
}

// of returns what is remembered of a tenant.
func (l *limitedTenants) of(tenant string) *tenantAnswers {
	if len(l.known) > 0 && l.known[l.last].tenant == tenant {
		return &l.known[l.last]
	}
	i, known := l.index[tenant]
	if !known {
		if l.index == nil {
			l.index = make(map[string]int)
		}
		i = l.place()
		delete(l.index, l.known[i].tenant)
		l.known[i] = tenantAnswers{tenant: tenant}
		l.index[tenant] = i
	}
	l.last = i
	return &l.known[i]
}

// place returns where in known the next tenant goes.
func (l *limitedTenants) place() int {
	if len(l.known) < knownTenants {
		l.known = append(l.known, tenantAnswers{})
		return len(l.known) - 1
	}
	for n := 0; n < knownTenants && l.known[l.next].own; n++ {
		l.next = (l.next + 1) % knownTenants
	}
	i := l.next
	l.next = (l.next + 1) % knownTenants
	return i
}

// accept takes in that a request of tenant, which started at started, was accepted.
func (l *limitedTenants) accept(started time.Time, tenant string) {
	l.accepted++
	r := l.of(tenant)
	if started.After(r.answered) {
		r.answered = started
	}
	// What was sent before the latest 429 tells nothing new.
	if r.run > 0 && !started.Before(r.refusedAt) {
		r.run, r.own, l.shared = 0, false, true
	}
}

// refuse takes in a 429 of tenant and reports whether it has got nothing else for a while in which others
// were served. Another one for a request that was sent before the limit is not news.
func (l *limitedTenants) refuse(now time.Time, tenant string, news bool) (own bool) {
	r := l.of(tenant)
	r.answered, r.refusedAt = now, now
	if news {
		if r.run == 0 {
			r.before = l.accepted
		}
		r.run = min(r.run+1, ownRun)
	}
	r.own = r.own || r.run == ownRun && l.accepted-r.before >= ownAccepted
	return r.own
}

// minority reports whether only few of the tenants that were answered lately got 429: one of several, or
// fewer than half. Those of which it is known that it is their own limit do not count.
func (l *limitedTenants) minority(now time.Time) bool {
	answered, refused := 0, 0
	for i := range l.known {
		r := &l.known[i]
		is := !r.refusedAt.IsZero() && now.Sub(r.refusedAt) < recentFor
		if now.Sub(r.answered) >= recentFor || is && r.own {
			continue
		}
		answered++
		if is {
			refused++
		}
	}
	return answered > 1 && (refused <= 1 || 2*refused < answered)
}

// alone reports whether a limit of everybody is due to tenants alone that have one of their own.
func (l *limitedTenants) alone() bool {
	for i := range l.known {
		if r := &l.known[i]; r.run > 0 && !r.own {
			return false
		}
	}
	return !l.shared
}

// begin takes in that everybody is limited from now on: the 429s that led to that show no more about a
// tenant than one does. shared is true if the latest one is no tenant's.
func (l *limitedTenants) begin(shared bool) {
	l.shared = shared
	for i := range l.known {
		if r := &l.known[i]; r.run > 0 && !r.own {
			r.run, r.before = 1, l.accepted
		}
	}
}
