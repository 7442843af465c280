package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

const dedupCheck = "dedup"

func found(name string, err error) admin.Check {
	return admin.Check{Name: name, OK: err == nil, Message: router.RedactError(err, nil)}
}

// lookOverdue is how old the last look may be: one takes checkTimeout, unless something does not heed its end.
const lookOverdue = 30 * time.Second

// readiness keeps the findings of the last look, and since when what fails has failed. [admin.Steady] decides when that
// counts.
type readiness struct {
	mu     sync.Mutex
	checks []admin.Check
	at     time.Time
}

func (r *readiness) record(findings []admin.Check, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	checks := slices.Clone(findings)
	for i := range checks {
		c := &checks[i]
		if c.OK || !c.Since.IsZero() {
			continue
		}
		c.Since = now
		if before := r.find(c.Name); before != nil && !before.OK {
			c.Since = before.Since
		}
	}
	r.checks, r.at = checks, now
}

// find returns the last finding for a check; nil if there is none. The caller holds mu.
func (r *readiness) find(name string) *admin.Check {
	i := slices.IndexFunc(r.checks, func(c admin.Check) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &r.checks[i]
}

// latest returns the checks of the last look, and when that was; none before the first. That it is overdue is a check that fails.
func (r *readiness) latest(now time.Time) ([]admin.Check, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	checks := slices.Clone(r.checks)
	if r.checks != nil && now.Sub(r.at) > lookOverdue {
		checks = append(checks, admin.Check{Name: "checks", Since: r.at, Message: "they have not finished since then"})
	}
	return checks, r.at
}

// last returns the last finding for a check, which passes if it was not looked at; false before the first look.
func (r *readiness) last(name string) (admin.Check, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.find(name); c != nil {
		return *c, true
	}
	return admin.Check{Name: name, OK: true}, r.checks != nil
}

// look checks everything that the routes of g need: the sinks, the stores and, unless its state is known anyway, the gateway;
// the rest is known. It returns when ctx ends.
func (p *Pipeline) look(ctx context.Context, g *generation) []admin.Check {
	names := slices.Sorted(maps.Keys(g.sinks))
	asked := make([]admin.Check, len(names)+5)
	var open sync.WaitGroup // all of it ends with ctx
	for i, name := range names {
		open.Go(func() { asked[i] = found("sink "+name, g.sinks[name].Health(ctx)) })
	}
	gateway, dedup, claimCheck := &asked[len(names)], &asked[len(names)+1], &asked[len(names)+2]
	open.Go(func() { *gateway = p.checkGateway(ctx, g) })
	asked[len(names)+3] = p.checkIntermediaries()
	if p.memory.on() {
		open.Go(func() {
			err := p.memory.health(ctx)
			*dedup = found(dedupCheck, err)
			dedup.Final = errors.Is(err, boltstore.ErrClosed) || errors.Is(err, boltstore.ErrDamaged)
		})
	}
	if p.lease != nil {
		open.Go(func() { asked[len(names)+4] = p.checkLease(ctx) })
	}
	if p.claimCheck != nil {
		open.Go(func() { *claimCheck = p.checkClaimCheck(ctx) })
	}
	open.Wait()
	var findings []admin.Check
	standsBy := p.standsBy()
	if g.receives() && !standsBy {
		findings = append(findings, p.checkConfirmations(p.subscriber.Stats()))
	}
	for i, h := range g.router.Health() {
		if standsBy && h.State == router.StateOutage && g.config.OnHolder(g.config.Routes[i]) {
			h.State = router.StateStopped // of its last turn: it has no message by which that could end
		}
		findings = append(findings, checkRoute(g.routes[i].Direction, h))
	}
	if err := p.journal.Err(); err != nil {
		findings = append(findings, admin.Check{
			Name: "journal", OK: true, Message: router.RedactError(err, nil), Final: errors.Is(err, journal.ErrDamaged),
		})
	}
	return append(findings, slices.DeleteFunc(asked, func(f admin.Check) bool { return f.Name == "" })...)
}

// checkClaimCheck reports whether the claim check can be read, and stores payloads: one on a full disk fails at that alone.
func (p *Pipeline) checkClaimCheck(ctx context.Context) admin.Check {
	f := found("claim check", p.claimCheck.Check(ctx))
	for _, w := range p.subscriber.Stats().Waits {
		for _, host := range w.Longest {
			_, fails := errors.AsType[*claimcheck.Error](host.Err)
			if f.OK && w.Kind == subscriber.WaitPayload && fails && time.Since(host.Since) >= failingAfter {
				f = found(f.Name, host.Err)
				f.Since = host.Since
			}
		}
	}
	return f
}

// checkIntermediaries reports whether something in between, such as an ingress, answers
// calls meant for the gateway. The event stream may be open at the same time.
func (p *Pipeline) checkIntermediaries() admin.Check {
	f := admin.Check{Name: "gateway answers", OK: true}
	for _, answer := range p.client.Intermediaries().Now {
		if f.OK {
			f.OK, f.Since, f.Message = false, answer.Since, "something other than the gateway answers: "
		} else {
			f.Message += ", "
		}
		if answer.Since.Before(f.Since) {
			f.Since = answer.Since
		}
		f.Message += fmt.Sprintf("%s: status %d", answer.Operation, answer.StatusCode)
		if answer.ContentType != "" {
			f.Message += " (" + answer.ContentType + ")"
		}
	}
	return f
}

// failingAfter is how long confirmations, and what the claim check stores, have to fail before that counts: one request may fail at any time.
const failingAfter = 10 * time.Second

// checkConfirmations reports whether the gateway accepts confirmations. While it accepts those of some tenants, the failure
// of others is theirs: it is said, and does not count.
func (p *Pipeline) checkConfirmations(stats subscriber.Stats) admin.Check {
	f := admin.Check{Name: "confirmations", OK: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); stats.Confirmed > p.confirmed || p.confirmedAt.IsZero() {
		p.confirmed, p.confirmedAt = stats.Confirmed, now
	}
	for _, w := range stats.Waits {
		if w.Kind != subscriber.WaitTenant || time.Since(w.Longest[0].Since) < failingAfter {
			continue
		}
		f.Message = "the gateway does not accept them: " + router.RedactError(w.Longest[0].Err, nil)
		// What was accepted after the first tenant began to fail says nothing if others began later.
		for _, tenant := range append(w.Longest[:len(w.Longest):len(w.Longest)], subscriber.Wait{Since: w.Newest}) {
			if f.OK && time.Since(tenant.Since) >= failingAfter && !p.confirmedAt.After(tenant.Since.Add(p.options.CheckInterval)) {
				f.OK, f.Since = false, tenant.Since
			}
		}
	}
	return f
}

func checkRoute(direction admin.Direction, h router.RouteHealth) admin.Check {
	f := admin.Check{Name: "route " + h.Name, OK: true}
	switch h.State {
	case router.StateRunning, router.StateStopped: // stopped while what is in flight finishes, before a reload
		return f
	case router.StateStarting:
		// A route from the gateway has no connection of its own: what it waits for has its
		// own check.
		if direction == admin.FromGateway {
			return f
		}
	case router.StateEnded, router.StateFailed:
		f.Final = true
	}
	f.OK, f.Since, f.Message = false, h.Since, string(h.State)
	if h.LastError != "" {
		f.Message += ": " + h.LastError
	}
	return f
}
