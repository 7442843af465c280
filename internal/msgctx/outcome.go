package msgctx

import (
	"strconv"
	"sync/atomic"
)

// Outcome is what the delivery of a message to one subscription came to.
type Outcome int32

const (
	// Left: it was not acked, and this subscription does not deliver it again: the
	// subscription ended, for instance. The message stays unconfirmed, for others or
	// for the next connection.
	Left Outcome = iota
	// Acked: it was handled, as far as this subscription goes.
	Acked
	// GivenBack: it was nacked, and the subscription delivers it again.
	GivenBack
	// SetAside: it was nacked by a handler that will never take it as it is. The
	// message stays unconfirmed, and out of the way of others, until the service
	// redelivers it.
	SetAside
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Left:
		return "left for others"
	case Acked:
		return "acked"
	case GivenBack:
		return "given back"
	case SetAside:
		return "set aside"
	}
	return "outcome " + strconv.Itoa(int(o))
}

// Nack is what the nack of a message stands for: [GivenBack], until a handler wants
// something else. Its methods do not block and are safe for concurrent use.
type Nack struct{ wanted atomic.Int32 }

// Want makes a nack stand for o, which is GivenBack, SetAside or Left; a nack never
// stands for Acked. It must precede the nack. An ack is not affected.
func (n *Nack) Want(o Outcome) {
	if o != Acked {
		n.wanted.Store(int32(o - GivenBack))
	}
}

// Outcome returns what a nack stands for.
func (n *Nack) Outcome() Outcome { return Outcome(n.wanted.Load()) + GivenBack }
