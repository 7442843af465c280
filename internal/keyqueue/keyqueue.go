// Package keyqueue hands the messages of a broker to a Watermill subscription: those of one
// key one after the other, those of different keys side by side.
package keyqueue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/duequeue"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// setAside is how long what was set aside waits.
const setAside = 30 * time.Second

// Config configures a [Queue] of items of type T. All functions are required. They are
// called without a lock, and from several goroutines.
type Config[T any] struct {
	// Out takes the messages.
	Out chan<- *message.Message
	// MaxOpen is how many messages may be handed out and not settled. It must be positive.
	MaxOpen int
	// Retry is how soon a nacked message is delivered again.
	Retry backoff.Policy
	// Message makes a message for one delivery of an item. If it fails, the item is tried
	// again later, and does not hold up its key.
	Message func(item T) (*message.Message, error)
	// Name names an item by its place with the broker, see [msgctx.Value].
	Name func(item T) string
	// Stored is when the broker stored an item, see [msgctx.Value].
	Stored func(item T) time.Time
	// Done is told that the message of an item was acked. What comes after it in its key
	// follows when Done returns.
	Done func(item T)
	// Left is told of an item that this queue will not deliver any more, and that was not
	// acked.
	Left func(item T)
}

// Queue holds items from their receipt until they are settled. Of each key one is open, that
// is handed out and neither acked nor nacked, in the order of their ranks. A nacked one is
// handed out again before those behind it. All methods are safe for concurrent use.
type Queue[T any] struct {
	config Config[T]
	wake   chan struct{} // has a token when there may be something to hand out
	freed  chan struct{} // has a token when an item was handed out or settled

	mu    sync.Mutex
	lanes map[string]*lane[T]
	due   duequeue.Queue[*entry[T]] // the first of each lane that is not open, and what was set aside
	open  int
	held  int
	bytes int64
	ended bool
}

// lane has the items of a key. The first is open or due, or waits for what was sent away.
type lane[T any] struct {
	key     string
	entries []*entry[T]
	open    bool      // the first one is
	since   time.Time // when the one before the first was settled, or the first came

	away      []uint64 // ranks that were sent away and are to come back, ascending
	awayUntil time.Time
}

type entry[T any] struct {
	item   T
	lane   *lane[T]
	rank   uint64
	size   int64
	hold   bool      // until Release
	from   time.Time // not to be handed out before; zero if it never was
	nacks  int
	aside  bool
	kept   any // by the handler, for the next delivery
	waiter duequeue.Entry[*entry[T]]
}

// New returns an empty Queue. [Queue.Deliver] has to be called.
func New[T any](config Config[T]) *Queue[T] {
	return &Queue[T]{config: config, wake: make(chan struct{}, 1), freed: make(chan struct{}, 1), lanes: make(map[string]*lane[T])}
}

// Add adds an item. rank is its place within its key; one that comes late goes before those of
// higher ranks that were not handed out yet. With hold it is not handed out before
// [Queue.Release]. Add reports whether the queue took it; once Deliver ends it does not.
func (q *Queue[T]) Add(key string, rank uint64, size int, hold bool, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	l := q.lane(key)
	if i, found := slices.BinarySearch(l.away, rank); found {
		l.away = slices.Delete(l.away, i, i+1)
	}
	if len(l.entries) == 0 {
		l.since = time.Now()
	}
	e := &entry[T]{item: item, lane: l, rank: rank, size: int64(size), hold: hold}
	e.waiter = duequeue.Entry[*entry[T]]{Item: e, Rank: rank}
	q.held++
	q.bytes += e.size
	q.insert(e)
	return true
}

func (q *Queue[T]) lane(key string) *lane[T] {
	l := q.lanes[key]
	if l == nil {
		l = &lane[T]{key: key}
		q.lanes[key] = l
	}
	return l
}

// Release lets the items be handed out that were added with hold.
func (q *Queue[T]) Release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lanes {
		for _, e := range l.entries {
			e.hold = false
		}
		q.schedule(l)
	}
}

