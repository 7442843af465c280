package core

import "time"

// dueQueue is a heap of items by the time at which they are due.
type dueQueue struct{ items []*Item }

func (q *dueQueue) first() *Item {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

// put makes it due then, whether it is in the queue or not.
func (q *dueQueue) put(it *Item, due time.Duration) {
	it.due = due
	if it.index == 0 {
		q.items = append(q.items, it)
		it.index = len(q.items)
	}
	q.fix(it.index - 1)
}

// remove takes it out, if it is there.
func (q *dueQueue) remove(it *Item) {
	i := it.index - 1
	if i < 0 {
		return
	}
	last := len(q.items) - 1
	q.swap(i, last)
	q.items[last] = nil
	q.items = q.items[:last]
	it.index = 0
	if i < last {
		q.fix(i)
	}
}

func (q *dueQueue) swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	q.items[i].index, q.items[j].index = i+1, j+1
}

func (q *dueQueue) less(i, j int) bool { return q.items[i].due < q.items[j].due }

// fix moves the item at i to its place.
func (q *dueQueue) fix(i int) {
	for i > 0 && q.less(i, (i-1)/2) {
		q.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.items); child++ {
			if q.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.swap(i, least)
		i = least
	}
}
