package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// waitProblems describes what waits for long. In an outage nearly everything does, so only what has another cause is one.
func waitProblems(s *Snapshot, outage bool) (problems []Problem) {
	for i := range s.Subscriber.Waits {
		w := &s.Subscriber.Waits[i]
		if w.Kind == subscriber.WaitPayload { // the check of the claim check says what it does not store
			w = &Waits{Kind: w.Kind, Longest: slices.DeleteFunc(slices.Clone(w.Longest), func(w Wait) bool { return strings.HasPrefix(w.Reason, "claim check: ") })}
		}
		if len(w.Longest) == 0 || s.Time.Sub(w.Longest[0].Since) < longWait {
			continue
		}
		first := w.Longest[0]
		p := Problem{Since: first.Since, Reason: first.Reason} // no Name, as of confirmations
		switch w.Kind {
		case subscriber.WaitTenant:
			if s.fails("confirmations") {
				continue
			}
			p = confirmationsProblem(s)
		case subscriber.WaitPayload:
			p.Kind, p.Runbook = ProblemPayloads, "AgrimillPayloadsExpire"
			p.Subject, p.Trouble = "downloads of payloads from "+first.name(), "have failed"
			p.Effect = fmt.Sprintf("%s %s; %s", plural(first.Count, "message"), verb(first.Count, "waits", "wait"), nothingLost)
			p.Action = "repair the way to that host; " + keepsTrying
		case subscriber.WaitKey:
			p.Reason = s.lastError()
			if outage || p.Reason == "" && s.waits(subscriber.WaitPayload) != nil {
				continue // for the payloads, which say it
			}
			p.Kind, p.Runbook = ProblemEndpoint, "AgrimillStuck"
			p.Subject, p.Trouble = cmp.Or(first.Name, "the key "+first.What), "has had no message finished"
			p.Effect = fmt.Sprintf("%s of it %s, others pass; %s", plural(first.Count, "message"), verb(first.Count, "waits", "wait"), nothingLost)
			if w.Count > 1 {
				p.Effect = fmt.Sprintf("%s of it %s, and those of %s; others pass; %s", plural(first.Count, "message"), verb(first.Count, "waits", "wait"), plural(w.Count-1, "other endpoint"), nothingLost)
			}
			p.Action = "repair what the error of its route names; " + keepsTrying
		case subscriber.WaitSubscription:
			if outage {
				continue
			}
			p.Kind, p.Runbook = ProblemSlow, "AgrimillSinkSlow"
			p.Subject, p.Trouble = first.name(), "has been too slow"
			p.Effect = fmt.Sprintf("it has %s, and further ones stay with the gateway; %s", plural(first.Count, "message"), nothingLost)
			p.Action = "find out why its sink is slow; " + keepsTrying
		default:
			continue // nacks are those of their key or route, and files take their time
		}
		problems = append(problems, p)
	}
	return problems
}

// lastError is that of the route from the gateway that failed last and has not recovered.
func (s *Snapshot) lastError() string {
	var last *Route
	for i := range s.Routes {
		r := &s.Routes[i]
		if r.Direction == FromGateway && r.LastErrorAt.After(r.LastSuccess) && (last == nil || r.LastErrorAt.After(last.LastErrorAt)) {
			last = r
		}
	}
	if last == nil {
		return ""
	}
	return last.LastError
}

func (s *Snapshot) fails(name string) bool {
	return slices.ContainsFunc(s.Checks, func(c Check) bool { return c.Name == name && !c.OK })
}

