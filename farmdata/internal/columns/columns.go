// Package columns remembers what is made of the columns of a log or a grid, so that each of many values finds it in little time.
package columns

import (
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

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

// Layouts has what Make made of the cells of each zone of a prescription map. Cells with the same columns and products have it in common.
type Layouts[T any] struct {
	Make   func(*farmdata.Cell) T
	byZone map[int]*layout[T]
	last   *layout[T]
}

type layout[T any] struct {
	zone     int
	columns  []*farmdata.Column
	products []string
	what     T
}

// Of returns what was made of cells like this one.
func (l *Layouts[T]) Of(cell *farmdata.Cell) T {
	if l.last == nil || l.last.zone != cell.Zone {
		l.last = l.byZone[cell.Zone]
	}
	if l.last == nil || !slices.Equal(l.last.products, cell.Products) || !slices.EqualFunc(l.last.columns, cell.Values, isOf) {
		l.last = &layout[T]{zone: cell.Zone, products: cell.Products, what: l.Make(cell)}
		for _, v := range cell.Values {
			l.last.columns = append(l.last.columns, v.Column)
		}
		if l.byZone == nil {
			l.byZone = map[int]*layout[T]{}
		}
		l.byZone[cell.Zone] = l.last
	}
	return l.last.what
}

func isOf(c *farmdata.Column, v farmdata.Value) bool { return v.Column == c }
