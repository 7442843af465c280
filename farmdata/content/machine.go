package content

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// machine is a device in a log.
type machine struct {
	meter  *meter
	id     string
	device *farmdata.Device // nil: not described
	parts  []*part
	known  map[string]*part  // those whose width is known, by device element
	states map[string]*state // by device element
	stated int               // gauges of states
	on     int               // of those that are in no other
	any    *state            // whether any of them is on; nil: there are none
	// sections are the condensed work states; share is how many of them are on, some whether any is. Nil: there are none.
	sections    []*gauge
	share, some *state
	shares      map[string]*state // by device element, how many of its condensed work states are on
	booms       map[string]*boom  // by device element
	rates       []*gauge
	rows
	worked
}

// worked is what was worked up to a way and a time of the meter.
type worked struct {
	area, way, time   float64
	fromWay, fromTime float64
	blind             float64 // of the way, while no width was known
	lost, fromLost    float64 // as of the meter
}

// state is how much of something is at work: 0 to 1.
type state struct {
	share float64
	way   float64 // at work, up to from
	from  float64
	parts []*part // the outermost ones that are at work as this state says
	in    []section
	own   []*boom // of which it is the own one
	inner bool    // of what is in a device element that has one
}

// section is a part of a boom.
type section struct {
	boom  *boom
	width float64
}

// boom is a part of a described width whose sections are switched singly: as much of it is at work as of them.
type boom struct {
	state  *state
	own    *state // of the part, or of what it is in; nil: there is none
	inner  []*state
	widths []float64 // of inner
	same   bool      // the width of one is not known: each counts the same
	on     float64   // of all
	all    float64
}

func (b *boom) add(s *state, p *part) {
	width := 0.0
	if p != nil {
		width = p.width
	}
	b.inner, b.widths, b.same = append(b.inner, s), append(b.widths, width), b.same || width == 0
}

// begin tells the states of the boom of it: a value costs as much as it changes, not as much as there are sections.
func (b *boom) begin() {
	for i, s := range b.inner {
		width := b.widths[i]
		if b.same {
			width = 1
		}
		b.on, b.all = b.on+s.share*width, b.all+width
		s.in = append(s.in, section{b, width})
	}
	if b.own != nil {
		b.own.own = append(b.own.own, b)
	}
	b.state.share = b.share()
}

func (b *boom) share() float64 {
	if b.own != nil {
		return b.on * b.own.share / b.all
	}
	return b.on / b.all
}

// and is the state of what is in something that has a state, too.
func (s *state) and(inner *state, way float64) *state {
	b := &boom{own: s, state: &state{from: way}}
	b.add(inner, nil)
	b.begin()
	return b.state
}

func (s *state) wayAt(way float64) float64 { return s.way + s.share*(way-s.from) }

// part is a device element that has a width.
type part struct {
	element   string
	width     float64 // in meters
	most      float64 // that it was when the parts were arranged
	measured  bool    // otherwise the device describes it
	known     bool
	outermost bool
	row       int
	state     *state
	area      float64 // up to from, of the way of its state
	from      float64
}

func (p *part) areaAt(way float64) float64 { return p.area + p.width*(p.state.wayAt(way)-p.from) }

func (p *part) settle(way float64) {
	if p.state != nil {
		p.area, p.from = p.areaAt(way), p.state.wayAt(way)
	}
}

// gauge is the latest value of a column.
type gauge struct {
	machine *machine
	column  *farmdata.Column
	kind    *rateKind // of a rate; nil: something else
	part    *part     // of a width
	state   *state    // of a work state
	raw     int64
	known   bool
	record  int              // of the meter, that had the latest value
	latest  *farmdata.Column // which had that
	// Of a rate, up to from: what came of it in the SI, and the area or time for which it was known.
	amount, by, from float64
	of               *group // whose area counts; nil: the whole machine's
}

// set takes a value. Of several columns that have one in a record the first one counts, as on maps.
func (g *gauge) set(v farmdata.Value) {
	m, raw := g.machine, v.Raw
	if g.record == m.meter.records && g.latest != v.Column {
		return
	}
	g.record, g.latest = m.meter.records, v.Column
	impossible := g.part != nil && (raw < 0 || raw > widest) || g.kind != nil && (raw == math.MinInt32 || raw == math.MaxInt32)
	if impossible {
		m.meter.works.left.values[g.column.DDI] = true
	}
	if g.known && g.raw == raw || impossible {
		return
	}
	first, before := !g.known, onOff(g.known && g.raw == 1)
	if g.kind != nil {
		g.settle()
	}
	g.raw, g.known = raw, true
	switch {
	case g.part != nil:
		m.widen(g.part, float64(raw)*millimeter)
	case g.state != nil:
		now, told := onOff(raw == 1), raw == 0 || raw == 1
		if !g.state.inner {
			m.on += int(now - before)
		}
		m.change(&g.state, now)
		untold := m.any == nil
		if told || !untold {
			m.change(&m.any, onOff(m.on > 0))
		}
		// What has an error, or is undefined or not installed, does not say of a boom that its sections are off.
		unknown := m.states[g.column.ElementID] == nil && (told || m.meter.works.divides(g.column.ElementID))
		if unknown {
			m.states[g.column.ElementID] = g.state
		}
		if unknown || told && untold {
			m.arrange()
		}
	case g.kind == nil:
		share := m.shares[g.column.ElementID]
		m.change(&share, m.switched(func(s *gauge) bool { return s.column.ElementID == g.column.ElementID }))
		m.shares[g.column.ElementID] = share
		all := m.switched(func(*gauge) bool { return true })
		m.change(&m.some, onOff(all > 0))
		m.change(&m.share, all)
		if first {
			m.arrange()
		}
	case first:
		g.of = m.partsOf(g.column.ElementID)
		g.from = g.base()
	}
}

