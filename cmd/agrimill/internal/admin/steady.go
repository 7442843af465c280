package admin

import (
	"slices"
	"sync"
	"time"
)

// Stage says how far a problem is.
type Stage string

// The stages of a problem. Lasting and recovering ones count: for /readyz, the exit status of agrimill status, the log and
// the metrics.
const (
	// StageRecent: it has not lasted for the grace period yet, and may be over by then.
	StageRecent Stage = "recent"
	// StageStarting: not everything has been well yet since the start, which was less than the grace period ago. It counts
	// for /readyz alone.
	StageStarting Stage = "starting"
	// StageLasting: it lasts.
	StageLasting Stage = "lasting"
	// StageRecovering: it is over, but not for the grace period yet.
	StageRecovering Stage = "recovering"
)

// Steady judges one snapshot after the other. Neither what recovers within the grace period is worth waking someone up, nor
// is what comes back within it over: reconnects, reloads and restarts of brokers are routine, and a state that flaps tells
// nothing. So a problem counts once it has lasted for Grace, and is over once it has been away for as long. There is no
// grace for what does not recover by itself, nor before everything has been well for the first time. The zero value grants
// no grace. It is safe for concurrent use.
type Steady struct {
	Grace time.Duration

	mu    sync.Mutex
	well  bool
	began time.Time // the first snapshot
	known map[string]*course
}

type course struct {
	Problem
	began   time.Time
	seen    time.Time // last
	counted bool
}

// Judge returns the verdict about the next snapshot. Those of a pipeline are to be in their order.
func (j *Steady) Judge(s Snapshot) Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.began.IsZero() {
		j.began, j.known = s.Time, map[string]*course{}
	}
	v := Verdict{Problems: []Problem{}} // never null in JSON
	if s.moves() {
		v.Problems = j.follow(&s)
	}
	v.conclude(&s, j.Grace)
	return v
}

// follow takes in what is wrong now, and returns it with what was a moment ago.
func (j *Steady) follow(s *Snapshot) []Problem {
	now, at := Problems(*s), s.Time
	problems := make([]Problem, 0, len(now))
	current := map[string]bool{}
	covered := map[string]bool{}
	unready := false
	for _, p := range now {
		c := j.known[p.key()]
		if c == nil && j.recovers(p.checks, at) {
			unready = true
			continue // what recovers says it
		}
		if c == nil {
			c = &course{began: at}
			j.known[p.key()] = c
		}
		c.Problem, c.began, c.seen = p, earlier(c.began, p.Since), at
		if len(p.checks) > 0 || p.Since.IsZero() { // a check knows only since when it has failed this time
			c.Since = c.began
		}
		c.counted = c.counted || p.Final || !j.well && p.Unready || at.Sub(c.began) >= j.Grace
		switch {
		case !c.counted:
			c.Stage = StageRecent
		case !j.well && !p.Final && p.Unready && at.Sub(j.began) < j.Grace:
			c.Stage = StageStarting
		default:
			c.Stage = StageLasting
		}
		current[p.key()], unready = true, unready || p.Unready
		for _, check := range p.checks {
			covered[check] = true
		}
		problems = append(problems, c.Problem)
	}
	for key, c := range j.known {
		switch {
		case current[key]: // it has its place already
		case c.Kind == ProblemPoisoned && s.Poison.Unreadable: // nobody knows whether that is over
			problems = append(problems, c.Problem)
		case j.recovering(c, at) && !slices.ContainsFunc(c.checks, func(check string) bool { return covered[check] }):
			p := c.Problem
			p.Stage, p.Recovered = StageRecovering, c.seen
			problems = append(problems, p)
		default:
			delete(j.known, key)
		}
	}
	j.well = j.well || !unready
	return problems
}

// recovering reports whether a problem that is over still counts.
func (j *Steady) recovering(c *course, at time.Time) bool {
	return j.well && c.counted && !c.Final && at.Sub(c.seen) < j.Grace
}

// recovers reports whether a problem with other checks recovers that has these as well: the routes that waited for a sink try again
// a moment after it is back.
func (j *Steady) recovers(checks []string, at time.Time) bool {
	for _, c := range j.known {
		covers := func(check string) bool { return slices.Contains(c.checks, check) }
		if len(checks) > 0 && c.seen.Before(at) && j.recovering(c, at) && !slices.ContainsFunc(checks, func(check string) bool { return !covers(check) }) {
			return true
		}
	}
	return false
}
