package content

import (
	"math"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// DDIs that say what is at work.
const (
	actualWidth   farmdata.DDI = 0x0043
	defaultWidth  farmdata.DDI = 0x0044
	maximumWidth  farmdata.DDI = 0x0046
	workState     farmdata.DDI = 0x008D
	firstSections farmdata.DDI = 0x00A1
	lastSections  farmdata.DDI = 0x00B0
)

const (
	// What is between two records is no work if it took longer, or if no machine is so fast: then a position is wrong.
	longestStep = 60_000 // ms
	fastest     = 50.0   // m/s
	// widest is beyond any machine, in millimeters: such a width cannot be right, and is not taken.
	widest      = 200_000
	earthRadius = 6371008.8
	millimeter  = 1e-3
	// mostParts is how many widths a machine may have: as many as a log of TaskData has columns.
	mostParts = 256
	// mostLevels is how deep device elements are in each other, at most.
	mostLevels = 16
	// none is no time.
	none = math.MinInt64
)

// meter measures what the machines of a log do, record by record. It counts the way and the time of all; whatever
// depends on a value takes its share of them when the value changes, so what does not change costs nothing.
type meter struct {
	works     *works
	machines  map[string]*machine // by device ID
	order     []*machine
	way, time float64 // in meters and seconds
	last      int64   // Unix time in milliseconds; none: unknown
	position  farmdata.Position
	passed    int64 // when it was at position
	timed     bool  // there were times
	placed    bool  // and two positions
}

// machine is a device in a log.
type machine struct {
	meter  *meter
	id     string
	device *farmdata.Device // nil: not described
	parts  []*part
	known  map[string]*part  // those whose width is known, by device element
	states map[string]*state // by device element
	on     int               // states that are on
	any    *state            // whether any of states is on; nil: there are none
	// sections are the condensed work states; share is how many of them are on, some whether any is. Nil: there are none.
	sections    []*gauge
	share, some *state
	rates       []*gauge
	width       float64 // that is at work, in meters
	working     bool
	// What was worked up to the way and the time of the meter in from.
	area, way, time   float64
	fromWay, fromTime float64
}

// state is how much of something is at work: 0 to 1.
type state struct {
	share float64
	way   float64 // at work, up to from
	from  float64
	width float64 // of the outermost parts that are at work as this state says
}

func (s *state) wayAt(way float64) float64 { return s.way + s.share*(way-s.from) }

// part is a device element that has a width.
type part struct {
	element   string
	width     float64 // in meters
	measured  bool    // otherwise the device describes it
	known     bool
	outermost bool
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
	// Of a rate, up to from: what came of it in the SI, and the area or time for which it was known.
	amount, by, from float64
	of               *part // whose area counts; nil: the whole machine's
}

func (w *works) meter(log *farmdata.Log) *meter {
	m := &meter{works: w, machines: map[string]*machine{}, last: none, passed: none}
	for i := range log.Columns {
		m.machine(log.Columns[i].DeviceID)
	}
	return m
}

func (m *meter) machine(id string) *machine {
	if at := m.machines[id]; at != nil {
		return at
	}
	at := &machine{meter: m, id: id, device: m.works.devices[id], states: map[string]*state{}, fromWay: m.way, fromTime: m.time}
	m.machines[id], m.order = at, append(m.order, at)
	for _, p := range m.works.describedWidths(at.device) {
		at.parts = append(at.parts, &p)
	}
	at.arrange()
	return at
}

// describedWidths returns the parts that a device describes the width of: the actual, otherwise the default, otherwise the most.
func (w *works) describedWidths(d *farmdata.Device) []part {
	parts, known := w.widths[d]
	if known || d == nil {
		return parts
	}
	for _, ddi := range []farmdata.DDI{actualWidth, defaultWidth, maximumWidth} {
		widths := map[int]int64{}
		for _, p := range d.Properties {
			if p.DDI == ddi && p.ObjectID != 0 && p.Value >= 0 && p.Value <= widest {
				widths[p.ObjectID] = p.Value
			}
		}
		if len(parts) > 0 || len(widths) == 0 {
			continue
		}
		for _, e := range d.Elements {
			for _, object := range e.Objects {
				if width, ok := widths[object]; ok && len(parts) < mostParts {
					parts = append(parts, part{element: e.ID, width: float64(width) * millimeter, known: true})
					break
				}
			}
		}
	}
	w.widths[d] = parts
	return parts
}

// gauge returns what follows the values of a column; nil if nothing does.
func (m *meter) gauge(c *farmdata.Column) *gauge {
	at := m.machine(c.DeviceID)
	g := &gauge{machine: at, column: c, kind: m.works.kindOf(c.DDI)}
	switch {
	case c.CAN():
		return nil
	case g.kind != nil:
		at.rates = append(at.rates, g)
	case c.DDI == actualWidth && len(at.parts) < mostParts:
		g.part = &part{element: c.ElementID, measured: true}
		at.parts = append(at.parts, g.part)
	case c.DDI == workState && len(at.states) < mostParts:
		g.state = &state{share: 1, from: m.way, way: m.way}
		if at.states[c.ElementID] == nil {
			at.states[c.ElementID] = g.state
		}
		if at.any == nil {
			at.any = &state{share: 1, from: m.way, way: m.way}
		}
		at.arrange()
	case c.DDI >= firstSections && c.DDI <= lastSections && len(at.sections) <= int(lastSections-firstSections):
		if at.share == nil {
			at.share, at.some = &state{share: 1, from: m.way, way: m.way}, &state{share: 1, from: m.way, way: m.way}
		}
		at.sections = append(at.sections, g)
		at.arrange()
	default:
		return nil
	}
	return g
}

// set takes a value.
func (g *gauge) set(raw int64) {
	m := g.machine
	if g.known && g.raw == raw || g.part != nil && (raw < 0 || raw > widest) {
		return
	}
	before := onOff(g.known && g.raw == 1)
	if g.kind != nil {
		g.settle()
	}
	first := !g.known
	g.raw, g.known = raw, true
	switch {
	case g.part != nil:
		m.widen(g.part, float64(raw)*millimeter)
	case g.state != nil:
		now := onOff(raw == 1)
		m.on += int(now - before)
		m.turn(g.state, now)
		m.turn(m.any, onOff(m.on > 0))
	case g.kind == nil:
		on, off := 0, 0
		for _, s := range m.sections {
			if s.known {
				o, f := sections(s.raw)
				on, off = on+o, off+f
			}
		}
		m.turn(m.some, onOff(on > 0))
		m.turn(m.share, float64(on)/float64(max(on+off, 1)))
	case first:
		g.of = m.known[g.column.ElementID]
		g.from = g.base()
	}
}

// turn changes a state.
func (m *machine) turn(s *state, share float64) {
	if s.share == share {
		return
	}
	m.settle()
	s.way, s.from = s.wayAt(m.meter.way), m.meter.way
	m.width += (share - s.share) * s.width
	s.share = share
	m.weigh()
}

// widen changes a width.
func (m *machine) widen(p *part, width float64) {
	m.settle()
	p.settle(m.meter.way)
	if !p.known {
		p.width, p.known = width, true
		m.arrange()
		return
	}
	if p.outermost {
		m.width += (width - p.width) * p.state.share
		p.state.width += width - p.width
	}
	p.width = width
	m.weigh()
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
		s.width = 0
	}
	m.width = 0
	first := true
	for _, p := range m.parts {
		if !p.known {
			continue
		}
		p.state = m.stateOf(p)
		p.from = p.state.wayAt(m.meter.way)
		p.outermost = !m.within(p.element) && (first || m.device != nil) // of what is not described the first one is taken for all
		first = false
		if p.outermost {
			p.state.width += p.width
			m.width += p.width * p.state.share
		}
	}
	for _, rate := range m.rates {
		rate.of = m.known[rate.column.ElementID]
		rate.from = rate.base()
	}
	m.weigh()
}

