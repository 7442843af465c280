package subscriber

import (
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// Stats is a snapshot of a subscriber. Counters start at the construction of the
// subscriber and never decrease.
type Stats struct {
	// Stream is the state of the event stream.
	Stream StreamState

	// Lease tells how the subscriber stands with [Config.Lease]; zero without one. Without the
	// lease nothing is open, and nothing waits.
	Lease LeaseState

	// Received counts decoded events, including redelivered ones.
	Received int64
	// Delivered counts messages received from output channels, including redelivered ones.
	Delivered int64
	// ReceivedBytes counts the payload bytes that arrived, embedded in events or
	// downloaded, including redelivered ones. Payloads that a handler opens itself
	// ([PayloadLazy]) are not counted.
	ReceivedBytes int64
	// DeliveredBytes counts the payload bytes of the messages in Delivered.
	DeliveredBytes int64
	// Nacked counts messages that were nacked.
	Nacked int64
	// Joined counts redelivered events that were joined to their first copy.
	Joined int64
	// Untaken counts events that no subscription accepts. They stay unconfirmed.
	Untaken int64
	// Abandoned counts events that were left with the service, because there was no room, their
	// subscription ended or their payload was unavailable, and that were not set aside.
	Abandoned int64
	// Left is how many messages were left with the service on this connection, other than those
	// set aside. The next connection brings them.
	Left int
	// SetAside counts how often a message was set aside: its route and the poison queue do not
	// accept it, or it cannot be delivered, because its payload is gone or too large. It stays
	// unconfirmed until the next connection.
	SetAside int64
	// SetAsideNow is how many messages are set aside now, and not confirmed since. Of more than
	// Config.RecentConfirmed that were given up for whatever reason the oldest are forgotten.
	SetAsideNow int
	// Malformed counts events that could not be decoded.
	Malformed int64
	// Unreadable counts optional fields, and endpoints in lists, that could not be read and were
	// left out of their events.
	Unreadable int64
	// TooLarge counts events that were skipped because of their size.
	TooLarge int64
	// Quarantined counts events stored in the quarantine, and QuarantineFailures
	// failed attempts to store one.
	Quarantined, QuarantineFailures int64
	// QuarantineWaiting is how many events are waiting for the quarantine now.
	QuarantineWaiting int
	// Unmatched counts messages that everybody who got them refused, see [Config.Unmatched]. With
	// [UnmatchedQuarantine] it counts deliveries, which may be whole files.
	Unmatched int64
	// Overtaken counts messages that failed although later ones of their key
	// may have been stored before them, with sinks that keep several on their way.
	Overtaken int64
	// Expired counts payloads whose URI had expired.
	Expired int64
	// Held counts messages that were held back for a file.
	Held int64
	// InFiles counts messages that were confirmed with a file that they are parts of. They count in Confirmed, too.
	InFiles int64

	// Confirmed counts confirmations that the service accepted.
	Confirmed int64
	// Rejected counts confirmations that the service will never accept.
	Rejected int64
	// ConfirmRequests counts requests, and ConfirmFailures those that are retried.
	ConfirmRequests int64
	ConfirmFailures int64
	// PendingConfirmations is how many confirmations are pending now, and
	// OldestPending is when the oldest was added; zero if none is pending.
	PendingConfirmations int
	OldestPending        time.Time

	// UnsyncedConfirmations is how many confirmations wait now until what their messages were stored in survives a power
	// cut, of routes with router.DurableSynced. They are not sent on Close.
	UnsyncedConfirmations int
	// PossiblyLost counts messages that were stored again, or are to be, because the sink was restarted before it had synced them.
	PossiblyLost int64

	// Parked is how many messages wait to be redelivered after a nack, counted in each
	// subscription. They do not count in InFlight, unless another subscription has them as well.
	Parked int
	// Stalled is how many other messages wait: their payload cannot be downloaded, or handlers have
	// had them for a second in a full window. They do not count in InFlight.
	Stalled int
	// InFlight and InFlightBytes are the number and payload bytes of the events that count in
	// [Config.MaxInFlight], and OldestInFlight is when the oldest event that is not acked arrived,
	// one that waits included; zero without one.
	InFlight       int
	InFlightBytes  int64
	OldestInFlight time.Time
	// HeldNow is how many messages are currently held back.
	HeldNow int
	// HeldConfirmations is how many confirmations are currently held back because the
	// message may be a chunk whose file is not acked yet. They are not sent on Close.
	HeldConfirmations int
	// ReleasedConfirmations counts those that were sent before their time because more than
	// Config.MaxHeld were held back.
	ReleasedConfirmations int64

	// OldestUnconfirmed is since when the oldest message waits that is not confirmed, whatever it waits for: in
	// flight, set aside, or held for a file since it arrived, to be confirmed since it was acked, or until it is known to survive a power
	// cut since that could be; zero if there is none.
	OldestUnconfirmed time.Time

	// Unconfirmed is how many messages the service still has that this subscriber knows of: in flight, waiting, held,
	// left, set aside, waiting for the quarantine, or with a confirmation that is pending or waits.
	Unconfirmed int

	// Waits is what waits, what for, and for how long, by kind. A key, subscription or payload host
	// that has waited for ten seconds is logged, and again when it gets on; so is a tenant. Messages
	// that are nacked are logged as those of their route or subscription.
	Waits []Waits
}

// StreamState is the state of the event stream.
type StreamState struct {
	// Connected is true while the stream is open.
	Connected bool
	// AwaitingHead is true while the stream is open but the service has sent nothing
	// on it, not even the response head: some services send that with the first
	// event. [gateway.Client.LastCall] tells whether it is up.
	AwaitingHead bool
	// Since is when Connected or AwaitingHead last changed; zero before the first
	// attempt.
	Since time.Time
	// Connects counts successful connects.
	Connects int64
	// LastError is why the stream last ended or could not be opened; nil if neither
	// has happened.
	LastError error
	// RefusedSince is when the service started to answer every request for the
	// stream with 400 or 403; zero if the latest answer was a different one. EndsAt is
	// when all subscriptions end if this continues, see [Config.StreamRefusedFor];
	// zero if they do not.
	RefusedSince time.Time
	EndsAt       time.Time
}

// counters are those of Stats, and of watchStream. The workers of a lease count in the same ones, one after the other.
type counters struct {
	received, delivered, nacked, joined, untaken, abandoned, overtaken atomic.Int64
	malformed, unreadable, tooLarge, expired, held, inFiles, setAside  atomic.Int64
	unmatched, released, connects, quarantined, quarantineFailures     atomic.Int64
	confirmed, rejected, confirmRequests, confirmFailures              atomic.Int64
	receivedBytes, deliveredBytes                                      atomic.Int64
	possiblyLost                                                       atomic.Int64
	inVain                                                             atomic.Int64 // terms in a row that were given up without a stream
}

// Stats returns a snapshot. It is cheap enough to call every second.
func (s *Subscriber) Stats() Stats {
	state := s.holder.leaseState()
	s = s.working()
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := s.confirmer.waiting
	counts := s.core.Counts()
	stats := Stats{
		Lease:    state,
		Received: s.stats.received.Load(), Delivered: s.stats.delivered.Load(), Nacked: s.stats.nacked.Load(),
		ReceivedBytes: s.stats.receivedBytes.Load(), DeliveredBytes: s.stats.deliveredBytes.Load(),
		Joined: s.stats.joined.Load(), Untaken: s.stats.untaken.Load(), Abandoned: s.stats.abandoned.Load(),
		Malformed: s.stats.malformed.Load(), Unreadable: s.stats.unreadable.Load(), TooLarge: s.stats.tooLarge.Load(), Expired: s.stats.expired.Load(),
		Overtaken: s.stats.overtaken.Load(),
		Held:      s.stats.held.Load(), InFiles: s.stats.inFiles.Load(), SetAside: s.stats.setAside.Load(),
		Confirmed: s.stats.confirmed.Load(), Rejected: s.stats.rejected.Load(), Unmatched: s.stats.unmatched.Load(),
		ReleasedConfirmations: s.stats.released.Load(),
		ConfirmRequests:       s.stats.confirmRequests.Load(), ConfirmFailures: s.stats.confirmFailures.Load(),
		Quarantined: s.stats.quarantined.Load(), QuarantineFailures: s.stats.quarantineFailures.Load(),
		InFlight: counts.Moving, InFlightBytes: counts.MovingBytes, Parked: counts.PutOff, Stalled: max(0, counts.Waiting-counts.PutOff),
		Left: counts.Left, HeldNow: counts.Held, HeldConfirmations: counts.Awaiting, UnsyncedConfirmations: counts.Unsynced,
		PendingConfirmations: pending, PossiblyLost: s.stats.possiblyLost.Load(),
	}
	stats.Stream = s.loop.connection.stream
	stats.Stream.Connects = s.stats.connects.Load()
	stats.Waits = appendWaits(s.waits(time.Now(), false), WaitTenant, s.confirmer.queue.waits())
	for b := range s.confirmer.queue.all {
		stats.OldestPending = earlier(stats.OldestPending, b.since)
	}
	for l := range s.core.Lanes {
		for it := range l.Items {
			stats.OldestInFlight = earlier(stats.OldestInFlight, s.clock.time(it.Opened))
			if forSubscribers(l) {
				break
			}
			stats.QuarantineWaiting++
		}
	}
	stats.OldestUnconfirmed = earlier(stats.OldestInFlight, stats.OldestPending)
	aside, since := s.core.SetAside()
	if stats.SetAsideNow = aside; since > 0 {
		stats.OldestUnconfirmed = earlier(stats.OldestUnconfirmed, s.clock.time(since))
	}
	stats.Unconfirmed = counts.Moving + counts.Waiting + counts.Held + counts.Awaiting + counts.Unsynced + counts.Left + aside + pending
	if overdue := s.core.Overdue(s.now()); overdue > 0 {
		stats.OldestUnconfirmed = earlier(stats.OldestUnconfirmed, s.clock.time(overdue))
	}
	s.core.Waiters(s.now(), func(_ *core.Message, _ bool, since, _ time.Duration) {
		stats.OldestUnconfirmed = earlier(stats.OldestUnconfirmed, s.clock.time(since))
	})
	return stats
}