// stateProblems describes what neither a check nor a wait says.
func stateProblems(s *Snapshot, outage bool) (problems []Problem) {
	add := func(p Problem) { problems = append(problems, p) }
	for i := range s.Routes {
		problems = append(problems, partialProblems(s, &s.Routes[i])...)
	}
	for _, sink := range s.Sinks {
		if sink.Lost == nil || *sink.Lost == 0 {
			continue
		}
		n := int(*sink.Lost)
		add(Problem{
			Kind: ProblemLost, Name: sink.Name, Final: true, Subject: fmt.Sprintf("%s that the sink %q had acknowledged", plural(n, "message"), sink.Name),
			Trouble: verb(n, "has", "have") + " been missing", Runbook: "AgrimillBrokerLostMessages",
			Effect: "messages of routes with durable: synced are stored again; the rest is nowhere else",
			Action: "see which (agrimill trace lost), have their senders send them again, and restart agrimill",
		})
	}
	if n := s.Subscriber.SetAsideNow; n > 0 {
		p := Problem{
			Kind: ProblemSetAside, Subject: plural(n, "message"), Trouble: verb(n, "has", "have") + " been set aside", Runbook: "AgrimillSetAside",
			Effect: "nothing takes " + verb(n, "it as it is, and it stays", "them as they are, and they stay") + " with the gateway; " + nothingLost,
			Action: "see agrimill trace and the log for why; if a limit is too low, raise it: that of the sink, or gateway.max_payload_size",
		}
		if !outage { // the error is that of the outage
			p.Reason = s.lastError()
		}
		add(p)
	}
	if n := s.Subscriber.QuarantineWaiting; n > 0 {
		add(Problem{
			Kind: ProblemQuarantine, Subject: plural(n, "unreadable event"), Trouble: verb(n, "has", "have") + " been waiting for the quarantine", Runbook: "AgrimillQuarantineWaits",
			Effect: verb(n, "it is", "they are") + " not confirmed; " + nothingLost, Action: "repair the sink of the poison queue; " + keepsTrying,
		})
	}
	if oldest := s.Subscriber.OldestUnconfirmed; !outage && !oldest.IsZero() && s.Time.Sub(oldest) >= longOpen {
		add(Problem{
			Kind: ProblemOld, Since: oldest, Subject: "the oldest message", Trouble: "has been unconfirmed", Reason: s.lastError(), Runbook: "AgrimillStuck",
			Effect: fmt.Sprintf("%s of %s are unconfirmed and stay with the gateway; %s", humanize.Comma(int64(s.Subscriber.Unconfirmed)), plural(int(s.Subscriber.Received), "message"), nothingLost),
			Action: "see agrimill trace, and which route has it in flight",
		})
	}
	problems = append(problems, poisonProblems(s)...)
	if s.Config.Error != "" {
		add(Problem{
			Kind: ProblemReload, Final: true, Since: s.Config.FailedAt, Subject: "the configuration file", Trouble: "has been refused", Reason: s.Config.Error,
			Effect: fmt.Sprintf("the configuration of %s stays in use", s.Config.LoadedAt.Format("2006-01-02 15:04:05 MST")),
			Action: "correct it (agrimill validate) and reload", Runbook: "AgrimillReloadFailed",
		})
	}
	problems = append(problems, journalProblem(s.Checks)...)
	problems = append(problems, endpointsProblem(&s.Unprovided, s.Time, outage)...)
	for _, c := range s.Certificates {
		problems = append(problems, certificateProblem(c, s.Time)...)
	}
	if s.Gateway.RateLimited {
		add(Problem{
			Kind: ProblemRateLimit, Subject: "the gateway " + s.Gateway.Host, Trouble: "has asked for fewer requests", Runbook: "AgrimillRateLimited",
			Effect: "messages and confirmations are slower; " + nothingLost, Action: "ask its operator for a higher limit, or stop what else uses this client ID; " + keepsTrying,
		})
	}
	return problems
}

// partialProblems describes what a route cannot do while it goes on.
func partialProblems(s *Snapshot, r *Route) (problems []Problem) {
	if r.State == router.StateOutage {
		return nil
	}
	for i, refused := range r.Refused {
		if i > 0 || s.Time.Sub(refused.Since) < longWait {
			break
		}
		effect := "messages for it wait, others pass; " + nothingLost
		if more := len(r.Refused) - 1; more > 0 {
			effect = fmt.Sprintf("messages for it and %s more wait, others pass; %s", plural(more, "topic"), nothingLost)
		}
		problems = append(problems, Problem{
			Kind: ProblemTopic, Name: r.Name, Since: refused.Since, Runbook: "AgrimillRouteOutage", Reason: r.LastError,
			Subject: fmt.Sprintf("the topic %q of the route %q", refused.Topic, r.Name), Trouble: "has been refused by the sink", Effect: effect,
			Action: remedy(r.LastError, "create the topic or stream, or correct the permissions; "+keepsTrying),
		})
	}
	if len(r.CopyWaits) > 0 && s.Time.Sub(r.CopyWaits[0].Since) >= time.Minute {
		first := r.CopyWaits[0]
		problems = append(problems, Problem{
			Kind: ProblemCopies, Name: r.Name, Since: first.Since, Runbook: "symptoms",
			Subject: fmt.Sprintf("%s of the route %q", plural(r.WaitingForCopies, "message"), r.Name),
			Trouble: fmt.Sprintf("%s waited for copies that %s handles", verb(r.WaitingForCopies, "has", "have"), cmp.Or(first.Instance, "another process")),
			Effect:  "others pass; " + nothingLost, Action: "see whether that process runs; if it was killed, this ends with its session",
		})
	}
	return problems
}