func (m *machine) allStates() (list []*state) {
	for _, s := range m.states {
		list = append(list, s)
	}
	for _, s := range []*state{m.any, m.share, m.some} {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// within reports whether an element is in one whose width is known.
func (m *machine) within(element string) bool {
	for range mostLevels {
		if element = m.meter.works.elements[element].parent; element == "" {
			return false
		}
		if m.known[element] != nil {
			return true
		}
	}
	return false
}

// stateOf returns the nearest state from a part to the whole machine.
func (m *machine) stateOf(p *part) *state {
	element := p.element
	for range mostLevels {
		if s := m.states[element]; s != nil {
			return s
		}
		if element = m.meter.works.elements[element].parent; element == "" {
			break
		}
	}
	switch {
	case m.any != nil:
		return m.any
	case m.some != nil && p.measured: // the width of the sections that are on
		return m.some
	case m.share != nil:
		return m.share
	}
	return &state{share: 1, way: m.meter.way, from: m.meter.way} // nothing says that it is not at work
}

// weigh finds out whether the machine is at work.
func (m *machine) weigh() {
	const least = 1e-6
	switch {
	case len(m.known) > 0:
		m.working = m.width > least
	case m.any != nil:
		m.working = m.any.share > 0
	case m.some != nil:
		m.working = m.some.share > 0
	default:
		m.working = true
	}
}

func (m *machine) areaAt(way float64) float64 { return m.area + m.width*(way-m.fromWay) }

// settle counts what was worked up to now.
func (m *machine) settle() {
	m.area = m.areaAt(m.meter.way)
	if m.working {
		m.way += m.meter.way - m.fromWay
		m.time += m.meter.time - m.fromTime
	}
	m.fromWay, m.fromTime = m.meter.way, m.meter.time
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
	return m.areaAt(m.meter.way)
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
	const section, unit = 4, 5
	is := g.machine.meter.works.elements[g.column.ElementID].kind
	return !g.kind.byTime && g.of == nil && (is == section || is == unit)
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

// step goes on to the next record.
func (m *meter) step(r *farmdata.Record) {
	at := int64(none)
	if wall := r.Stamp.Wall; !wall.IsZero() {
		at = wall.UnixMilli()
	} else if !r.Stamp.UTC.IsZero() {
		at = r.Stamp.UTC.UnixMilli()
	}
	if took := at - m.last; at != none && m.last != none && took > 0 && took <= longestStep {
		m.time += float64(took) / 1000
	}
	m.timed, m.last = m.timed || at != none, at
	if !r.Position.Valid() {
		return
	}
	if m.position.Valid() {
		far, took := distance(&m.position, &r.Position), at-m.passed
		timeless := at == none || m.passed == none
		if timeless && far <= fastest || !timeless && took >= 0 && took <= longestStep && far <= fastest*max(float64(took)/1000, 1) {
			m.way += far
			m.placed = true
		}
	}
	m.position, m.passed = r.Position, at
}

// finish adds what was done to the works of the log's task. What could not be read of the log is in found.
func (m *meter) finish(task string, found []Finding) {
	incomplete := slices.ContainsFunc(found, func(f Finding) bool { return f.Kind.Unread() })
	for _, at := range m.order {
		at.settle()
		name := ""
		if at.device != nil {
			name = at.device.Designator
		}
		work := m.works.find(task, at.id, name)
		if work == nil {
			return
		}
		work.Incomplete = work.Incomplete || incomplete
		if m.placed {
			work.Distance = work.Distance.add(at.way)
		}
		if m.placed && len(at.known) > 0 {
			work.Area = work.Area.add(at.area)
		}
		if m.timed {
			work.Time = work.Time.add(at.time)
			work.allTime += m.time
		}
		for _, rate := range at.rates {
			if rate.settle(); rate.by > 0 {
				if sum := work.rate(rate.column, rate.kind); sum != nil {
					sum.add(rate.amount, rate.by)
					sum.partial = sum.partial || rate.partial()
				}
			}
		}
	}
}

// distance is that of two places near each other, in meters.
func distance(a, b *farmdata.Position) float64 {
	const radian = math.Pi / 180
	north, east := b.North-a.North, b.East-a.East
	switch { // across 180°
	case east > 180:
		east -= 360
	case east < -180:
		east += 360
	}
	east *= math.Cos((a.North + b.North) / 2 * radian)
	return earthRadius * radian * math.Sqrt(north*north+east*east)
}
