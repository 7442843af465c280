package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	// longWait is how long something waits before that is a problem: one attempt may fail at any time.
	longWait = 10 * time.Second
	// longOpen is how old the oldest unconfirmed message becomes before that is a problem by itself, as in the alert
	// AgrimillStuck.
	longOpen = 10 * time.Minute
	// renewBefore is how long before its end a certificate has to be renewed.
	renewBefore = 14 * 24 * time.Hour

	keepsTrying  = "agrimill continues by itself"
	nothingLost  = "nothing is lost"
	staysThere   = "new messages stay with the gateway; " + nothingLost
	confirmsAnew = "their messages are stored and stay with the gateway as well; " + nothingLost
)

// Problems returns what is wrong in a snapshot, in no order. It does not know what was before, and sets no stages.
func Problems(s Snapshot) []Problem {
	var problems []Problem
	outage := false
	for _, c := range s.Checks {
		name, of := strings.CutPrefix(c.Name, "route ")
		if route := s.route(name); c.OK || of && (route == nil || route.State == router.StateRunning) {
			continue // since the last look, the route has recovered, or a reload has removed it
		}
		p := checkProblem(&s, c)
		if p.Kind == ProblemRoute && s.waitsFor(s.route(p.Name)) != "" {
			outage = true
			continue // that check says it
		}
		p.Unready, p.Final, p.Since = true, c.Final, earlier(p.Since, c.Since)
		p.checks = append(p.checks, c.Name)
		for i := range s.Routes {
			if s.waitsFor(&s.Routes[i]) == c.Name {
				p.checks = append(p.checks, "route "+s.Routes[i].Name)
			}
		}
		outage = outage || p.Kind != ProblemConfirmations && p.Kind != ProblemIntermediary
		problems = append(problems, p)
	}
	problems = append(problems, waitProblems(&s, outage)...)
	return append(problems, stateProblems(&s, outage)...)
}

// waitsFor returns the check that fails and for which a route waits; empty if there is none.
func (s *Snapshot) waitsFor(r *Route) string {
	if r == nil || r.State != router.StateOutage {
		return ""
	}
	sink := "sink " + r.To.Sink
	switch {
	case s.fails("dedup") && strings.HasPrefix(r.LastError, "dedup store: "):
		return "dedup"
	case s.fails(sink) && !strings.HasPrefix(r.LastError, "source "): // that of what it reads from is another cause
		return sink
	}
	return ""
}

func (s *Snapshot) route(name string) *Route {
	for i := range s.Routes {
		if s.Routes[i].Name == name {
			return &s.Routes[i]
		}
	}
	return nil
}

func checkProblem(s *Snapshot, c Check) Problem {
	sink, isSink := strings.CutPrefix(c.Name, "sink ")
	route, isRoute := strings.CutPrefix(c.Name, "route ")
	switch {
	case c.Name == "gateway":
		return gatewayProblem(s, c)
	case c.Name == "gateway answers":
		return Problem{
			Kind: ProblemIntermediary, Subject: fmt.Sprintf("something between agrimill and the gateway %s", s.Gateway.Host), Trouble: "has responded in its place",
			Reason: strings.TrimPrefix(c.Message, "something other than the gateway answers: "),
			Effect: "these calls are repeated; " + nothingLost, Action: "repair the proxy, ingress or address in between; " + keepsTrying, Runbook: "AgrimillIntermediary",
		}
	case c.Name == "confirmations":
		p := confirmationsProblem(s)
		p.Subject = "confirmations for all tenants that have any"
		return p
	case c.Name == "lease":
		return Problem{
			Kind: ProblemLease, Subject: "the lease in " + cmp.Or(s.Lease.Target, "NATS"), Trouble: "has not been readable or renewable", Reason: c.Message,
			Effect: "the instance that has it works until it ends, then none does; " + staysThere, Action: remedy(c.Message, "repair NATS; "+keepsTrying), Runbook: "AgrimillNoHolder",
		}
	case c.Name == "dedup":
		next := keepsTrying
		if c.Final {
			next = "then restart agrimill"
		}
		p := Problem{
			Kind: ProblemDedup, Subject: fmt.Sprintf("the dedup store %s", strings.TrimSpace(s.Dedup.Store+" "+s.Dedup.Target)), Trouble: "has been failing", Reason: c.Message,
			Effect: "routes wait, or store again what comes again; " + nothingLost, Action: remedy(c.Message, "repair the store; "+next), Runbook: "AgrimillDedupStoreDown",
		}
		p.addWaiting(s, func(r *Route) bool { return s.waitsFor(r) == c.Name })
		return p
	case c.Name == "claim check":
		return Problem{
			Kind: ProblemClaimCheck, Subject: "the store of the claim check", Trouble: "has been failing", Reason: c.Message,
			Effect: "messages with large payloads wait; " + nothingLost, Action: remedy(c.Message, "repair the store; "+keepsTrying), Runbook: "AgrimillSinkDown",
		}
	case isSink:
		return sinkProblem(s, sink, c)
	case isRoute:
		return routeProblem(s.route(route), c)
	}
	return Problem{
		Kind: ProblemOther, Name: c.Name, Subject: fmt.Sprintf("the check %q", c.Name), Trouble: "has failed", Reason: c.Message,
		Effect: "messages may wait; " + nothingLost, Action: "run agrimill check; " + keepsTrying, Runbook: "symptoms",
	}
}

