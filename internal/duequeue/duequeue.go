// Package duequeue orders items by the time at which they are due.
package duequeue

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

// Queue holds items by the time at which they are due. Its zero value is empty and ready
// to use. It has no lock.
type Queue[T any] struct{ entries entries[T] }

// Entry is the place of an item, which is in one queue at most. Its zero value is in none.
type Entry[T any] struct {
	Item T
	// Rank orders entries that are due at the same time, the lowest first. It must not
	// change while the entry is in a queue.
	Rank uint64

	at    time.Time
	queue *Queue[T] // nil when in none
	index int
}

// Put puts e into the queue, due at the given time. If it is in this queue or in another one,
// it is moved.
func (q *Queue[T]) Put(e *Entry[T], at time.Time) {
	if e.queue != q {
		e.Remove()
		e.at, e.queue = at, q
		heap.Push(&q.entries, e)
		return
	}
	e.at = at
	heap.Fix(&q.entries, e.index)
}

// Remove takes e out of its queue, if it is in one.
func (e *Entry[T]) Remove() {
	if e.queue != nil {
		heap.Remove(&e.queue.entries, e.index)
		e.queue = nil
	}
}

// Queued reports whether e is in a queue.
func (e *Entry[T]) Queued() bool { return e.queue != nil }

// Len returns how many entries there are.
func (q *Queue[T]) Len() int { return len(q.entries) }

// First returns the entry that is due first, nil when the queue is empty.
func (q *Queue[T]) First() *Entry[T] {
	if len(q.entries) == 0 {
		return nil
	}
	return q.entries[0]
}

// Due returns the entry that is due first, nil when none is due by now.
func (q *Queue[T]) Due(now time.Time) *Entry[T] {
	if first := q.First(); first != nil && first.DueBy(now) {
		return first
	}
	return nil
}

// All returns every entry, in no particular order. The queue must not be changed meanwhile.
func (q *Queue[T]) All() iter.Seq[*Entry[T]] { return slices.Values(q.entries) }

// DueBy reports whether e is due by now.
func (e *Entry[T]) DueBy(now time.Time) bool { return !e.at.After(now) }

// At returns when e is due.
func (e *Entry[T]) At() time.Time { return e.at }

// Before reports whether e is due before other: earlier, or at the same time with a lower rank.
func (e *Entry[T]) Before(other *Entry[T]) bool {
	return e.at.Before(other.at) || e.at.Equal(other.at) && e.Rank < other.Rank
}

// entries implements [heap.Interface].
type entries[T any] []*Entry[T]

func (h entries[T]) Len() int           { return len(h) }
func (h entries[T]) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h entries[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *entries[T]) Push(x any) {
	e := x.(*Entry[T])
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop implements [heap.Interface].
func (h *entries[T]) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
