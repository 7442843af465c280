// Package duequeue orders items by the time at which they are due.
package duequeue

import (
	"iter"
	"slices"
	"time"
)

// Timed is what is in a Heap: it says what is due sooner, and is told its place in the heap, from one on, and zero
// when it is taken out.
type Timed[T any] interface {
	Sooner(than T) bool
	SetPlace(place int)
}

// Heap has the item that is due first at its beginning. Its zero value is empty.
type Heap[T Timed[T]] []T

// Put adds an item.
func (q *Heap[T]) Put(item T) {
	*q = append(*q, item)
	item.SetPlace(len(*q))
	q.Fix(len(*q))
}

// Take removes and returns the item at a place.
func (q *Heap[T]) Take(place int) (item T) {
	last := len(*q)
	q.swap(place, last)
	item = (*q)[last-1]
	clear((*q)[last-1:])
	*q = (*q)[:last-1]
	item.SetPlace(0)
	if place < last {
		q.Fix(place)
	}
	return item
}

func (q Heap[T]) swap(i, j int) {
	q[i-1], q[j-1] = q[j-1], q[i-1]
	q[i-1].SetPlace(i)
	q[j-1].SetPlace(j)
}

// Fix moves the item at a place to where it belongs.
func (q Heap[T]) Fix(place int) {
	for place > 1 && q[place-1].Sooner(q[place/2-1]) {
		q.swap(place, place/2)
		place /= 2
	}
	for {
		first := place
		for child := 2 * place; child <= 2*place+1 && child <= len(q); child++ {
			if q[child-1].Sooner(q[first-1]) {
				first = child
			}
		}
		if first == place {
			return
		}
		q.swap(place, first)
		place = first
	}
}

// Queue holds items by the time at which they are due. Its zero value is empty and ready
// to use. It has no lock.
type Queue[T any] struct{ entries Heap[*Entry[T]] }

// Entry is the place of an item, which is in one queue at most. Its zero value is in none.
type Entry[T any] struct {
	Item T
	// Rank orders entries that are due at the same time, the lowest first. It must not
	// change while the entry is in a queue.
	Rank uint64

	at    time.Time
	queue *Queue[T] // nil when in none
	place int
}

// Put puts e into the queue, due at the given time. If it is in this queue or in another one,
// it is moved.
func (q *Queue[T]) Put(e *Entry[T], at time.Time) {
	if e.queue != q {
		e.Remove()
		e.at, e.queue = at, q
		q.entries.Put(e)
		return
	}
	e.at = at
	q.entries.Fix(e.place)
}

// Remove takes e out of its queue, if it is in one.
func (e *Entry[T]) Remove() {
	if e.queue != nil {
		e.queue.entries.Take(e.place)
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

// Sooner reports whether e is due before other: earlier, or at the same time with a lower rank.
func (e *Entry[T]) Sooner(other *Entry[T]) bool {
	return e.at.Before(other.at) || e.at.Equal(other.at) && e.Rank < other.Rank
}

// SetPlace implements [Timed].
func (e *Entry[T]) SetPlace(place int) { e.place = place }