// switched returns how many of some condensed work states are on, as a share: all, if nothing says that they are off.
func (m *machine) switched(of func(*gauge) bool) float64 {
	on, off := 0, 0
	for _, s := range m.sections {
		if s.known && of(s) {
			o, f := sections(s.raw)
			on, off = on+o, off+f
		}
	}
	if on+off == 0 {
		return 1
	}
	return float64(on) / float64(on+off)
}

// change changes a state, or makes it, and the booms that depend on it.
func (m *machine) change(at **state, share float64) {
	before := 0.0
	if *at != nil {
		before = (*at).share
	}
	if m.turn(at, share); share == before {
		return
	}
	for _, of := range (*at).in {
		of.boom.on += (share - before) * of.width
		m.change(&of.boom.state, of.boom.share())
	}
	for _, b := range (*at).own {
		m.change(&b.state, b.share())
	}
}

// turn changes a state, or makes it.
func (m *machine) turn(at **state, share float64) {
	if *at == nil {
		m.settle()
		*at = &state{share: share, from: m.meter.way}
		return
	}
	s := *at
	if s.share == share {
		return
	}
	m.settle()
	s.way, s.from = s.wayAt(m.meter.way), m.meter.way
	for _, p := range s.parts {
		m.atWork[p.row] += (share - s.share) * p.width
	}
	s.share = share
}

// widen changes a width.
func (m *machine) widen(p *part, width float64) {
	m.settle()
	p.settle(m.meter.way)
	if !p.known || p.outermost && len(m.functions) > 1 && width > 2*p.most { // a machine that is lifted at first has no width then
		p.width, p.known = width, true
		m.arrange()
		return
	}
	if p.outermost {
		m.atWork[p.row] += (width - p.width) * p.state.share
	}
	p.width = width
}

// arrange finds out which parts are in which, and which state is whose, after there is one more.
func (m *machine) arrange() {
	m.settle()
	for _, rate := range m.rates {
		rate.settle()
	}
	measured := false
	for _, p := range m.parts {
		p.settle(m.meter.way)
		measured = measured || p.measured && p.known
	}
	m.known = map[string]*part{}
	for _, p := range m.parts {
		if p.known = p.known && (p.measured || !measured); p.known && m.known[p.element] == nil { // what is measured is better than what is described
			m.known[p.element] = p
		}
	}
	for _, s := range m.allStates() {
		s.parts, s.in, s.own = nil, nil, nil
	}
	m.findInner()
	m.findBooms()
	m.findRows()
	for _, p := range m.parts {
		if !p.known {
			continue
		}
		if p.state = m.stateOf(p); m.booms[p.element] != nil {
			p.state = m.booms[p.element].state
		}
		p.from = p.state.wayAt(m.meter.way)
		if p.outermost {
			p.state.parts = append(p.state.parts, p)
			m.atWork[p.row] += p.width * p.state.share
		}
	}
	for _, rate := range m.rates {
		rate.of = m.partsOf(rate.column.ElementID)
		rate.from = rate.base()
	}
}

