// Package columns remembers what is made of the columns of a log, so that each of many values finds it in little time.
package columns

import "github.com/agrimill/agrimill/farmdata"

// Memo has what Make made of each column.
type Memo[T any] struct {
	Make  func(*farmdata.Column) T
	known map[*farmdata.Column]T
	last  []made[T] // by the place of a value in its record: usually the same column every time
}

type made[T any] struct {
	of   *farmdata.Column
	what T
}

// At returns what was made of the column of the value at a place of a record.
func (m *Memo[T]) At(place int, c *farmdata.Column) T {
	if place < len(m.last) && m.last[place].of == c {
		return m.last[place].what
	}
	return m.again(place, c)
}

func (m *Memo[T]) again(place int, c *farmdata.Column) T {
	now := made[T]{c, m.Of(c)}
	if place < len(m.last) {
		m.last[place] = now
	} else {
		m.last = append(m.last, now) // places come one after the other
	}
	return now.what
}

// Of returns what was made of a column.
func (m *Memo[T]) Of(c *farmdata.Column) T {
	what, known := m.known[c]
	if !known {
		if m.known == nil {
			m.known = map[*farmdata.Column]T{}
		}
		what = m.Make(c)
		m.known[c] = what
	}
	return what
}
