package admin

import (
	"slices"
	"time"
)

// ProblemKind is what is wrong.
type ProblemKind string

// The kinds of problems. Those before [ProblemLost] can make agrimill unready.
const (
	ProblemToken         ProblemKind = "token"
	ProblemGateway       ProblemKind = "gateway"
	ProblemIntermediary  ProblemKind = "intermediary"
	ProblemLease         ProblemKind = "lease"
	ProblemDedup         ProblemKind = "dedup"
	ProblemClaimCheck    ProblemKind = "claim check"
	ProblemSink          ProblemKind = "sink"
	ProblemRoute         ProblemKind = "route"
	ProblemConfirmations ProblemKind = "confirmations"
	ProblemOther         ProblemKind = "other check"
	ProblemLost          ProblemKind = "lost by a broker"
	ProblemSetAside      ProblemKind = "set aside"
	ProblemPayloads      ProblemKind = "payloads"
	ProblemTopic         ProblemKind = "topic" // before the endpoints that stand still because of it
	ProblemEndpoint      ProblemKind = "endpoint"
	ProblemSlow          ProblemKind = "slow route"
	ProblemCopies        ProblemKind = "copies"
	ProblemOld           ProblemKind = "old message"
	ProblemQueue         ProblemKind = "poison queue"
	ProblemQuarantine    ProblemKind = "quarantine"
	ProblemPoisoned      ProblemKind = "poisoned"
	ProblemReload        ProblemKind = "reload"
	ProblemUnprovided    ProblemKind = "configured endpoint"
	ProblemJournal       ProblemKind = "journal"
	ProblemCertificate   ProblemKind = "certificate"
	ProblemRateLimit     ProblemKind = "rate limit"
)

// kinds are all kinds, the worst ones first.
var kinds = [...]ProblemKind{
	ProblemToken, ProblemGateway, ProblemIntermediary, ProblemLease, ProblemDedup, ProblemClaimCheck, ProblemSink, ProblemRoute,
	ProblemConfirmations, ProblemOther, ProblemLost, ProblemSetAside, ProblemPayloads, ProblemTopic, ProblemEndpoint, ProblemSlow, ProblemCopies,
	ProblemOld, ProblemQueue, ProblemQuarantine, ProblemPoisoned, ProblemReload, ProblemUnprovided, ProblemJournal, ProblemCertificate,
	ProblemRateLimit,
}

// ProblemKinds are all kinds, the worst ones first.
func ProblemKinds() []ProblemKind { return slices.Clone(kinds[:]) }

// Problem is one thing that is wrong. Its texts are clauses without a capital and a period.
type Problem struct {
	Kind ProblemKind `json:"kind"`
	// Name is the sink, route, tenant, … as people named it; empty if there is only one of the kind.
	Name string `json:"name,omitempty"`
	// Unready says that /readyz fails while it counts. Final says that it does not recover by itself.
	Unready bool  `json:"unready"`
	Final   bool  `json:"final,omitempty"`
	Stage   Stage `json:"stage"`
	// Since is when it began.
	Since time.Time `json:"since,omitzero"`
	// Subject and Trouble say what is wrong: `the sink "farm"`, `has been down`. Reason is the error, redacted, if there is one.
	Subject string `json:"subject"`
	Trouble string `json:"trouble"`
	Reason  string `json:"reason,omitempty"`
	// Effect is what happens to the data, and for whom. Action is what to do.
	Effect string `json:"effect"`
	Action string `json:"action"`
	// Runbook is the section of docs/runbook.md.
	Runbook string `json:"runbook"`

	// Text is all of this but Runbook in sentences.
	Text string `json:"text"`

	// Recovered is since when it recovers, of StageRecovering.
	Recovered time.Time `json:"-"`

	checks []string // of /readyz that say the same
}

// Counts reports whether it counts; see [Stage].
func (p *Problem) Counts() bool { return p.Stage == StageLasting || p.Stage == StageRecovering }

func (p *Problem) counts() bool { return p.Stage != StageRecent }

func (p *Problem) key() string { return string(p.Kind) + "\x00" + p.Name }

// rank is how bad it is, 0 the worst.
func (p *Problem) rank() int {
	switch {
	case p.Unready && p.Final:
		return 0
	case p.Unready && p.Stage == StageRecovering: // what still lasts is worse
		return 2
	case p.Unready && p.counts():
		return 1
	case p.Unready:
		return 3
	case p.Stage == StageRecovering:
		return 5
	}
	return 4
}