func (m *machine) allStates() (list []*state) {
	for _, s := range m.states {
		list = append(list, s)
	}
	for _, s := range m.shares {
		list = append(list, s)
	}
	for _, s := range []*state{m.any, m.share, m.some} {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// findInner finds out which states are of what is in a device element that has one: what is off is no work, whatever its sections say.
func (m *machine) findInner() {
	m.on = 0
	for element, s := range m.states {
		if s.inner = m.stateFrom(m.meter.works.elements[element].parent) != nil; !s.inner {
			m.on += int(s.share)
		}
	}
	if m.any != nil {
		m.change(&m.any, onOff(m.on > 0))
	}
}

// within reports whether an element is in one whose width is known.
func (m *machine) within(element string) bool {
	for above := range m.meter.works.up(element) {
		if above != element && m.known[above] != nil {
			return true
		}
	}
	return false
}

// findBooms finds the parts whose sections say how much of them is at work: sections that have the innermost states, and what they are in. A width that is
// measured is without the sections that are off, so it is a boom of itself only.
func (m *machine) findBooms() {
	m.booms = map[string]*boom{}
	if m.any == nil { // no state says more than that it is not known
		m.condense()
		return
	}
	divided := map[string]bool{}
	for element := range m.states {
		for above := range m.meter.works.up(element) {
			divided[above] = divided[above] || above != element
		}
	}
	for _, element := range slices.Sorted(maps.Keys(m.states)) { // what is summed up in another order is another number
		s := m.states[element]
		if !m.meter.works.divides(element) || divided[element] {
			continue
		}
		between := element
		for above := range m.meter.works.up(element) {
			if own := m.states[between]; between != element && own != nil {
				s = own.and(s, m.meter.way)
			}
			between = above
			p := m.known[above]
			if p == nil || p.measured && above != element {
				continue
			}
			b := m.booms[above]
			if b == nil {
				from := above
				if above == element {
					from = m.meter.works.elements[element].parent
				}
				b = &boom{own: m.stateFrom(from), state: &state{from: m.meter.way}}
				m.booms[above] = b
			}
			b.add(s, m.known[element])
		}
	}
	for _, element := range slices.Sorted(maps.Keys(m.booms)) {
		m.booms[element].begin()
	}
	m.condense()
}

// condense makes booms of the other parts of a described width if condensed work states say how much of them is at work: those of what the part
// is in, or of what is in it. Those of another boom count only if there is no other state.
func (m *machine) condense() {
	inside := map[string]*state{}
	for element, share := range m.shares {
		for above := range m.meter.works.up(element) {
			if inside[above] == nil {
				inside[above] = share
			} else {
				inside[above] = m.share
			}
		}
	}
	type key struct{ own, share *state }
	booms := map[key]*boom{}
	for _, p := range m.parts {
		if !p.known || p.measured || m.booms[p.element] != nil {
			continue
		}
		k := key{cmp.Or(m.stateFrom(p.element), m.any), m.nearest(m.shares, p.element)}
		if k.share = cmp.Or(k.share, inside[p.element]); k.share == nil && k.own == nil {
			k.share = m.share
		}
		if k.share == nil {
			continue
		}
		if booms[k] == nil {
			booms[k] = &boom{own: k.own, state: &state{from: m.meter.way}}
			booms[k].add(k.share, nil)
			booms[k].begin()
		}
		m.booms[p.element] = booms[k]
	}
}

// stateFrom returns the nearest work state from a device element to the whole machine; nil if there is none.
func (m *machine) stateFrom(element string) *state {
	if m.any == nil {
		return nil
	}
	return m.nearest(m.states, element)
}

// nearest returns the first of states from a device element to the whole machine; nil if there is none.
func (m *machine) nearest(states map[string]*state, element string) *state {
	for above := range m.meter.works.up(element) {
		if s := states[above]; s != nil {
			return s
		}
	}
	return nil
}

// stateOf returns the nearest state from a part to the whole machine.
func (m *machine) stateOf(p *part) *state {
	s := m.stateFrom(p.element)
	switch {
	case s != nil:
		return s
	case m.any != nil:
		return m.any
	case m.some != nil && p.measured: // the width of the sections that are on
		return m.some
	}
	return &state{share: 1, way: m.meter.way, from: m.meter.way} // nothing says that it is not at work
}

// works reports whether the machine is at work, if a width is.
func (m *machine) works(width float64) bool {
	const least = 1e-6
	switch {
	case len(m.known) > 0:
		return width > least
	case m.any != nil:
		return m.any.share > 0
	case m.some != nil:
		return m.some.share > 0
	}
	return true
}

// settle counts what was worked up to now. It costs something once in a record, not for each value.
func (m *machine) settle() {
	way, time := m.meter.way-m.fromWay, m.meter.time-m.fromTime
	if way == 0 && time == 0 {
		return
	}
	width := 0.0
	for _, w := range m.atWork {
		width = max(width, w)
	}
	m.area += width * way
	if m.works(width) {
		m.way += way
		m.time += time
		m.lost += m.meter.lost - m.fromLost
		if len(m.known) == 0 {
			m.blind += way
		}
	}
	m.fromWay, m.fromTime, m.fromLost = m.meter.way, m.meter.time, m.meter.lost
}

// base is the area or time that a rate is by.
func (g *gauge) base() float64 {
	m := g.machine
	switch {
	case g.kind.byTime:
		return m.meter.time
	case g.of != nil:
		return g.of.areaAt(m.meter.way)
	}
	m.settle()
	return m.area
}

// settle counts what came of a rate up to now.
func (g *gauge) settle() {
	if now := g.base(); g.known {
		g.amount += float64(g.raw) * g.kind.factor * (now - g.from)
		g.by += now - g.from
		g.from = now
	}
}

// partial reports whether a rate is by the area of all of the machine, although it is only of a section or a unit of it.
func (g *gauge) partial() bool {
	return !g.kind.byTime && g.machine.known[g.column.ElementID] == nil && g.machine.meter.works.divides(g.column.ElementID)
}

// shared reports whether the area or time that a rate is by is not only that of its device element.
func (g *gauge) shared() bool {
	element := g.column.ElementID
	return g.kind.byTime || g.machine.known[element] == nil && (g.of == nil || g.machine.functions[element] == nil)
}

func onOff(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// sections counts those of a condensed work state that are on and off: two bits each.
func sections(raw int64) (on, off int) {
	for i := range 16 {
		switch raw >> (2 * i) & 3 {
		case 0:
			off++
		case 1:
			on++
		}
	}
	return on, off
}
