package msgctx

import (
	"strconv"
	"sync/atomic"
	"time"
)

// Outcome is the result of delivering a message to one subscription.
type Outcome int32

const (
	// Left: it was not acked, and this subscription does not redeliver it, for
	// example because it ended. The message stays unconfirmed, for others or for the
	// next connection.
	Left Outcome = iota
	// Acked: this subscription has handled it.
	Acked
	// Nacked: the subscription redelivers it.
	Nacked
	// SetAside: it was nacked, and its handler can never take it as it is. The
	// message stays unconfirmed and blocks no others until the service redelivers it.
	SetAside
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Left:
		return "left for others"
	case Acked:
		return "acked"
	case Nacked:
		return "nacked"
	case SetAside:
		return "set aside"
	}
	return "outcome " + strconv.Itoa(int(o))
}

// Nack is what the nack of a message means: [Nacked], unless a handler wants
// another outcome. Its methods do not block and are safe for concurrent use.
type Nack struct {
	wanted atomic.Int32
	after  atomic.Int64
	kept   atomic.Pointer[any]
}

// Want makes a nack mean o, which is Nacked, SetAside or Left; Acked is ignored. It
// must precede the nack. An ack is not affected.
func (n *Nack) Want(o Outcome) {
	if o != Acked {
		n.wanted.Store(int32(o - Nacked))
	}
}

// Outcome returns what a nack means.
func (n *Nack) Outcome() Outcome { return Outcome(n.wanted.Load()) + Nacked }

// After makes a nack say that the message is well and waits for something: it is to be
// delivered again after d, instead of the subscriber's backoff for failures, in the order
// of its key, and holds no place in flight until then. It must precede the nack.
func (n *Nack) After(d time.Duration) { n.after.Store(int64(d)) }

// Delay returns what After was given, or 0.
func (n *Nack) Delay() time.Duration { return time.Duration(n.after.Load()) }

// Keep has the subscriber keep v for the next delivery of the message, if a nack after it is
// one with After; a subscriber that has no room for the message forgets it.
func (n *Nack) Keep(v any) { n.kept.Store(&v) }

// Kept returns what was given to Keep, in this delivery or in the one before; or nil.
func (n *Nack) Kept() any {
	if v := n.kept.Load(); v != nil {
		return *v
	}
	return nil
}
