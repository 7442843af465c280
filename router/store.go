package router

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrNoKeys says that a [Claim] has neither of its keys.
var ErrNoKeys = errors.New("dedup: the claim has no key")

// Keys are what a message is recognized by: any one of them is enough. The zero [Key]
// stands for none; one of the two has to be there. Both share one namespace: what was
// recorded as one of them is recognized as the other.
type Keys struct {
	// Delivery names what was delivered: a redelivery has the same one.
	Delivery Key
	// Content names what a sender sent: a repetition by the sender has the same one.
	Content Key
	// MaybeRepeated: there is no Content because the message may be a chunk, or a file, or nobody has read
	// it. Should its sender repeat it, it is handled again. It is for [RouteHealth.MaybeRepeated]; stores do
	// not use it.
	MaybeRepeated bool
}

// All yields Delivery and Content if they are there, in this order, each one once.
func (k Keys) All() iter.Seq2[KeyKind, Key] {
	return func(yield func(KeyKind, Key) bool) {
		if k.Delivery != (Key{}) && !yield(DeliveryKey, k.Delivery) {
			return
		}
		if k.Content != (Key{}) && k.Content != k.Delivery {
			yield(ContentKey, k.Content)
		}
	}
}

// Valid returns [ErrNoKeys] if there is neither Delivery nor Content.
func (k Keys) Valid() error {
	if k.Delivery == (Key{}) && k.Content == (Key{}) {
		return ErrNoKeys
	}
	return nil
}

// KeyKind is one of the keys of [Keys].
type KeyKind int

const (
	// DeliveryKey is [Keys.Delivery].
	DeliveryKey KeyKind = iota + 1
	// ContentKey is [Keys.Content].
	ContentKey
)

// Owner is who handles messages. The zero value is an unknown one.
type Owner struct {
	// Instance names a process and the one that replaces it, which takes over its reservations
	// at once. Processes that run at the same time need different ones, or none. The program
	// agrimill takes the host name and admin.address if it is left out, and none for - or if
	// admin.address is off.
	Instance string `yaml:"instance"`
	// Session is another one for each process.
	Session string `yaml:"-"`
}

// Claim is a message and who handles it.
type Claim struct {
	Keys  Keys
	Owner Owner
}

// ReserveState is what [DedupStore.Reserve] came to.
type ReserveState int

const (
	// Reserved: the caller may handle the message and then has to call Commit
	// or Release.
	Reserved ReserveState = iota + 1
	// Busy: the message is being handled.
	Busy
	// Committed: the message was handled before.
	Committed
)

// Reservation is the answer of [DedupStore.Reserve].
type Reservation struct {
	State ReserveState
	// Token is for Commit and Release. It is valid with [Reserved] only.
	Token Token
	// Key is the key that was found with [Busy] and [Committed]; with both of them
	// found, the delivery key.
	Key KeyKind
	// Holder is who has the reservation with [Busy], zero if that is not known, and
	// Until when it ends at the latest, unless it is renewed; zero if that is not known.
	Holder Owner
	Until  time.Time
}

// Token names one reservation, so that a holder whose lease has expired cannot
// release the reservation of the next one. What the numbers mean is up to the store;
// there are two for stores that keep the keys apart.
type Token [2]uint64

// DedupStore remembers the keys of handled messages. They are reserved while a message is handled, committed when that
// succeeded, released when it did not.
//
// Implementations are safe for concurrent use and honor ctx. They are atomic for each key: of all that reserve it at the
// same time, one gets the reservation. For the two keys of one claim they promise this much at least:
//
//   - Reserve gets both keys or none. While it does not yet know, others may find one of them [Busy]; should its process
//     die then, until the reservation ends.
//   - Commit that returns nil has recorded both. One that fails, or whose process dies, may have recorded the delivery key
//     alone, never the content key alone: a redelivery is recognized then, a repetition by the sender may be handled again.
//   - Release that returns nil has released both.
//
// A store says what more it promises. All methods return [ErrNoKeys] for a claim without a key.
type DedupStore interface {
	// Reserve reserves the keys for at most lease. Until then nobody takes the reservation over, the same owner included,
	// as long as the store through which it was made is open and its process lives. When that was closed, died, or is
	// replaced by one of the same Instance, it is free, at the latest when the lease ends and earlier if the store
	// can tell. A call that fails leaves nothing reserved for its own process. A key that is committed counts for more
	// than the other one that is reserved.
	Reserve(ctx context.Context, claim Claim, lease time.Duration) (Reservation, error)
	// Commit records that the message was handled, to be remembered for ttl at least, memory permitting, whoever has the
	// reservation now. A store may record later what it could not record when Commit failed.
	Commit(ctx context.Context, claim Claim, token Token, ttl time.Duration) error
	// Release ends the reservation. A key that the token does not hold any more, or
	// that is committed, stays as it is.
	Release(ctx context.Context, claim Claim, token Token) error
}
