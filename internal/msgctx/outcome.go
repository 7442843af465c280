package msgctx

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/enum"
)

// Outcome is the result of delivering a message to one subscription.
type Outcome int32

const (
	// Left: it was not acked, and this subscription does not redeliver it, for example because it ended. The message stays
	// unconfirmed, for others or for the next connection.
	Left Outcome = iota
	// Acked: this subscription has handled it.
	Acked
	// Nacked: the subscription redelivers it.
	Nacked
	// SetAside: it was nacked, and its handler can never take it as it is. It stays unconfirmed and blocks no others until
	// the service redelivers it.
	SetAside
)

// String returns the outcome in words.
func (o Outcome) String() string {
	return enum.Text(o, []string{"left for others", "acked", "nacked", "set aside"})
}

// Nack is what the nack of a message means: [Nacked], unless a handler wants another outcome. An ack means that it was handled,
// unless it was refused. Its methods do not block and are safe for concurrent use. The exported fields are set before the delivery.
type Nack struct {
	wanted  atomic.Int32
	refused atomic.Bool
	// Overtaken is how many messages of its key had their places behind it when it failed, and may be stored before it.
	Overtaken int32
	// Leased says that the message may be handled until the end of a lease only. Then the Err of its context says so at
	// once, also before Done is closed.
	Leased bool
	// Holds says that its subscriber heeds Hold.
	Holds bool
	// Behind says that others of its key are on their way before it: what waits or fails makes way for them.
	Behind bool
	// Pipeline is told how far the message has come; nil if that is of no use.
	Pipeline Pipeline
	// Follows tells what comes behind the message; nil if its subscriber does not.
	Follows Follows
	after   atomic.Int64 // a duration
	kept    atomic.Pointer[any]
	stored  atomic.Pointer[Hold]
}

// Horizon is when what a route has stored survives a power cut. Its functions do not block.
type Horizon struct {
	// After is how long after its ack that is at the earliest.
	After time.Duration
	// Survives reports whether what was stored between began and acked survives one by now. An error says that it may be lost.
	Survives func(began, acked time.Time) (bool, error)
}

// Hold is how a message was stored whose ack counts only once that survives a power cut.
type Hold struct {
	Horizon *Horizon
	Began   time.Time
	Records []Record
}

// Record has keys of a message that are to be recorded once what was stored survives a power cut.
type Record struct {
	Into Recorder
	Keys [2][16]byte
}

// Recorder is a pointer. Its method does not block.
type Recorder interface{ Record(keys [2][16]byte) }

// Hold makes an ack say that the message was stored since began, and is to be confirmed only once that survives a power
// cut. It must precede the ack.
func (n *Nack) Hold(h *Horizon, began time.Time, records ...Record) {
	n.stored.Store(&Hold{h, began, records})
}

// Held returns what Hold was given; nil without it.
func (n *Nack) Held() *Hold { return n.stored.Load() }

// Follows tells what comes behind a message in its key, so that what the message waits for need not be delivered first.
type Follows interface {
	// Following returns messages of a type behind the one that is being handled, in their order, that have their payload.
	// They are copies to look at: each is delivered in its turn. It does not block.
	Following(messageType string) []*message.Message
}

// A Pipeline is that of a message behind which the next ones of its key may be delivered before it is acked. Its methods
// do not block and are safe for concurrent use.
type Pipeline interface {
	// Begun says that some of what was made of the message has its place, and may be stored whatever becomes of the
	// rest. Placed says so as well.
	Begun()
	// Placed says that all that was made of the message has its place in its order with the sink: what is published from
	// now on comes behind it, unless the sink fails. It is called at most once in a delivery, before the ack or nack.
	Placed()
	// Halt says that the message has failed although it has its place. Then nothing behind it is to be placed.
	Halt()
	// Halted reports whether Halt was called for a message before it.
	Halted() bool
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

// Refuse makes an ack say that the handler does not want the message. It must precede the ack. A
// nack is not affected.
func (n *Nack) Refuse() { n.refused.Store(true) }

// Refused reports whether Refuse was called.
func (n *Nack) Refused() bool { return n.refused.Load() }

// After makes a nack say that the message is well and waits for something: it is to be delivered again after d, in the
// order of its key, and holds no place in flight until then. It must precede the nack.
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
