package router

import (
	"errors"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// errRefusedInBetween is the reason of a message that an intermediary, such as a proxy with a limit for bodies, refused again
// and again ([gateway.ErrIntermediary]) while others of its route passed.
var errRefusedInBetween = Permanent(errors.New("refused by an intermediary"))

// Bounds of errRefusedInBetween.
const (
	refusedTimes = 3
	refusedFor   = 5 * time.Minute
)

// refusedBetween counts how often an intermediary refused a message while others passed. While nobody passes it counts
// nothing: that is an outage. When a message passes that had been refused as well, the count starts again.
type refusedBetween struct {
	times  int
	first  time.Time
	passed uint64 // gates.successes at the last refusal that counted
	healed uint64 // gates.healed at the first
}

// final takes in a failure and reports whether there were enough.
func (r *refusedBetween) final(g *gates, err error, now time.Time) bool {
	// What answers for the token endpoint has not seen the message.
	if !errors.Is(err, gateway.ErrIntermediary) || errors.Is(err, gateway.ErrToken) {
		return false
	}
	passed, healed := g.successes.Load(), g.healed.Load()
	switch {
	case r.times == 0 || r.healed != healed:
		*r = refusedBetween{times: 1, first: now, passed: passed, healed: healed}
		return false
	case r.passed == passed:
		return false
	}
	r.times, r.passed = r.times+1, passed
	return r.times >= refusedTimes && now.Sub(r.first) >= refusedFor
}
