package content

import (
	"math"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// sidewards is how far a device element is to the right of the middle of its machine, in millimeters.
const sidewards farmdata.DDI = 0x0087

// rows are functions that are one behind the other.
type rows struct {
	atWork    []float64         // widths that are at work, in meters; the largest counts
	guessed   bool              // nothing says where a function is
	single    bool              // of widths that no device describes only the first one counts
	functions map[string]*group // by device element
}

// group is the outermost parts of a function.
type group struct {
	function     string
	parts        []*part
	place, width float64 // width is the most that it was
	placed       bool
	area, at     float64 // at a way
}

// areaAt costs something once in a record, not for each rate.
func (g *group) areaAt(way float64) float64 {
	if way != g.at {
		g.area, g.at = 0, way
		for _, p := range g.parts {
			g.area += p.areaAt(way)
		}
	}
	return g.area
}

// findRows finds the outermost parts, and which are beside each other: those of one function, and those of functions whose places say so.
// Other functions are one behind the other, so they work the same area: that of the widest counts.
func (m *machine) findRows() {
	var order []*group
	m.functions = map[string]*group{}
	first := true
	for _, p := range m.parts {
		p.outermost = p.known && !m.within(p.element) && (first || m.device != nil) // of what is not described the first one is taken for all
		m.single = m.single || p.known && !first && m.device == nil
		first = first && !p.known
		if !p.outermost {
			continue
		}
		function := m.meter.works.function(p.element)
		g := m.functions[function]
		if g == nil {
			g = &group{function: function, at: none}
			m.functions[function], order = g, append(order, g)
		}
		p.most = max(p.most, p.width)
		g.parts, g.width = append(g.parts, p), g.width+p.most
	}
	var rows [][]*group
	m.guessed = false
	for _, g := range order {
		m.place(g)
		row := -1
		if g.placed {
			row = slices.IndexFunc(rows, func(row []*group) bool { return !slices.ContainsFunc(row, g.overlaps) })
		}
		if row < 0 {
			row = len(rows)
			rows = append(rows, nil)
			m.guessed = m.guessed || row > 0 && slices.ContainsFunc(order, func(g *group) bool { return !g.placed })
		}
		rows[row] = append(rows[row], g)
		for _, p := range g.parts {
			p.row = row
		}
	}
	m.atWork = make([]float64, len(rows))
}

// place finds out where the middle of a function is. What is in none is in the middle of its parts.
func (m *machine) place(g *group) {
	e := m.meter.works.elements[g.function]
	if g.place, g.placed = e.place, e.placed; g.function != "" {
		return
	}
	g.placed = true
	for _, p := range g.parts {
		e := m.meter.works.elements[p.element]
		g.place, g.placed = g.place+e.place/float64(len(g.parts)), g.placed && e.placed
	}
}

// overlaps reports whether two functions work the same area: the middle of one is within the other, or nobody knows where it is.
func (g *group) overlaps(other *group) bool {
	return !g.placed || !other.placed || math.Abs(g.place-other.place) <= max(g.width, other.width)/2
}

// function returns the innermost function that a device element is, or is in; empty if it is in none.
func (w *works) function(element string) string {
	for above := range w.up(element) {
		if w.elements[above].kind == 2 {
			return above
		}
	}
	return ""
}

// placeFunctions takes the middle of its sections for where a function is, if all of them say where they are: many devices say 0 of each function.
func (w *works) placeFunctions(d *farmdata.Device) {
	sections := map[string][]element{}
	for _, e := range d.Elements {
		if function := w.function(e.ID); function != "" && w.divides(e.ID) {
			sections[function] = append(sections[function], w.elements[e.ID])
		}
	}
	for function, list := range sections {
		at := w.elements[function]
		if at.device != d || slices.ContainsFunc(list, func(e element) bool { return !e.placed }) {
			continue
		}
		at.place, at.placed = 0, true
		for _, e := range list {
			at.place += e.place / float64(len(list))
		}
		w.elements[function] = at
	}
}

// partsOf returns the parts whose area a rate is by: the own one, otherwise those of the function that it is in, if other functions
// have others. Nil: that is the area of the whole machine.
func (m *machine) partsOf(element string) *group {
	if p := m.known[element]; p != nil {
		return &group{parts: []*part{p}, at: none}
	}
	if len(m.functions) < 2 || len(m.atWork) < 2 && m.functions[element] == nil {
		return nil // of functions beside each other a tank may serve both
	}
	for above := range m.meter.works.up(element) {
		if g := m.functions[above]; g != nil && above != "" {
			return g
		}
	}
	return nil
}
