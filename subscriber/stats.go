package subscriber

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a subscriber. Counters only grow; they count from the
// construction of the subscriber.
type Stats struct {
	// Stream is the state of the event stream.
	Stream StreamState

	// Received counts decoded events, also those that came again.
	Received int64
	// Delivered counts messages taken from output channels, also repeated ones.
	Delivered int64
	// ReceivedBytes counts the payload bytes that arrived, embedded in events or
	// downloaded, also those that came again. What a handler opens by itself
	// ([PayloadLazy]) is not counted.
	ReceivedBytes int64
	// DeliveredBytes counts the payload bytes in the messages of Delivered.
	DeliveredBytes int64
	// Nacked counts messages that were nacked.
	Nacked int64
	// Joined counts events that came again and were joined to their first copy.
	Joined int64
	// Untaken counts events that no subscription took. They stay unconfirmed.
	Untaken int64
	// Abandoned counts events that were given up unconfirmed: their subscription
	// ended, or their payload could not be had.
	Abandoned int64
	// SetAside counts messages that a route gave back to be left alone, because
	// not even its poison queue takes them. They stay unconfirmed.
	SetAside int64
	// Malformed counts events that could not be decoded.
	Malformed int64
	// TooLarge counts events that were skipped on account of their size.
	TooLarge int64
	// Quarantined counts events that the quarantine holds, QuarantineFailures
	// attempts to store one that failed.
	Quarantined, QuarantineFailures int64
	// QuarantineWaiting is how many events wait for the quarantine now.
	QuarantineWaiting int
	// Expired counts payloads whose URI had expired.
	Expired int64
	// Held counts messages that were held back for their file.
	Held int64

	// Confirmed counts confirmations that the service took.
	Confirmed int64
	// Rejected counts confirmations that the service will never take.
	Rejected int64
	// ConfirmRequests counts requests, ConfirmFailures those that are repeated.
	ConfirmRequests int64
	ConfirmFailures int64
	// PendingConfirmations is how many confirmations wait now, and
	// OldestPending since when the oldest does, zero when none waits.
	PendingConfirmations int
	OldestPending        time.Time

	// InFlight and InFlightBytes are the events that are open now, and
	// OldestInFlight is when the oldest of them arrived, zero when none is open.
	InFlight       int
	InFlightBytes  int64
	OldestInFlight time.Time
	// HeldNow is how many messages are held back now.
	HeldNow int
}

// StreamState is the state of the event stream.
type StreamState struct {
	// Connected is true while the stream is open.
	Connected bool
	// Since is when Connected last changed; zero before the first attempt.
	Since time.Time
	// Connects counts successful connects.
	Connects int64
	// LastError is why the stream last ended or could not be opened; nil before
	// that has happened.
	LastError error
}

type counters struct {
	received, delivered, nacked, joined, untaken, abandoned atomic.Int64
	malformed, tooLarge, expired, held, setAside            atomic.Int64
	receivedBytes, deliveredBytes                           atomic.Int64
}

// Stats returns a snapshot. It is cheap enough to be called every second.
func (s *Subscriber) Stats() Stats {
	pending, oldest := s.confirmer.pending()
	stats := Stats{
		Received: s.stats.received.Load(), Delivered: s.stats.delivered.Load(), Nacked: s.stats.nacked.Load(),
		ReceivedBytes: s.stats.receivedBytes.Load(), DeliveredBytes: s.stats.deliveredBytes.Load(),
		Joined: s.stats.joined.Load(), Untaken: s.stats.untaken.Load(), Abandoned: s.stats.abandoned.Load(),
		Malformed: s.stats.malformed.Load(), TooLarge: s.stats.tooLarge.Load(), Expired: s.stats.expired.Load(),
		Held: s.stats.held.Load(), SetAside: s.stats.setAside.Load(),
		Confirmed: s.confirmer.confirmed.Load(), Rejected: s.confirmer.rejected.Load(),
		ConfirmRequests: s.confirmer.requests.Load(), ConfirmFailures: s.confirmer.failures.Load(),
		PendingConfirmations: pending, OldestPending: oldest,
	}
	if q := s.quarantine; q != nil {
		stats.Quarantined, stats.QuarantineFailures, stats.QuarantineWaiting = q.count.Load(), q.failures.Load(), q.waiting()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.Stream = s.streamState
	stats.InFlight, stats.InFlightBytes, stats.HeldNow = s.inFlight, s.bytes, len(s.hold.chunks)
	if s.first != nil {
		stats.OldestInFlight = s.first.arrived
	}
	return stats
}