func poisonProblems(s *Snapshot) []Problem {
	switch q := &s.Poison; {
	case q.Unreadable && s.fails("sink "+q.Sink):
		return nil // its sink says it
	case q.Unreadable:
		return []Problem{{
			Kind: ProblemQueue, Subject: fmt.Sprintf("the poison queue in the sink %q", q.Sink), Trouble: "has not been readable", Reason: strings.TrimPrefix(q.DepthNote, "the queue cannot be read: "), Runbook: "AgrimillPoisonQueueDown",
			Effect: "nobody knows how many messages are in it, and what would be poisoned may wait; " + nothingLost,
			Action: remedy(q.DepthNote, "repair that sink, or correct poison.topic; "+keepsTrying),
		}}
	case q.Depth != nil && *q.Depth > 0:
		n := int(*q.Depth)
		return []Problem{{
			Kind: ProblemPoisoned, Final: true, Since: q.Oldest, Subject: plural(n, "message"), Trouble: verb(n, "has", "have") + " been in the poison queue", Runbook: "AgrimillPoisoned",
			Effect: verb(n, "it was", "they were") + " confirmed and " + verb(n, "is", "are") + " nowhere else; no route has delivered " + verb(n, "it", "them"),
			Action: "see why (agrimill poison list), repair that, and run agrimill poison replay or drop",
		}}
	}
	return nil
}

// journalProblem describes a file that the journal cannot write. Its check passes: messages move without it.
func journalProblem(checks []Check) (problems []Problem) {
	for _, c := range checks {
		if c.Name != "journal" || c.Message == "" {
			continue
		}
		p := Problem{
			Kind: ProblemJournal, Final: c.Final, Subject: "the file of the journal", Trouble: "has not been written", Reason: strings.TrimPrefix(c.Message, "journal: "),
			Effect: "the history of messages is known until agrimill exits; messages move, and " + nothingLost,
			Action: remedy(c.Message, "repair the file or its directory; "+keepsTrying), Runbook: "symptoms",
		}
		if c.Final {
			p.Action = "restart agrimill, which moves the file away and begins a new one"
		}
		problems = append(problems, p)
	}
	return problems
}

// endpointsProblem describes the configured endpoints that the gateway refused, or that are tried again for long though nothing
// else is out of reach.
func endpointsProblem(u *Unprovided, now time.Time, outage bool) []Problem {
	if u.Count == 0 || u.Retried && (outage || now.Sub(u.Since) < longWait) {
		return nil
	}
	p := Problem{
		Kind: ProblemUnprovided, Final: !u.Retried, Since: u.Since, Subject: fmt.Sprintf("the endpoint %q for %s", u.ExternalID, u.Tenant), Trouble: "has not been made or changed", Reason: u.Error,
		Effect: "it stays as it was; if it is new, nothing can be sent to it", Action: "correct endpoints in the configuration, and reload", Runbook: "An endpoint was configured wrong",
	}
	switch {
	case u.Deleted:
		p.Trouble, p.Effect, p.Action = "has been missing", "it receives nothing any longer", "set recreate: true to make it again, or remove it from the configuration, and reload"
	case u.Retried:
		p.Action = remedy(u.Error, "repair what the reason names; "+keepsTrying)
	}
	if u.Count > 1 {
		p.Subject, p.Trouble = fmt.Sprintf("%s and %d more", p.Subject, u.Count-1), strings.Replace(p.Trouble, "has", "have", 1)
	}
	return []Problem{p}
}

func certificateProblem(c Certificate, now time.Time) []Problem {
	if c.Error == "" && c.NotAfter.Sub(now) >= renewBefore {
		return nil
	}
	p := Problem{
		Kind: ProblemCertificate, Name: c.Setting, Final: true, Since: c.NotAfter.Add(-renewBefore), Subject: fmt.Sprintf("the certificate %s (%s)", c.Setting, c.File), Trouble: "has needed a renewal",
		Reason: "it ends " + c.NotAfter.UTC().Format("2006-01-02 15:04 MST"), Effect: "until then nothing changes; after that, connections fail and messages wait; " + nothingLost,
		Action: "renew the file; agrimill takes it over by itself", Runbook: "symptoms",
	}
	switch {
	case c.Error != "":
		p.Trouble, p.Since, p.Reason, p.Effect = "has not been readable", time.Time{}, c.Error, "the next connection may fail; "+nothingLost
	case !c.NotAfter.After(now):
		p.Trouble, p.Since, p.Reason, p.Effect = "has been expired", c.NotAfter, "", "connections with it fail, and messages wait; "+nothingLost
	}
	return []Problem{p}
}
