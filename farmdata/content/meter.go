package content

import (
	"cmp"
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
	// drift is how far a machine goes, in meters, until its terminal logs all that it does.
	drift      = 20.0
	millimeter = 1e-3
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
	log       int                 // its number
	machines  map[string]*machine // by device ID
	order     []*machine
	gauges    map[totalKey]*gauge
	records   int     // that were there
	way, time float64 // in meters and seconds
	seen      float64 // the time at position
	lost      float64 // of the time, while there was no position for longer than a step
	last      int64   // Unix time in milliseconds; none: unknown
	position  farmdata.Position
	passed    int64  // when it was at position
	since     int64  // when it came there: without a fix many receivers give the last place again, and do not say so
	spans     []span // when there were records
	timed     bool   // there were times of two records
	placed    bool   // and two positions
	fixed     bool   // a position had a status of one
}

func (w *works) meter(log *farmdata.Log) *meter {
	w.logs++ // logs of EFDI need no name
	m := &meter{works: w, log: w.logs, machines: map[string]*machine{}, gauges: map[totalKey]*gauge{}, last: none, passed: none, since: none}
	for i := range log.Columns {
		m.machine(log.Columns[i].DeviceID)
	}
	return m
}

func (m *meter) machine(id string) *machine {
	if at := m.machines[id]; at != nil {
		return at
	}
	at := &machine{meter: m, id: id, device: m.works.devices[id], states: map[string]*state{}, shares: map[string]*state{}, worked: worked{fromWay: m.way, fromTime: m.time, fromLost: m.lost}}
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
			if p.DDI == ddi && p.ObjectID != 0 && p.Value > 0 && p.Value <= widest { // zero is what devices say that do not know
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

// gauge returns what follows the values of a column; nil if nothing does. Columns that mean the same have one, so that nothing counts twice.
func (m *meter) gauge(c *farmdata.Column) *gauge {
	at, key := m.machine(c.DeviceID), totalKey{c.DDI, c.ElementID}
	g := &gauge{machine: at, column: c, kind: m.works.kinds[c.DDI]}
	switch {
	case c.CAN():
		return nil
	case m.gauges[key] != nil:
		return m.gauges[key]
	case g.kind != nil:
		at.rates = append(at.rates, g)
	case c.DDI == actualWidth && len(at.parts) < mostParts:
		g.part = &part{element: c.ElementID, measured: true}
		at.parts = append(at.parts, g.part)
	case c.DDI == workState && at.stated < mostParts:
		at.stated++
		g.state = &state{}
	case c.DDI >= firstSections && c.DDI <= lastSections && len(at.sections) <= int(lastSections-firstSections):
		at.sections = append(at.sections, g)
	default:
		return nil
	}
	m.gauges[key] = g
	return g
}

// step goes on to the next record.
func (m *meter) step(r *farmdata.Record) {
	m.records++
	at := int64(none)
	if wall := r.Stamp.Wall; !wall.IsZero() {
		at = wall.UnixMilli()
	} else if !r.Stamp.UTC.IsZero() {
		at = r.Stamp.UTC.UnixMilli()
	}
	if took := at - m.last; at != none && m.last != none && took > 0 && took <= longestStep {
		m.time, m.timed = m.time+float64(took)/1000, true
		if m.time-m.seen > longestStep/1000 {
			m.lost += float64(took) / 1000
		}
		if last := len(m.spans) - 1; last >= 0 && m.spans[last].to == m.last {
			m.spans[last].to = at
		} else if last < mostSpans {
			m.spans = append(m.spans, span{m.last, at})
		}
	}
	m.last = at
	if !r.Position.Valid() {
		return
	}
	far, reach, took := distance(&m.position, &r.Position), fastest, int64(0)
	if at != none && m.passed != none {
		took = at - m.passed
		reach *= max(float64(min(at-m.since, longestStep))/1000, 1)
	}
	if !m.takes(&r.Position, far > 0 && far <= reach) {
		return
	}
	if m.position.Valid() && took >= 0 && took <= longestStep && far <= reach {
		m.way += far
		m.placed = true
	}
	if far > 0 || m.since == none {
		m.since = at
	}
	m.position, m.passed, m.seen = r.Position, at, m.time
}

// takes reports whether a position says where the machine is. Without a fix many receivers give the last place again, or one far away, from where
// it has not moved; others do not say that they have one.
func (m *meter) takes(p *farmdata.Position, moved bool) bool {
	const noFix, failed = 0, 14
	if p.Has&farmdata.HasStatus == 0 {
		return true
	}
	fix := p.Status != noFix && p.Status != failed
	m.fixed = m.fixed || fix
	return fix || moved || !m.fixed
}

// finish adds what was done to the works of the log's task. What could not be read of the log is in found.
func (m *meter) finish(task taskKey, found []Finding) {
	incomplete := slices.ContainsFunc(found, func(f Finding) bool { return f.Kind.Unread() })
	team := m.log // or that which one of the machines drove with before
	for _, at := range slices.Backward(m.order) {
		if work := m.works.byKey[workKey{task, at.id}]; work != nil {
			team = cmp.Or(work.log, team)
		}
	}
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
		work.lost = work.lost || at.lost > 0
		work.Incomplete, work.log = work.Incomplete || incomplete, cmp.Or(work.log, team)
		if m.placed {
			work.Distance = work.Distance.add(at.way)
		}
		if m.placed && len(at.known) > 0 {
			work.blind = work.blind || at.blind > drift
			work.Area = work.Area.add(at.area)
			work.area += at.area
			work.guessed, work.single = work.guessed || at.guessed, work.single || at.single
		}
		if m.timed {
			work.Time = work.Time.add(at.time)
			work.allTime += m.time
		}
		for _, rate := range at.rates {
			if rate.settle(); rate.by > 0 {
				if sum := work.rate(rate.column, rate.kind); sum != nil {
					sum.add(rate.amount, rate.by)
					sum.partial, sum.shared = sum.partial || rate.partial(), sum.shared || rate.shared()
				}
			} else if rate.known && !rate.kind.byTime && len(at.known) == 0 && at.blind > drift { // by an area that is not known
				if sum := work.rate(rate.column, rate.kind); sum != nil {
					sum.partial = true
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
