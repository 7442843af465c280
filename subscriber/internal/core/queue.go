package core

// timed is what is in a dueQueue: it says what is due sooner, and is told its place in the queue, from one on, and zero
// when it is taken out.
type timed[T any] interface {
	sooner(than T) bool
	setPlace(place int)
}

// dueQueue is a heap by the time at which items are due. Its zero value is empty.
type dueQueue[T timed[T]] []T

func (q *dueQueue[T]) put(item T) {
	*q = append(*q, item)
	item.setPlace(len(*q))
	q.fix(len(*q))
}

func (q *dueQueue[T]) take(place int) (item T) {
	last := len(*q)
	q.swap(place, last)
	item = (*q)[last-1]
	clear((*q)[last-1:])
	*q = (*q)[:last-1]
	item.setPlace(0)
	if place < last {
		q.fix(place)
	}
	return item
}

func (q dueQueue[T]) swap(i, j int) {
	q[i-1], q[j-1] = q[j-1], q[i-1]
	q[i-1].setPlace(i)
	q[j-1].setPlace(j)
}

// fix moves the item at a place to where it belongs.
func (q dueQueue[T]) fix(place int) {
	for place > 1 && q[place-1].sooner(q[place/2-1]) {
		q.swap(place, place/2)
		place /= 2
	}
	for {
		first := place
		for child := 2 * place; child <= 2*place+1 && child <= len(q); child++ {
			if q[child-1].sooner(q[first-1]) {
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
