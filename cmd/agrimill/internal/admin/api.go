package admin

import (
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/farmdata/content"
)

// Status is the response to GET /api/status.
type Status struct {
	Snapshot
	// Figures are those of the subscriber, so that they agree with each other and with the gateway.
	Figures Figures `json:"figures"`
	// Browsable says that GET /api/poison can list the poison queue, Replay that a token is
	// configured, so that messages can be replayed.
	Browsable bool `json:"poison_browsable"`
	Replay    bool `json:"replay"`
	// Job is the latest replay or drop, which may still run; nil if there was none since the start.
	Job     *PoisonJob `json:"job,omitempty"`
	Metrics bool       `json:"metrics"`
	// Selected has the figures of the tenant or endpoint that the request names; nil if it names none. All else is of
	// all tenants.
	Selected *SelectedStatus `json:"selected,omitempty"`
}

// SelectedStatus is what there is of a tenant, or of a receiving endpoint.
type SelectedStatus struct {
	// What happened since the start, at most a few seconds old, from the journal.
	history.Selected
	// What is open now: InFlight events are not acked by all routes, Held ones wait for their file, and Pending confirmations
	// for the gateway. OldestUnconfirmed is when the oldest in flight arrived, or was added to what is to be confirmed.
	InFlight          int       `json:"in_flight"`
	Held              int       `json:"held"`
	Pending           int       `json:"pending_confirmations"`
	OldestUnconfirmed time.Time `json:"oldest_unconfirmed,omitzero"`
	// Waiting is what the routes from the gateway have of it, by name; those that have nothing are left out.
	Waiting map[string]OpenOnRoute `json:"waiting"`
}

// OpenOnRoute is what a route is not done with.
type OpenOnRoute struct {
	Open   int       `json:"open"`
	Oldest time.Time `json:"oldest"`
}

// Readiness is the response to GET /readyz.
type Readiness struct {
	Ready    bool    `json:"ready"`
	Sentence string  `json:"sentence,omitempty"`
	Checks   []Check `json:"checks"`
	// CheckedAt is the time of the checks, a few seconds ago.
	CheckedAt time.Time `json:"checked_at,omitzero"`
}

// TenantList is the response to GET /api/tenants.
type TenantList struct {
	Tenants []Tenant `json:"tenants"`
}

// PoisonPage is the response to GET /api/poison: a page of the queue, oldest first.
type PoisonPage struct {
	Offset   int              `json:"offset"`
	Messages []PoisonedRecord `json:"messages"`
	More     bool             `json:"more"`
}

// PoisonContents is the response to GET /api/poison/contents and /api/contents: the metadata of a message and what is in
// its payload, either a summary, if it is farm data, or a preview.
type PoisonContents struct {
	Line    string           `json:"line"`
	Summary *content.Summary `json:"summary,omitempty"`
	SVG     string           `json:"svg,omitempty"`
	Preview *PoisonPreview   `json:"preview,omitempty"`
	// Metadata has the history of the message, too: its attempts, when it failed first and last, and
	// why.
	Metadata map[string]string `json:"metadata"`
	// Place is where the message was read; empty for the poison queue that the request named.
	Place string `json:"place,omitempty"`
}

// PoisonedRecord describes a poisoned message, without its payload.
type PoisonedRecord struct {
	ID    string `json:"id"`
	Route string `json:"route,omitempty"`
	Topic string `json:"topic,omitempty"`
	// Reason is redacted. Class is a [router.Class].
	Reason string `json:"reason,omitempty"`
	Class  string `json:"class,omitempty"`
	// MessageType, Tenant, Endpoint (the receiving one) and Filename are those of
	// the message; for an event in the quarantine the type is that of the event if the message has none.
	MessageType string `json:"message_type,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	Endpoint    string `json:"endpoint,omitempty"`
	Filename    string `json:"filename,omitempty"`
	UUID        string `json:"uuid"`
	// Size is the size of the payload in bytes, -1 if unknown. PayloadMode is empty if the payload is in the record.
	Size        int64  `json:"size"`
	PayloadMode string `json:"payload_mode,omitempty"`
	// Attempts are those of the last time, and Count is how often it was poisoned, between First and Last.
	Attempts int       `json:"attempts"`
	Count    int       `json:"count"`
	First    time.Time `json:"first,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	// Foreign says that no router wrote the message, so it cannot be replayed: it is somebody else's, or an event in the
	// quarantine, which has a reason and a class.
	Foreign bool `json:"foreign,omitempty"`
	// Unreadable are the keys of the metadata whose value is missing or cannot be read.
	Unreadable []string `json:"unreadable,omitempty"`
}

// ReplayResult is what became of one message.
type ReplayResult struct {
	ID      string        `json:"id"`
	Outcome ReplayOutcome `json:"outcome"`
	Reason  string        `json:"reason,omitempty"`
}

// ReplayOutcome is what became of a message to be replayed or dropped.
type ReplayOutcome string

// The outcomes of a replay or drop.
const (
	// ReplayDelivered: the sink stored it. It was removed from the queue.
	ReplayDelivered ReplayOutcome = "delivered"
	// ReplayDuplicate: it was already handled. It was removed from the queue.
	ReplayDuplicate ReplayOutcome = "duplicate"
	// ReplayPoisoned: it failed again and is in the queue under another ID.
	ReplayPoisoned ReplayOutcome = "poisoned"
	// ReplayKept: it stayed in the queue as it was; Reason says why.
	ReplayKept ReplayOutcome = "kept"
	// ReplayGone: it was no longer in the queue.
	ReplayGone ReplayOutcome = "gone"
	// ReplayDropped: it was dropped, not replayed.
	ReplayDropped ReplayOutcome = "dropped"
)
