package router

import (
	"context"
	"time"
)

// ReserveResult is the answer of [DedupStore.Reserve].
type ReserveResult int

const (
	// Reserved: the caller may handle the message and then has to call Commit
	// or Release.
	Reserved ReserveResult = iota + 1
	// Busy: somebody else holds the reservation.
	Busy
	// Committed: the message was handled before.
	Committed
)

// Token names one reservation of a key, so that a holder whose lease has expired
// cannot release the reservation of the next one.
type Token uint64

// DedupStore remembers the keys of handled messages. A key is reserved while a
// message is handled, committed when that succeeded, released when it did not.
//
// Implementations are safe for concurrent use, atomic per key and honour ctx.
type DedupStore interface {
	// Reserve reserves key for at most lease: a reservation that is neither
	// committed nor released by then, because its process died, is as good as
	// released. The token is valid with [Reserved] only.
	Reserve(ctx context.Context, key Key, lease time.Duration) (ReserveResult, Token, error)
	// Commit records that the message was handled, to be remembered for ttl at
	// least, memory permitting. It does so even when the lease has expired, or
	// another holder has the reservation now: the message is handled, after all.
	Commit(ctx context.Context, key Key, token Token, ttl time.Duration) error
	// Release ends the reservation. It does nothing when the token does not
	// hold the reservation any more, or the key is committed.
	Release(ctx context.Context, key Key, token Token) error
}