func gatewayProblem(s *Snapshot, c Check) Problem {
	g := &s.Gateway
	p := Problem{
		Kind: ProblemGateway, Subject: fmt.Sprintf("the gateway %s", g.Host), Trouble: "has not been reachable", Reason: cmp.Or(g.LastError, c.Message),
		Effect: staysThere, Action: remedy(c.Message, cmp.Or(g.Advice, "repair the way to the gateway")+"; "+keepsTrying), Runbook: "AgrimillStreamDown",
	}
	switch {
	case g.TokenFails:
		p.Kind, p.Subject, p.Trouble = ProblemToken, "the token endpoint of the gateway "+g.Host, "has given no token"
		p.Effect = "nothing is received or confirmed; " + staysThere
	case !g.RefusedSince.IsZero():
		p.Trouble, p.Since = "has refused the event stream", g.RefusedSince
		p.Action = "ask the operator of the gateway, or of a proxy in between, why it refuses this application"
		if g.EndsAt.IsZero() {
			p.Action += "; " + keepsTrying
		} else {
			p.Effect += "; agrimill tries again until " + g.EndsAt.Format("15:04:05 MST") + ", then exits"
		}
	case g.State == GatewayConnecting:
		p.Trouble = "has not opened the event stream"
	case g.State == GatewayDisconnected:
		p.Trouble = "has been disconnected"
	case g.State == GatewayStandby:
		p.Effect = "this instance gave up the lease, and another one works if it reaches the gateway; " + nothingLost
	}
	return p
}

func sinkProblem(s *Snapshot, name string, c Check) Problem {
	p := Problem{
		Kind: ProblemSink, Name: name, Subject: fmt.Sprintf("the sink %q", name), Trouble: "has been down", Runbook: "AgrimillSinkDown",
		Reason: strings.TrimPrefix(strings.TrimPrefix(c.Message, "sink "+name+": "), "sink unavailable: "), // the subject says so
		Action: remedy(c.Message, "repair it; "+keepsTrying),
	}
	for _, sink := range s.Sinks {
		if sink.Name == name && sink.Target != "" {
			p.Subject += " (" + strings.TrimSpace(sink.Kind+" "+sink.Target) + ")"
		}
	}
	p.addWaiting(s, func(r *Route) bool { return r.To.Sink == name })
	switch {
	case p.Effect != "": // of its routes
	case s.Poison.Sink == name:
		p.Effect = "messages that would be poisoned wait; " + nothingLost
	default:
		p.Effect = "no route needs it"
	}
	return p
}