// insert puts an entry at its place in its lane. One that is open cannot be taken back.
func (q *Queue[T]) insert(e *entry[T]) {
	l, from := e.lane, 0
	if l.open {
		from = 1
	}
	i, _ := slices.BinarySearchFunc(l.entries[from:], e.rank, func(other *entry[T], rank uint64) int { return cmp.Compare(other.rank, rank) })
	l.entries = slices.Insert(l.entries, from+i, e)
	q.schedule(l)
}

// schedule makes the first entry of a lane due, if it may be handed out.
func (q *Queue[T]) schedule(l *lane[T]) {
	if l.open {
		return
	}
	if len(l.entries) == 0 {
		if len(l.away) == 0 {
			delete(q.lanes, l.key)
		}
		return
	}
	for _, e := range l.entries[1:] {
		if !e.waiter.Queued() {
			break
		}
		e.waiter.Remove() // was the first
	}
	first := l.entries[0]
	if first.hold {
		first.waiter.Remove()
		return
	}
	at := first.from
	if at.IsZero() {
		at = time.Now()
		if first.waiter.Queued() {
			at = first.waiter.At()
		}
	}
	if len(l.away) > 0 && l.away[0] < first.rank && at.Before(l.awayUntil) {
		at = l.awayUntil
	}
	q.due.Put(&first.waiter, at)
	wakeup.Token(q.wake)
}

// next takes an entry that may be handed out now; nil if there is none, with how long to
// wait for one, which is negative if only a settled one can change that.
func (q *Queue[T]) next() (*entry[T], time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open < q.config.MaxOpen {
		now := time.Now()
		first := q.due.First()
		switch {
		case first == nil:
			return nil, -1
		case !first.DueBy(now):
			return nil, first.At().Sub(now)
		}
		first.Remove()
		e := first.Item
		if e.aside {
			e.aside, e.from, e.lane = false, time.Time{}, q.lane(e.lane.key)
			q.insert(e)
			continue
		}
		if len(e.lane.away) > 0 && e.lane.away[0] < e.rank {
			e.lane.away = nil // they have not come back: they are not ours any more
		}
		e.lane.open = true
		q.open++
		wakeup.Token(q.freed)
		return e, 0
	}
	return nil, -1
}

// Deliver hands out messages until intake ends. It then waits for those that are open, whose
// contexts end with work, and returns when all are settled. What was not acked is told to
// Config.Left. The context of a message carries the values of work.
func (q *Queue[T]) Deliver(intake, work context.Context) {
	var handlers sync.WaitGroup
	for q.handOut(intake, work, &handlers) {
	}
	q.mu.Lock()
	q.ended = true
	var left []T
	for _, l := range q.lanes {
		for i, e := range l.entries {
			if i > 0 || !l.open {
				left = append(left, e.item)
			}
		}
	}
	for e := range q.due.All() {
		if e.Item.aside {
			left = append(left, e.Item.item)
		}
	}
	q.mu.Unlock()
	for _, item := range left {
		q.config.Left(item)
	}
	handlers.Wait()
}

// handOut hands out the next message; false when intake has ended.
func (q *Queue[T]) handOut(intake, work context.Context, handlers *sync.WaitGroup) bool {
	e, wait := q.next()
	if e == nil {
		var timeout <-chan time.Time
		if wait >= 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-q.wake:
		case <-timeout:
		case <-intake.Done():
			return false
		}
		return true
	}
	if intake.Err() != nil {
		q.put(e)
		return false
	}
	msg, err := q.config.Message(e.item)
	if err != nil {
		q.settle(e, msgctx.SetAside, 0)
		return true
	}
	nack := &msgctx.Nack{}
	if e.kept != nil {
		nack.Keep(e.kept)
	}
	value := msgctx.Value{Nack: nack, Delivery: q.config.Name(e.item), Stored: q.config.Stored(e.item)}
	ctx, end := context.WithCancel(msgctx.With(work, value))
	msg.SetContext(ctx)
	select {
	case q.config.Out <- msg:
	case <-intake.Done():
		end()
		q.put(e)
		return false
	}
	// Ends with the message, or when it is abandoned.
	handlers.Go(func() {
		defer end()
		q.await(intake, work, e, msg, nack)
	})
	return true
}

