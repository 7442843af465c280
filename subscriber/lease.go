package subscriber

import (
	"context"
	"time"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// ErrLeaseLost: a term has ended for good, because another process has the lease or the term
// was released. Asking again does not help; Acquire begins another term.
var ErrLeaseLost = lease.ErrLost

// Lease is what several processes compete for when one at a time may work; see [Config.Lease].
// Each process has a Lease of its own to the same thing in a store that all of them share.
//
// The process that has the lease is its holder. It has it from one Renew to the next, each time
// for TTL, counted from before the request was sent: so the holder stops, by its own clock,
// before anybody else may begin. Implementations promise:
//
//   - Nobody acquires the lease before TTL has passed since the store accepted the holder's
//     latest Acquire or Renew, unless the holder released it. They time that by what they have
//     seen themselves and compare no clocks of two machines. A store that has lost everything
//     counts as one that was renewed just now.
//   - Of several that want it at the same time, one gets it.
//   - Epochs grow from term to term, whoever holds it, and never repeat as long as the store
//     keeps them or a process lives that has seen them.
//
// Nothing can be checked between a check and a write that follows it: what the holder had begun
// before its time was over may land afterwards. Epochs tell such writes apart in stores that
// look at them.
//
// The methods are safe for concurrent use, but one call of Acquire runs at a time.
type Lease interface {
	// TTL is how long the lease is held without renewal. It is positive and does not change.
	TTL() time.Duration
	// Acquire waits until this process has the lease, also through outages of the store, and
	// begins a term. An earlier term of this Lease has ended then. The error is that of ctx,
	// or says that the lease cannot be had at all; Acquire may be tried again.
	Acquire(ctx context.Context) (LeaseTerm, error)
}

// LeaseTerm is the time of one holder with the lease, from Acquire until it is over: released,
// lost, or not renewed for the TTL. The methods are safe for concurrent use, but one call of
// Renew or Release runs at a time.
type LeaseTerm interface {
	// Epoch is the number of the term, at least 1: a fence token. Later terms have higher ones.
	Epoch() uint64
	// Renewed is just before the latest request was sent that the store has accepted, that of
	// Acquire or Renew: the holder has the lease until TTL after it, and starts nothing from
	// then on. It has a monotonic reading.
	Renewed() time.Time
	// Renew extends the term, once, and reports an outage rather than waiting for its end. It
	// returns an error that matches ErrLeaseLost if the term is over for good. After any other
	// error, also that of ctx, it is not known whether the store has accepted the request, and
	// Renewed has not changed.
	Renew(ctx context.Context) error
	// Lost is closed when it is known that the term is over for good. That may be before its
	// time, or never: it replaces no look at the clock.
	Lost() <-chan struct{}
	// Release ends the term, so that another process gets the lease at once. It leaves the
	// lease of another holder alone. If it fails, the lease ends with its time. Calling it
	// again has no further effect.
	Release(ctx context.Context) error
}

// LeaseRole is what a Subscriber does about its lease.
type LeaseRole int

const (
	// LeaseNone: no lease is configured, or the Subscriber does not want it: nobody has
	// subscribed, or it is closed.
	LeaseNone LeaseRole = iota
	// LeaseStandby: it waits for the lease.
	LeaseStandby
	// LeaseHolder: it has the lease, and works.
	LeaseHolder
)

var leaseRoles = []string{"none", "standby", "holder"}

// String returns none, standby or holder.
func (r LeaseRole) String() string { return enum.Text(r, leaseRoles) }

// LeaseState tells how a Subscriber stands with its lease.
type LeaseState struct {
	// Role is what it does now.
	Role LeaseRole
	// Epoch is that of its present term, or of its latest one; 0 before the first.
	Epoch uint64
	// Since is when Role changed last; zero if it never did.
	Since time.Time
	// Changes counts the changes of Role. It never decreases.
	Changes int64
	// Lost counts the terms that ended because the lease was not renewed in time, or because
	// another process had it.
	Lost int64
	// GivenUp counts the terms that ended because the stream was down or the gateway silent; see
	// [Config.StreamDownFor].
	GivenUp int64
	// Until is when the lease ends unless it is renewed; zero without it.
	Until time.Time
	// LastError is why the latest Acquire or Renew failed; nil after a success.
	LastError error
}