// addWaiting makes the effect of p that the routes that it concerns wait: those where something waits, or else all of them.
func (p *Problem) addWaiting(s *Snapshot, concerns func(*Route) bool) {
	var routes, behind []string
	open := 0
	for i := range s.Routes {
		r := &s.Routes[i]
		if !concerns(r) {
			continue
		}
		routes = append(routes, r.Name)
		if open += r.Open; r.Open > 0 {
			behind = append(behind, r.Name)
		}
	}
	if len(behind) > 0 {
		routes = behind
	}
	if len(routes) > 0 {
		open = min(open, s.Subscriber.Unconfirmed) // each of the routes counts a message
		p.Effect = fmt.Sprintf("%s %s%s; %s", naming("route", routes), verb(len(routes), "waits", "wait"), waiting(open), nothingLost)
	}
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func waiting(n int) string {
	if n == 0 {
		return ""
	}
	return " with " + plural(n, "message")
}

func routeProblem(r *Route, c Check) Problem {
	p := Problem{
		Kind: ProblemRoute, Name: r.Name, Subject: fmt.Sprintf("the route %q", r.Name), Reason: r.LastError, Since: r.Since, Runbook: "AgrimillRouteOutage",
		Trouble: "has been waiting", Effect: "its messages wait where they come from; " + nothingLost,
		Action: remedy(r.LastError, "repair what the reason names; "+keepsTrying),
	}
	if r.Open > 0 {
		p.Effect = fmt.Sprintf("%s %s; %s", plural(r.Open, "message"), verb(r.Open, "waits where it comes from", "wait where they come from"), nothingLost)
	}
	switch r.State {
	case router.StateFailing:
		p.Trouble, p.Runbook = "has moved every message to the poison queue", "AgrimillRouteFailing"
		p.Effect = fmt.Sprintf("its last %s %s in the poison queue, confirmed, and nowhere else", plural(int(r.PoisonedInARow), "message"), verb(int(r.PoisonedInARow), "is", "are"))
		p.Action = "repair the route or its sink, reload, and run agrimill poison replay"
	case router.StateEnded, router.StateFailed:
		p.Trouble, p.Runbook = "has not been running", "AgrimillRouteEnded"
		p.Effect, p.Action = "its messages stay where they come from; "+nothingLost, "repair what the reason names, then restart agrimill"
	case router.StateStarting:
		p.Trouble = "has not started"
	}
	p.Reason = cmp.Or(p.Reason, strings.TrimPrefix(c.Message, string(r.State)+": "))
	if p.Reason == string(r.State) {
		p.Reason = ""
	}
	return p
}

func confirmationsProblem(s *Snapshot) Problem {
	w := s.waits(subscriber.WaitTenant)
	p := Problem{
		Kind: ProblemConfirmations, Trouble: "have failed", Effect: confirmsAnew, Runbook: "AgrimillConfirmationsWait",
		Action: "ask the gateway's operator; " + keepsTrying,
	}
	if w == nil || len(w.Longest) == 0 {
		return p
	}
	first := w.Longest[0]
	p.Since, p.Reason = first.Since, first.Reason // no Name: it is one problem, whoever waits longest
	p.Subject = "confirmations for " + cmp.Or(first.name(), "tenants that are not known")
	count := w.Count
	if recent := slices.IndexFunc(w.Longest, func(w Wait) bool { return s.Time.Sub(w.Since) < longWait }); recent >= 0 {
		count = recent
	}
	if count > 1 {
		p.Subject = fmt.Sprintf("confirmations for %s, first of all %s,", plural(count, "tenant"), first.name())
	}
	p.Effect = fmt.Sprintf("%s %s stored and %s with the gateway as well; %s", plural(w.Total, "message"), verb(w.Total, "is", "are"), verb(w.Total, "stays", "stay"), nothingLost)
	return p
}

func (s *Snapshot) waits(kind subscriber.WaitKind) *Waits {
	i := slices.IndexFunc(s.Subscriber.Waits, func(w Waits) bool { return w.Kind == kind })
	if i < 0 {
		return nil
	}
	return &s.Subscriber.Waits[i]
}

func (w *Wait) name() string { return cmp.Or(w.Name, w.What) }

// remedy says what to do about a reason that tells; else it is otherwise.
func remedy(reason, otherwise string) string {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(reason), text) })
	}
	switch {
	case has("no space left on device", "disk quota exceeded"):
		return "free space on that disk; " + keepsTrying
	case has("insufficient storage", "insufficient resources", "maximum messages exceeded", "maximum bytes exceeded"):
		return "make room in the stream or raise its limit; " + keepsTrying
	case has("authorization violation", "permissions violation", "authentication failed", "sasl", "access denied"):
		return "correct the credentials or the permissions; " + keepsTrying
	case has("open in another process"):
		return "stop that process, or give each a file of its own; " + keepsTrying
	case has("no such host"):
		return "correct the address, or repair the name resolution; " + keepsTrying
	case has("x509:", "certificate"):
		return "renew or trust the certificate; " + keepsTrying
	}
	return otherwise
}
