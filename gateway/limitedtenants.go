package gateway

import (
	"maps"
	"time"
)

const (
	// recentTenants is of how many tenants the limiter remembers what they were answered.
	recentTenants = 128
	// recentFor is for how long an answer tells something about the next one.
	recentFor = 10 * time.Second
	// ownRun is how many 429s in a row, and ownAccepted how many requests of other tenants that are
	// accepted meanwhile, show that it is the tenant's own limit.
	ownRun      = 3
	ownAccepted = 10
	// maxRuns is how many tenants are watched in this way, and runForgotten for how long.
	maxRuns      = 1000
	runForgotten = 10 * time.Minute
)

// limitedTenants tells whether 429s are those of a few tenants, or everybody's. It is a state machine
// without clock and lock.
type limitedTenants struct {
	// recent are the tenants that were answered lately, in a ring. When there are more of them, they are a
	// sample that is new within as many answers.
	recent [recentTenants]recentTenant
	index  map[string]int // of the tenants in recent
	next   int            // in recent
	last   int            // the one that was answered last

	runs     map[string]refusalRun // of tenants whose latest answer was 429
	accepted int                   // requests of tenants
	// shared is true if a limit of everybody is not due to some tenants alone: one that got 429 was served
	// since it began, or a request that is no tenant's got 429.
	shared bool
}

// recentTenant is what a tenant was answered lately.
type recentTenant struct {
	tenant    string
	answered  time.Time
	refusedAt time.Time // the latest 429; zero if there was none
}

// refusalRun is a run of 429s of a tenant.
type refusalRun struct {
	n        int
	own      bool // it has gone on while others were served
	latest   time.Time
	accepted int // when it began
}

// of returns what is remembered of a tenant.
func (l *limitedTenants) of(tenant string) *recentTenant {
	if l.recent[l.last].tenant == tenant {
		return &l.recent[l.last]
	}
	i, known := l.index[tenant]
	if !known {
		i = l.next
		l.next = (l.next + 1) % len(l.recent)
		if l.index == nil {
			l.index = make(map[string]int, len(l.recent))
		}
		delete(l.index, l.recent[i].tenant)
		l.recent[i] = recentTenant{tenant: tenant}
		l.index[tenant] = i
	}
	l.last = i
	return &l.recent[i]
}

// accept takes in that a request of tenant, which started at started, was accepted.
func (l *limitedTenants) accept(started time.Time, tenant string) {
	l.accepted++
	if r := l.of(tenant); started.After(r.answered) {
		r.answered = started
	}
	// What was sent before the latest 429 tells nothing new.
	if run, is := l.runs[tenant]; is && !started.Before(run.latest) {
		delete(l.runs, tenant)
		l.shared = true
	}
}

// refuse takes in a 429 of tenant and reports whether it has got nothing else for a while in which others
// were served. Another one for a request that was sent before the limit is not news.
func (l *limitedTenants) refuse(now time.Time, tenant string, news bool) (own bool) {
	r := l.of(tenant)
	r.answered, r.refusedAt = now, now
	run, known := l.runs[tenant]
	if !known {
		if len(l.runs) >= maxRuns {
			maps.DeleteFunc(l.runs, func(_ string, run refusalRun) bool { return now.Sub(run.latest) >= runForgotten })
		}
		if !news || len(l.runs) >= maxRuns {
			return false
		}
		run.accepted = l.accepted
	}
	if news {
		run.n = min(run.n+1, ownRun)
	}
	run.latest = now
	run.own = run.own || run.n == ownRun && l.accepted-run.accepted >= ownAccepted
	if l.runs == nil {
		l.runs = make(map[string]refusalRun)
	}
	l.runs[tenant] = run
	return run.own
}

// minority reports whether only few of the tenants that were answered lately got 429: one of several, or
// fewer than half. Those of which it is known that it is their own limit do not count.
func (l *limitedTenants) minority(now time.Time) bool {
	answered, refused := 0, 0
	for i := range l.recent {
		r := &l.recent[i]
		if r.answered.IsZero() || now.Sub(r.answered) >= recentFor {
			continue
		}
		is := !r.refusedAt.IsZero() && now.Sub(r.refusedAt) < recentFor
		if is && l.runs[r.tenant].own {
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
	for _, run := range l.runs {
		if !run.own {
			return false
		}
	}
	return !l.shared
}

// begin takes in that everybody is limited from now on: the 429s that led to that show no more about a
// tenant than one does. shared is true if the latest one is no tenant's.
func (l *limitedTenants) begin(shared bool) {
	l.shared = shared
	for tenant, run := range l.runs {
		if !run.own {
			run.n, run.accepted = 1, l.accepted
			l.runs[tenant] = run
		}
	}
}
