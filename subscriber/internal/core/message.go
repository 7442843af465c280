package core

import (
	"slices"
	"time"
)

// ID is what is confirmed: a receiving endpoint and a message, each as the 16 bytes of its UUID.
type ID [32]byte

// Message is one event. The fields up to the line are set before [Core.Take], and do not change.
type Message struct {
	Tenant, Key string
	// IDs are what is confirmed once all who want the message have acked it; none if the service never
	// delivers it again.
	IDs []ID
	// File is set for a file: IDs are those of the messages that it was made of.
	File *File
	// Bytes is its size. [Core.Grow] changes it.
	Bytes int64
	// Owner is of whoever made the message.
	Owner any
	// Family is the same for all parts of a file. Hold says that the message may be one of a file that is handled in
	// place of its parts. Large says that its size is that of a part; it may change until the message is closed.
	Family      uint64
	Hold, Large bool
	// Fetching says that its payload has still to be fetched.
	Fetching bool
	// Aside says that it cannot be handled as it is: it is counted until it is confirmed. It is set before it is left.
	Aside bool
	// Last says that there is no other time to take the message: it fits in any case.
	Last bool
	// ----

	// Confirm is set when the message is closed: what is to be confirmed.
	Confirm []Confirmation

	item   Item     // the first one; the others follow it
	slot   [1]int32 // of the ledger, unless it is a file
	place  place
	left   bool // one who wants it left it, or did not get it
	waited bool // for its file, in vain
	stored stored
}

// File is what a message has that is a file.
type File struct {
	ID ID // of the file
	// Part is set when the file is opened: one of the messages that were held for it.
	Part  *Message
	slots []int32 // of the ledger, for each of IDs
}

// Confirmation is one message that is to be confirmed.
type Confirmation struct {
	// It counts as waiting in the lane of the route that acked it last, since then; nil for one that counts nowhere.
	lane  *Lane
	since time.Duration
	entry ref
	// Index is its place among the IDs of its event.
	Index int32
	held  bool // it has waited, see [Hold]
}

// Item is a message for one route.
type Item struct {
	Message *Message
	Lane    *Lane // until it is finished
	// Kept is of whoever handles it.
	Kept any
	// Nacks is how often it was nacked. Overtaken is by how many that came after it in its lane, which may be stored
	// before it.
	Nacks, Overtaken int32
	// Opened is when it came, FirstNack when it was nacked first.
	Opened, FirstNack time.Duration
	// Begun says that some of what was made of it may be stored even if one before it fails.
	Begun bool
	// Refused says that its route, which was handed it, does not want the message: the Acked that follows is no acknowledgment.
	Refused bool

	state   itemState
	moving  bool          // counted as that, and else as waiting
	placed  bool          // see Core.Placed
	counted int32         // how much of Overtaken is
	place   int32         // in the queue; zero while it is not there
	at      time.Duration // when it was handed out last, or is due while it waits
	route   *Route
	other   *Item // the next one of its message

	links[*Item] // in its lane
}

// Sooner is for the heap of the items that wait.
func (it *Item) Sooner(than *Item) bool { return it.at < than.at }

// SetPlace is for the same heap.
func (it *Item) SetPlace(place int) { it.place = int32(place) }

func (it *Item) open() bool { return it.state <= waiting }

// place is where a message is in the window.
type place uint8

const (
	nowhere      place = iota // no route has it
	amongMoving               // an item of it moves
	amongWaiting              // all of them wait
)

type itemState uint8

const (
	queued   itemState = iota // it can be handed out when its turn comes
	handed                    // a handler has it
	waiting                   // it is handed out again when it is due
	gaveUp                    // it is left
	finished                  // it is acked
)

func (m *Message) items(yield func(*Item) bool) {
	if m.item.Message == nil {
		return
	}
	for it := &m.item; it != nil && yield(it); it = it.other {
	}
}

// add makes it an item of m, which is returned.
func (m *Message) add(it Item) *Item {
	last := &m.item
	if last.Message != nil {
		for last.other != nil {
			last = last.other
		}
		last.other = new(Item)
		last = last.other
	}
	*last = it
	return last
}

// has reports whether r has m, or has acked or refused it.
func (m *Message) has(r *Route) bool {
	for it := range m.items {
		if it.route == r && it.state != gaveUp {
			return true
		}
	}
	return false
}

// leftByOther reports whether one of those who want m neither has it nor has acked or refused it.
func (m *Message) leftByOther(wanted []*Route) bool {
	return slices.ContainsFunc(wanted, func(r *Route) bool { return !m.has(r) })
}

// AckedBy yields who has acked m.
func (m *Message) AckedBy(yield func(*Route) bool) {
	for it := range m.items {
		if it.state == finished && !it.Refused && !yield(it.route) {
			return
		}
	}
}

func (m *Message) acked() bool {
	for range m.AckedBy {
		return true
	}
	return false
}

// where returns where m is to be counted.
func (m *Message) where() (at place) {
	for it := range m.items {
		switch {
		case !it.open():
		case it.moving:
			return amongMoving
		default:
			at = amongWaiting
		}
	}
	return at
}

// slots returns the places of m in the ledger, for each of its IDs.
func (m *Message) slots() []int32 {
	f := m.File
	if f == nil {
		return m.slot[:len(m.IDs)]
	}
	if f.slots == nil {
		f.slots = make([]int32, len(m.IDs))
	}
	return f.slots
}
