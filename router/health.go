package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// RouteState is what a route is doing.
type RouteState string

// The states of a route.
const (
	// StateStarting: Run was not called yet, or the subscription does not
	// exist yet. LastError says why when it was tried.
	StateStarting RouteState = "starting"
	// StateRunning: messages are taken and handled.
	StateRunning RouteState = "running"
	// StateOutage: nothing succeeds, or the source cannot be read, see [Route.From]. Messages wait.
	StateOutage RouteState = "outage"
	// StateFailing: messages are taken and handled, and the last [Config.FailingAfter] were all poisoned. It ends when one
	// is delivered and none has been poisoned for a minute.
	StateFailing RouteState = "failing"
	// StateEnded: the subscription has ended while the Router runs.
	StateEnded RouteState = "ended"
	// StateFailed: the subscription was refused for good; see LastError.
	StateFailed RouteState = "failed"
	// StateStopped: the Router stops or has stopped.
	StateStopped RouteState = "stopped"
)

// RouteHealth is the state of one route at one moment, made for status pages:
// it can be marshalled to JSON and holds nothing secret.
type RouteHealth struct {
	Name  string     `json:"name"`
	State RouteState `json:"state"`
	// Since is when the state began, Until when the sink is tried again in an outage, zero in
	// other states.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`

	// InFlight counts the messages that the route has taken and not finished;
	// Waiting counts those of them that wait for another attempt.
	InFlight int `json:"in_flight"`
	Waiting  int `json:"waiting"`
	// WaitingForCopies counts the messages of which a copy is being handled; most are not in flight meanwhile.
	WaitingForCopies int `json:"waiting_for_copies"`
	// CopyWaits are the same by who handles the copies, those that wait longest first, at most 20.
	CopyWaits []CopyWait `json:"copy_waits,omitempty"`

	// Refused is [Retry.Refused]. The messages of these topics wait, mostly without being in flight.
	Refused []RefusedTopic `json:"refused,omitempty"`

	// How messages have ended since the start; see [EventKind].
	Delivered  uint64 `json:"delivered"`
	Filtered   uint64 `json:"filtered"`
	Duplicates uint64 `json:"duplicates"`
	Poisoned   uint64 `json:"poisoned"`
	Returned   uint64 `json:"returned"`
	// MaybeRepeated counts those of them whose sender may have repeated them, see [Keys.MaybeRepeated].
	MaybeRepeated uint64 `json:"maybe_repeated"`
	// PoisonedInARow counts those of Poisoned since the last one that was delivered.
	PoisonedInARow uint64 `json:"poisoned_in_a_row"`
	// RetriesByClass counts the attempts that were followed by another one, by the class of the error that was tried again.
	RetriesByClass RetryCounts `json:"retries_by_class"`

	// LastSuccess is when the sink last took a message; zero: never.
	LastSuccess time.Time `json:"last_success,omitzero"`
	// LastError is the redacted text of the last failure, empty: none so far.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// CopyWait are the messages that wait for copies which one process handles.
type CopyWait struct {
	// Instance and Session are those of its [Owner], empty if the store knows none.
	Instance string `json:"instance,omitempty"`
	Session  string `json:"session,omitempty"`
	// Count is how many messages wait, Since when the first of them began to.
	Count int       `json:"count"`
	Since time.Time `json:"since"`
	// Until is when the last of its reservations ends unless it is renewed; zero if that is not
	// known.
	Until time.Time `json:"until,omitzero"`
}

// RetryCounts counts retries by [Class]; errors of other classes are not tried
// again.
type RetryCounts struct {
	Handler  uint64 `json:"handler"`
	Outage   uint64 `json:"outage"`
	Shutdown uint64 `json:"shutdown"`
}

// health keeps what [RouteHealth] reports. It is the [Observer] of the route's
// middlewares and hands everything on to the user's.
type health struct {
	name string
	next Observer

	inFlight    atomic.Int64
	counts      [EventReturned + 1]atomic.Uint64
	retries     [ClassRedeliver + 1]atomic.Uint64 // by class
	lastSuccess atomic.Int64                      // Unix nanoseconds, 0 = never

	failingAfter uint64
	poisonedRow  atomic.Uint64
	failingSince atomic.Int64 // Unix nanoseconds, 0 = it never failed; it may be over
	poisonedAt   atomic.Int64 // Unix nanoseconds, of the last one

	mu          sync.Mutex
	state       RouteState
	since       time.Time
	lastError   string
	lastErrorAt time.Time
	cause       error // why the route has ended by itself, if it is known
}

// Observe implements [Observer].
func (h *health) Observe(e Event) {
	e.Route = h.name
	if e.Kind <= EventReturned {
		h.counts[e.Kind].Add(1)
	}
	if e.Kind == EventRetry && e.Class >= 0 && int(e.Class) < len(h.retries) {
		h.retries[e.Class].Add(1)
	}
	switch e.Kind {
	case EventDelivered:
		h.lastSuccess.Store(time.Now().UnixNano())
		if h.poisonedRow.Load() != 0 {
			h.poisonedRow.Store(0)
		}
	case EventPoisoned:
		now := time.Now()
		if !h.fails(now) {
			h.failingSince.Store(0)
		}
		h.poisonedAt.Store(now.UnixNano())
		if h.poisonedRow.Add(1) >= h.failingAfter {
			h.failingSince.CompareAndSwap(0, now.UnixNano())
		}
	}
	if e.Text != "" && e.Class != ClassShutdown {
		h.fail(e.Text)
	}
	observe(h.next, e)
}

// failingQuiet is how long no message may have been poisoned for [StateFailing] to end. Without it the state would
// change with each of the few messages that pass while nearly all are poisoned.
const failingQuiet = time.Minute

// fails reports whether the route has begun to fail and still does.
func (h *health) fails(now time.Time) bool {
	quiet := now.Sub(time.Unix(0, h.poisonedAt.Load())).Abs() // the clock may have been set back
	return h.failingSince.Load() != 0 && (h.poisonedRow.Load() != 0 || quiet < failingQuiet)
}

func (h *health) fail(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastError, h.lastErrorAt = text, time.Now()
}

func (h *health) setState(state RouteState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != state && h.state != StateStopped { // a subscription may come about in the meantime
		h.state, h.since = state, time.Now()
	}
}

// end sets a state that the route does not leave by itself, and why it is in it.
func (h *health) end(state RouteState, cause error) {
	h.setState(state)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cause = cause
}

// report fills in everything but what the retry middleware knows.
func (h *health) report() RouteHealth {
	h.mu.Lock()
	report := RouteHealth{
		Name: h.name, State: h.state, Since: h.since,
		LastError: h.lastError, LastErrorAt: h.lastErrorAt,
	}
	h.mu.Unlock()
	report.PoisonedInARow = h.poisonedRow.Load()
	if report.State == StateRunning && h.fails(time.Now()) {
		report.State, report.Since = StateFailing, time.Unix(0, h.failingSince.Load())
	}
	report.InFlight = int(h.inFlight.Load())
	report.Delivered = h.counts[EventDelivered].Load()
	report.Filtered = h.counts[EventFiltered].Load()
	report.Duplicates = h.counts[EventDuplicate].Load()
	report.Poisoned = h.counts[EventPoisoned].Load()
	report.Returned = h.counts[EventReturned].Load()
	report.RetriesByClass = RetryCounts{
		Handler:  h.retries[ClassHandler].Load(),
		Outage:   h.retries[ClassOutage].Load(),
		Shutdown: h.retries[ClassShutdown].Load(),
	}
	if at := h.lastSuccess.Load(); at != 0 {
		report.LastSuccess = time.Unix(0, at)
	}
	return report
}
