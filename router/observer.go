package router

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/sinks"
)

// EventKind says what an [Event] tells.
type EventKind int

// What happens to messages. Each message that a route takes ends in exactly one of the first five, unless it is put off and waits
// with its subscriber, for what is down, a copy of it that is being handled, or the devices of a time log: then it comes again.
const (
	// EventDelivered: the sink holds the message; it is acknowledged.
	EventDelivered EventKind = iota + 1
	// EventFiltered: the filter or the transformation dropped the message; it
	// is acknowledged.
	EventFiltered
	// EventDuplicate: the message was handled before; it is acknowledged.
	EventDuplicate
	// EventPoisoned: the poison queue holds the message; it is acknowledged.
	// Class and Err say why, Receipt where, as far as the queue's sink tells.
	EventPoisoned
	// EventReturned: the message was returned (nacked). Class and Err say why.
	EventReturned

	// EventRetry: an attempt failed and another one follows, at the earliest
	// after Delay. Class and Err say why, Attempt counts the failures so far.
	EventRetry
	// EventOutageBegan: an outage began. Err says why.
	EventOutageBegan
	// EventOutageEnded: the outage that began Delay ago is over; with ClassShutdown the Router has stopped in it.
	EventOutageEnded
	// EventPoisonFailed: the poison queue did not take a message. Err says why.
	EventPoisonFailed
	// EventDedupFailed: the dedup store failed after the message was handled,
	// so a copy of it may be handled again. Err says why.
	EventDedupFailed

	// EventStarted: the route begins with the message.
	EventStarted
	// EventStored: a sink has stored a message that was made of it, Delay after the route began to publish. Receipt says
	// where, as far as the sink tells. It comes before EventDelivered, perhaps more than once.
	EventStored
)

// String returns the kind in lower case, e.g. "delivered".
func (k EventKind) String() string { return enum.Text(k, eventKinds) }

var eventKinds = []string{
	"unknown", "delivered", "filtered", "duplicate", "poisoned", "returned",
	"retry", "outage began", "outage ended", "poison failed", "dedup failed", "started", "stored",
}

// Event is one thing that happened. Fields that Kind does not mention are zero.
type Event struct {
	// Route is the name of the route; empty when a middleware is used outside
	// of this package's Router without a name.
	Route string
	Kind  EventKind
	Class Class
	// Context is the context in which the message was handled when it happened, for tracing; it may have ended. Of
	// EventOutageBegan and EventOutageEnded it is that of the message by which the outage was noticed.
	Context context.Context
	// Message is the message as it was received; nil where the event is not about one. With EventStored and EventDelivered
	// it may have the [gateway.KeyDedupID] under which it was published. It must not be changed, nor be kept after
	// Observe returned.
	Message *message.Message
	// Receipt says where EventStored or EventPoisoned stored the message.
	Receipt sinks.Receipt
	// Err is the error as it came, for errors.Is and errors.As. Its own text may
	// hold parts of a payload if the handler put them there.
	Err error
	// Text is the text of Err, fit for logs; see [RedactError].
	Text    string
	Attempt int
	Delay   time.Duration
}

// Observer observes what happens, for metrics and tracing. Observe is called by the goroutines that handle messages, never
// under a lock; it must be safe for concurrent use and must not block.
type Observer interface {
	Observe(Event)
}

// ObserverFunc makes an [Observer] of a function.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

func observe(o Observer, e Event) {
	if o != nil {
		o.Observe(e)
	}
}