// put takes back an entry that nobody took.
func (q *Queue[T]) put(e *entry[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
	e.lane.open = false
	q.schedule(e.lane)
}

// await waits for the ack or nack of a message.
func (q *Queue[T]) await(intake, work context.Context, e *entry[T], msg *message.Message, nack *msgctx.Nack) {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-work.Done():
	}
	select {
	case <-msg.Acked(): // at the same moment counts
		q.config.Done(e.item)
		q.settle(e, msgctx.Acked, 0)
		return
	default:
	}
	outcome := nack.Outcome()
	if intake.Err() != nil {
		outcome = msgctx.Left
	}
	if outcome == msgctx.Left {
		q.config.Left(e.item)
	}
	e.kept = nil
	if nack.Delay() > 0 {
		e.kept = nack.Kept()
	}
	q.settle(e, outcome, nack.Delay())
}

// settle ends a delivery. A nacked entry stays the first of its key.
func (q *Queue[T]) settle(e *entry[T], outcome msgctx.Outcome, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := e.lane
	q.open--
	l.open = false
	switch outcome {
	case msgctx.Nacked, msgctx.SetAside:
		if delay <= 0 {
			delay = q.config.Retry.Delay(e.nacks)
			e.nacks++
		}
		e.from = time.Now().Add(delay)
		l.entries = l.entries[1:]
		if outcome == msgctx.Nacked { // what came late goes first
			q.insert(e)
			break
		}
		l.since = time.Now()
		e.aside = true
		q.due.Put(&e.waiter, time.Now().Add(setAside))
	default:
		l.entries[0] = nil
		l.entries = l.entries[1:]
		q.held--
		q.bytes -= e.size
		l.since = time.Now()
	}
	q.schedule(l)
	wakeup.Token(q.freed)
	wakeup.Token(q.wake)
}

// Held returns how many items the queue holds, and their size together.
func (q *Queue[T]) Held() (items int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held, q.bytes
}

// Idle reports whether another message could be handed out, and there is none.
func (q *Queue[T]) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.due.First()
	return q.open < q.config.MaxOpen && (first == nil || !first.DueBy(time.Now()))
}

// Stuck reports whether all that the queue holds was nacked or set aside, or waits behind that.
func (q *Queue[T]) Stuck() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.due.First()
	return q.open == 0 && q.held > 0 && (first == nil || !first.DueBy(time.Now()))
}

// Away returns how many items were sent away and may come back.
func (q *Queue[T]) Away() (items int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, l := range q.lanes {
		if now.Before(l.awayUntil) {
			items += len(l.away)
		}
	}
	return items
}

// Freed returns a channel that gets a token when items have been handed out or settled.
func (q *Queue[T]) Freed() <-chan struct{} { return q.freed }

// SendAway removes what was set aside, and the last items of every key of which nothing was settled
// for the time stalled and that has more than share of them, and returns them. They are to be added again,
// those of such a key until the time given; later ones of it wait for them until then.
func (q *Queue[T]) SendAway(share int, stalled time.Duration, until time.Time) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	var items []T
	now := time.Now()
	for _, l := range q.lanes {
		if len(l.entries) == 0 && now.After(l.awayUntil) {
			delete(q.lanes, l.key)
		}
		if len(l.entries) <= share || now.Sub(l.since) < stalled {
			continue
		}
		sent := l.entries[share:]
		for _, e := range sent {
			items = append(items, e.item)
			q.held--
			q.bytes -= e.size
			i, _ := slices.BinarySearch(l.away, e.rank)
			l.away = slices.Insert(l.away, i, e.rank)
		}
		clear(sent)
		l.entries = l.entries[:share]
		l.awayUntil = until
	}
	for _, e := range slices.Collect(q.due.All()) {
		if e.Item.aside {
			e.Remove()
			items = append(items, e.Item.item)
			q.held--
			q.bytes -= e.Item.size
		}
	}
	return items
}
