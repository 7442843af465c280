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
	// File says that IDs are those of the messages that it was made of. FileID names it then.
	File   bool
	FileID ID
	// Bytes is its size. [Core.Grow] changes it.
	Bytes int64
	// Owner is of whoever made the message.
	Owner any
	// Fetching says that its payload has still to be fetched.
	Fetching bool
	// Hold says that the message may be a part of a file that is handled in place of its parts, and FileTaken that
	// somebody takes the file beside them: then the confirmation of what may be a part waits for it. Large says
	// that its size is that of a part; it may change until the message is closed. Family is the same for all parts of a file.
	Hold, FileTaken, Large bool
	Family                 uint64
	// Aside says that it cannot be handled as it is: it is counted until it is confirmed. It is set before it is left.
	Aside bool
	// Names is of whoever made the message, for [Hold.Names]. It may change until the message is closed.
	Names any
	// Last says that there is no other time to take the message: it fits in any case.
	Last bool
	// ----

	// Part is set when a file is opened: one of the messages that were held for it.
	Part *Message
	// Confirm is set when the message is closed: what is to be confirmed.
	Confirm []Confirmation
	confirm [1]Confirmation

	slots []int32 // of the ledger, for each of IDs
	slot1 [1]int32

	came    time.Duration
	place   place
	moving  int   // items that are
	counted int64 // bytes

	items   []*Item
	item    [1]Item
	one     [1]*Item
	pending int  // items that are not finished
	left    bool // one who wants it left it, or did not get it
	// unclaimed says that it has waited for its file already.
	unclaimed bool
	unfetched bool     // its payload could not be fetched so far
	acked     []*Route // who acked it
	acked1    [2]*Route
	refused   []*Route // who does not want it
	stored    stored   // by those who acked it
}

// Confirmation is one message that is to be confirmed.
type Confirmation struct {
	// Index is its place among the IDs of its event.
	Index int32

	entry ref
	// It counts as waiting in the lane of the route that acked it last, since then; nil for one that counts nowhere.
	lane  *Lane
	since time.Duration
	held  bool // it has waited, see [Hold]
}

// Item is a message for one route.
type Item struct {
	Message *Message
	Lane    *Lane
	// Nacks is how often it was nacked. Overtaken is by how many that came after it in its lane, which may be stored
	// before it.
	Nacks, Overtaken int
	// Begun says that some of what was made of it may be stored even if one before it fails.
	Begun bool
	// Kept is of whoever handles it.
	Kept any

	firstNack time.Duration
	// overtakenCounted is how much of Overtaken is counted.
	overtakenCounted int

	state  itemState
	moving bool          // counted as that, and else as waiting
	placed bool          // see Core.Placed
	opened time.Duration // when it came
	since  time.Duration // when it was handed out last, or became due
	due    time.Duration // while it is in the queue
	place  int           // its place there; zero while it is not there
	prev   *Item         // in its lane
	next   *Item
}

func (it *Item) sooner(than *Item) bool { return it.due < than.due }
func (it *Item) setPlace(place int)     { it.place = place }

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
	finished                  // it is acked or left
)

// newItem returns an item of m. It does not move as long as m is open.
func (m *Message) newItem() *Item {
	m.pending++
	if m.items == nil {
		m.one[0] = &m.item[0]
		m.items = m.one[:]
		return m.one[0]
	}
	it := new(Item)
	m.items = append(m.items, it)
	return it
}

// has reports whether r has m and has not finished it.
func (m *Message) has(r *Route) bool {
	for _, it := range m.items {
		if it.Lane.route == r && it.state != finished {
			return true
		}
	}
	return false
}

// leftByOther reports whether one of those who want m neither has it nor has acked or refused it.
func (m *Message) leftByOther(wanted []*Route) bool {
	return slices.ContainsFunc(wanted, func(r *Route) bool {
		return !slices.Contains(m.acked, r) && !slices.Contains(m.refused, r) && !m.has(r)
	})
}
