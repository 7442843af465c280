package core

// list has items in an order. They embed links of their own type, which is a pointer.
type list[T linked[T]] struct{ first, last T }

type links[T any] struct{ prev, next T }

type linked[T any] interface {
	comparable
	linked() *links[T]
}

func (l *links[T]) linked() *links[T] { return l }

func (l *list[T]) push(item T) {
	var none T
	item.linked().prev = l.last
	if l.last != none {
		l.last.linked().next = item
	} else {
		l.first = item
	}
	l.last = item
}

func (l *list[T]) remove(item T) {
	var none T
	at := item.linked()
	if at.prev != none {
		at.prev.linked().next = at.next
	} else {
		l.first = at.next
	}
	if at.next != none {
		at.next.linked().prev = at.prev
	} else {
		l.last = at.prev
	}
	*at = links[T]{}
}
