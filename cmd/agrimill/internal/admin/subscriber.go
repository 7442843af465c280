package admin

import (
	"time"

	"github.com/agrimill/agrimill/subscriber"
)

// Subscriber is [subscriber.Stats] as JSON, with the parts of Totals and Current as if they were its own.
type Subscriber struct {
	Totals
	Current
	// Waits is what waits, by kind, with those that have waited longest.
	Waits []Waits `json:"waits,omitempty"`
}

// Totals count from startup.
type Totals struct {
	Received  int64 `json:"received"`
	Delivered int64 `json:"delivered"`
	Confirmed int64 `json:"confirmed"`
	// Joined counts events that were redelivered while they were open or confirmed.
	Joined    int64 `json:"joined"`
	Nacked    int64 `json:"nacked"`
	Untaken   int64 `json:"untaken"`
	Abandoned int64 `json:"abandoned"`
	SetAside  int64 `json:"set_aside"`
	// Unmatched counts messages that the filters of all routes refused.
	Unmatched int64 `json:"unmatched"`
	// InFiles counts those of the confirmed messages that were confirmed with a file that they are parts of.
	InFiles   int64 `json:"in_files"`
	Malformed int64 `json:"malformed"`
	TooLarge  int64 `json:"too_large"`
	// Quarantined counts events that went to the quarantine instead of a route.
	Quarantined int64 `json:"quarantined"`
	// Rejected counts confirmations that the service will never accept, ConfirmFailures
	// requests that are retried.
	Rejected        int64 `json:"rejected"`
	ConfirmFailures int64 `json:"confirm_failures"`
}

// Current is what is open now: received but not yet acked, and acked but not yet accepted by the service, those included that
// wait for a file.
type Current struct {
	// InFlight are not acked; MaxInFlight is the limit, 0 if unknown.
	InFlight             int   `json:"in_flight"`
	InFlightBytes        int64 `json:"in_flight_bytes"`
	MaxInFlight          int   `json:"max_in_flight,omitempty"`
	Held                 int   `json:"held"`
	PendingConfirmations int   `json:"pending_confirmations"`
	// Unsynced counts confirmations that wait until what was stored survives a power cut.
	Unsynced int `json:"unsynced"`
	// SetAsideNow is how many messages are set aside, see [subscriber.Stats]; QuarantineWaiting is how many events wait for the
	// quarantine.
	SetAsideNow       int `json:"set_aside_now,omitempty"`
	QuarantineWaiting int `json:"quarantine_waiting"`
	// Unconfirmed is everything that the gateway still has and this process knows of: [subscriber.Stats.Unconfirmed].
	// OldestUnconfirmed is since when the oldest of it waits, held ones included; zero if there is none.
	Unconfirmed       int       `json:"unconfirmed"`
	OldestUnconfirmed time.Time `json:"oldest_unconfirmed,omitzero"`
}

// Figures are how many messages of the gateway there are since the start, each once: those received are confirmed,
// unconfirmed, or rejected by the gateway.
type Figures struct {
	Received int64 `json:"received"`
	// Stored ones are done with all their routes: stored where these lead, filtered, or in the poison queue.
	Stored int64 `json:"stored"`
	// Confirmed ones are no longer with the gateway.
	Confirmed int64 `json:"confirmed"`
	// Unconfirmed ones are with the gateway, and this process knows of them; Oldest is since when the oldest one waits.
	Unconfirmed int       `json:"unconfirmed"`
	Oldest      time.Time `json:"oldest,omitzero"`
}

// FiguresFrom returns the figures of a subscriber.
func FiguresFrom(s Subscriber) Figures {
	f := Figures{Confirmed: s.Confirmed, Unconfirmed: s.Unconfirmed, Oldest: s.OldestUnconfirmed}
	f.Stored = f.Confirmed + s.Rejected + int64(s.PendingConfirmations+s.Unsynced)
	f.Received = f.Confirmed + s.Rejected + int64(f.Unconfirmed)
	return f
}

// Waits is [subscriber.Waits] as JSON.
type Waits struct {
	Kind    subscriber.WaitKind `json:"kind"`
	Count   int                 `json:"count"`
	Total   int                 `json:"total"`
	Longest []Wait              `json:"longest"`
}

// Wait is [subscriber.Wait] as JSON.
type Wait struct {
	What string `json:"what"`
	// Name is what people call it: an endpoint, a tenant by its endpoints, a route. Empty if there is nothing better than What.
	Name  string    `json:"name,omitempty"`
	Count int       `json:"count"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	// Reason is why it fails, redacted; empty if that is not known.
	Reason string `json:"reason,omitempty"`
}

// SubscriberFrom fills a Subscriber, except for the limits.
func SubscriberFrom(stats subscriber.Stats) Subscriber {
	var waits []Waits
	for _, w := range stats.Waits {
		longest := make([]Wait, len(w.Longest))
		for i, wait := range w.Longest {
			longest[i] = Wait{What: wait.What, Count: wait.Count, Since: wait.Since, Until: wait.Until, Reason: redact(wait.Err)}
		}
		waits = append(waits, Waits{Kind: w.Kind, Count: w.Count, Total: w.Total, Longest: longest})
	}
	return Subscriber{
		Totals: Totals{Received: stats.Received, Delivered: stats.Delivered, Confirmed: stats.Confirmed,
			Joined: stats.Joined, Nacked: stats.Nacked, Untaken: stats.Untaken, Abandoned: stats.Abandoned, SetAside: stats.SetAside,
			Unmatched: stats.Unmatched, InFiles: stats.InFiles, Malformed: stats.Malformed, TooLarge: stats.TooLarge,
			Quarantined: stats.Quarantined, Rejected: stats.Rejected, ConfirmFailures: stats.ConfirmFailures},
		Current: Current{InFlight: stats.InFlight, InFlightBytes: stats.InFlightBytes, Held: stats.HeldNow,
			PendingConfirmations: stats.PendingConfirmations + stats.HeldConfirmations, Unsynced: stats.UnsyncedConfirmations,
			SetAsideNow: stats.SetAsideNow, QuarantineWaiting: stats.QuarantineWaiting,
			Unconfirmed: stats.Unconfirmed, OldestUnconfirmed: stats.OldestUnconfirmed},
		Waits: waits,
	}
}
