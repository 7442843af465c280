package content

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/names"
)

// mostTotals is how many works and rates a set may have, mostProducts how many products each of them may have: otherwise little data could
// make a lot.
const (
	mostTotals   = 10_000
	mostProducts = 100
)

// readLogs reads the logs. known are devices outside of the set. The error is that of ctx.
func (s *Set) readLogs(ctx context.Context, set *farmdata.Set, known []farmdata.Device, noted *notes) error {
	works := worksOf(set, known)
	defer func() {
		totals, found := works.finish()
		s.Totals, s.Findings, s.Sums = totals, append(s.Findings, found...), map[By][]Work{}
		for _, by := range allBy {
			s.Sums[by] = Sum(totals, by)
		}
	}()
	for _, log := range set.Logs {
		meter := works.meter(log)
		l, t, err := summarizeLog(ctx, log, meter, noted)
		meter.finish(taskKey{set: works.id, id: log.TaskID}, l.Findings)
		if detail := meter.twice(); detail != "" {
			l.Findings = append(l.Findings, finding(&farmdata.Finding{Kind: farmdata.KindUnsupported, File: log.Name, Offset: -1, Record: -1, Detail: detail}))
		}
		works.leaveOut(l.Columns)
		s.Logs = append(s.Logs, l)
		s.tracks = append(s.tracks, t)
		if err != nil {
			return err
		}
	}
	return nil
}

// works are what is done in a set.
type works struct {
	descriptions *farmdata.Descriptions
	kinds        map[farmdata.DDI]*rateKind
	amounts      map[farmdata.DDI]*rateKind // by total, the first rate that it is the amount of
	tasks        map[taskKey]*farmdata.Task
	devices      map[string]*farmdata.Device // by ID
	elements     map[string]element          // by ID
	names        *names.Directory
	set          *farmdata.Set
	id           *int // of the set
	logs         int  // that are read
	order        []*work
	byKey        map[workKey]*work
	byTask       map[taskKey][]*work
	widths       map[*farmdata.Device][]part
	room         int                                      // of mostTotals
	allocated    map[taskKey][]farmdata.ProductAllocation // each product of each device element once
	more         bool                                     // products than are listed
	left         leftOut
	busy         map[string][]span // by device ID, when it was in a log
	spans        int               // in busy
}

// leftOut is what figures lack: rates that are in no Work, totals as of taskTotals, what would say where functions are, and widths and rates
// that no machine has, such as those of 32 bits that stand for none. Widths are those of machines that no device describes.
type leftOut struct{ rates, totals, places, values, widths map[farmdata.DDI]bool }

// taskKey is a task of a set, also one that only a log names: its ID, or its number, from 1, if it has none. Of logs without a task
// it has neither.
type taskKey struct {
	set    *int
	id     string
	number int
}

// key returns that of a task of the set.
func (w *works) key(i int) taskKey {
	if id := w.set.Tasks[i].ID; id != "" {
		return taskKey{set: w.id, id: id}
	}
	return taskKey{set: w.id, number: i + 1}
}

// workKey is what a device does in a task.
type workKey struct {
	task   taskKey
	device string
}

// element is where a device element is.
type element struct {
	device *farmdata.Device
	kind   int     // as farmdata.Element.Type
	parent string  // the device element that it is in
	place  float64 // to the right of the middle of the device, in meters
	placed bool    // the device says so
}

// work is a Work that is not finished.
type work struct {
	*Work
	of      *works
	device  string
	allTime float64 // at work or not, in seconds
	rates   []*rateSum
	byPart  map[string][]*rateSum // by device element
	// areas are the totals of sections and units, by device element; areaOfParts is what those of them have together that are in no other.
	areas       map[string]float64
	areaOfParts float64
	blind       bool // a log has no width for the beginning of the way
	lost        bool // a log has no position for a part of the work
	guessed     bool // nothing says where its functions are
	single      bool // only the first of its widths counts
}

// rateSum is a rate of a device element in all logs of a task.
type rateSum struct {
	column     farmdata.Column
	kind       *rateKind
	amount, by float64 // in the SI
	from       From
	total      float64 // in the SI
	shared     bool    // by is that of the machine
	partial    bool    // how much of the machine it is of is not known
}

func (r *rateSum) add(amount, by float64) { r.amount, r.by, r.from = r.amount+amount, r.by+by, FromLog }

// add adds what the logs say.
func (f Figure) add(more float64) Figure { return figureOf(f.Value+more, FromLog) }

// figureOf takes off what sums and conversions leave behind the twelfth digit. What is no number is not known.
func figureOf(value float64, from From) Figure {
	value, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 12, 64), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return Figure{}
	}
	return Figure{value, from}
}

func worksOf(set *farmdata.Set, known []farmdata.Device) *works {
	devices := set.Devices
	if len(known) > 0 {
		devices = slices.Concat(devices, known)
	}
	w := &works{
		descriptions: farmdata.NewDescriptions(devices), kinds: map[farmdata.DDI]*rateKind{}, amounts: map[farmdata.DDI]*rateKind{}, tasks: map[taskKey]*farmdata.Task{}, devices: map[string]*farmdata.Device{},
		elements: map[string]element{}, names: names.New(set), set: set, id: new(int), byKey: map[workKey]*work{}, byTask: map[taskKey][]*work{}, room: mostTotals,
		widths: map[*farmdata.Device][]part{}, allocated: map[taskKey][]farmdata.ProductAllocation{}, left: leftOut{map[farmdata.DDI]bool{}, map[farmdata.DDI]bool{}, map[farmdata.DDI]bool{}, map[farmdata.DDI]bool{}, map[farmdata.DDI]bool{}}, busy: map[string][]span{},
	}
	for _, kind := range rateKinds() {
		one := farmdata.Value{Column: &farmdata.Column{DDI: kind.rate}, Raw: 1}
		var unit string
		kind.factor, unit = one.In(farmdata.SI)
		kind.byTime = slices.Contains([]string{"1/s", "kg/s", "m³/s"}, unit)
		w.kinds[kind.rate] = &kind
		for _, total := range kind.totals {
			if w.amounts[total] == nil && !kind.unitOnly {
				w.amounts[total] = &kind
			}
		}
	}
	for i := range devices {
		w.device(&devices[i])
	}
	for i := range set.Tasks {
		if key := w.key(i); w.tasks[key] == nil {
			w.tasks[key] = &set.Tasks[i]
		}
	}
	return w
}

func (w *works) device(d *farmdata.Device) {
	if w.devices[d.ID] == nil && d.ID != "" {
		w.devices[d.ID] = d
	}
	byObject, places := map[int]string{}, map[int]int64{}
	for _, p := range d.Properties {
		if p.DDI == sidewards && p.ObjectID != 0 {
			places[p.ObjectID] = p.Value
		}
	}
	for i := range d.Elements {
		if e := &d.Elements[i]; e.ObjectID != 0 && byObject[e.ObjectID] == "" {
			byObject[e.ObjectID] = e.ID
		}
	}
	for i := range d.Elements {
		if e := &d.Elements[i]; w.elements[e.ID].device == nil && e.ID != "" {
			at := element{device: d, kind: e.Type, parent: byObject[e.ParentObjectID]}
			for _, object := range e.Objects {
				if place, ok := places[object]; ok {
					at.place, at.placed = float64(place)*millimeter, true
				}
			}
			w.elements[e.ID] = at
		}
	}
	w.placeFunctions(d)
}

// owner returns the ID and name of the device that has an element.
func (w *works) owner(element string) (id, name string) {
	if d := w.elements[element].device; d != nil {
		return d.ID, d.Designator
	}
	return "", ""
}

// find returns what a device does in a task; nil if there is no room for it.
func (w *works) find(task taskKey, device, name string) *work {
	key := workKey{task, device}
	if at := w.byKey[key]; at != nil || w.full() {
		return at
	}
	at := &work{Work: &Work{task: task, Task: Named{ID: task.id}, Device: Named{device, name}, Rates: []Rate{}}, of: w, device: device, byPart: map[string][]*rateSum{}, areas: map[string]float64{}}
	if t := w.tasks[task]; t != nil {
		at.Task.Name = t.Designator
		at.Field = Named(w.names.Of(names.Field, names.Subject{Tasks: []*farmdata.Task{t}}))
	}
	w.byKey[key], w.order, w.byTask[task] = at, append(w.order, at), append(w.byTask[task], at)
	return at
}

// leaveOut notes the rates of a log that nothing is summed up of.
func (w *works) leaveOut(columns []Column) {
	for _, c := range columns {
		ddi, err := farmdata.ParseDDI(c.DDI)
		if err == nil && c.Count > 0 && w.kinds[ddi] == nil && isRate(ddi, c.Unit) {
			w.left.rates[ddi] = true
		}
	}
}

// full counts one more work or rate, and reports whether there is no room for it.
func (w *works) full() bool {
	w.room--
	return w.room < 0
}

// rate returns the sum of a rate of a device element; nil if there is no room for it.
func (w *work) rate(c *farmdata.Column, kind *rateKind) *rateSum {
	for _, r := range w.byPart[c.ElementID] {
		if r.kind == kind {
			return r
		}
	}
	if w.of.full() {
		return nil
	}
	r := &rateSum{column: *c, kind: kind}
	w.rates, w.byPart[c.ElementID] = append(w.rates, r), append(w.byPart[c.ElementID], r)
	return r
}

// finish adds what terminals wrote into the tasks, and returns all works, and findings if there are more of them, or rates that are in none.
func (w *works) finish() (list []Work, found []Finding) {
	for i := range w.set.Tasks {
		if key, task := w.key(i), &w.set.Tasks[i]; w.tasks[key] == task { // of tasks with the same ID the first one counts
			w.addTotals(key, task)
		}
	}
	list = make([]Work, 0, len(w.order))
	for _, at := range w.order {
		at.Products = w.products(at.task, at.device, "")
		at.Incomplete = at.Incomplete || at.lost && (at.Area.From == FromLog || at.Distance.From == FromLog)
		if at.Area.From == FromLog {
			at.Incomplete = at.Incomplete || at.blind
			if at.guessed {
				w.left.places[sidewards] = true
			}
			if at.single {
				w.left.widths[actualWidth] = true
			}
		}
		for _, r := range at.rates {
			at.Rates = append(at.Rates, at.finished(r))
		}
		list = append(list, *at.Work)
	}
	if w.room < 0 || w.more {
		found = append(found, finding(&farmdata.Finding{Kind: farmdata.KindLimit, Offset: -1, Record: -1, Detail: "totals of the set: more machines, rates or products than are summed up"}))
	}
	for _, leftOut := range []struct {
		kind   farmdata.Kind
		detail string
		ddis   map[farmdata.DDI]bool
	}{
		{farmdata.KindUnsupported, "totals of the set: rates that are not summed up:", w.left.rates},
		{farmdata.KindValue, "totals of tasks that do not count, because they are negative, the second value of one time, or from a local time to one with an offset:", w.left.totals},
		{farmdata.KindValue, "widths and rates of logs that do not count, because no machine has such:", w.left.values},
		{farmdata.KindUnsupported, "areas of logs: functions of a machine count as one behind the other, because they are without", w.left.places},
		{farmdata.KindUnsupported, "areas of logs: of a machine that no device describes only the first width counts:", w.left.widths},
	} {
		if len(leftOut.ddis) == 0 {
			continue
		}
		for _, ddi := range slices.Sorted(maps.Keys(leftOut.ddis)) {
			leftOut.detail += " " + ddi.String()
		}
		found = append(found, finding(&farmdata.Finding{Kind: leftOut.kind, Offset: -1, Record: -1, Detail: leftOut.detail}))
	}
	return list, found
}

// Types of times, as farmdata.TaskTime.Type.
const (
	planned   = 1
	effective = 4
)

// Totals of a task that are no amounts.
const (
	totalArea     farmdata.DDI = 0x0074
	totalDistance farmdata.DDI = 0x0075
	totalTime     farmdata.DDI = 0x0077
	idleTime      farmdata.DDI = 0x0078
)

// totalKey is a total of a device element.
type totalKey struct {
	ddi     farmdata.DDI
	element string
}

// addTotals takes the totals of a task for what was measured. Of several device elements of a machine that have the same total the largest counts for the
// machine; the areas of its sections and units, which are beside each other, count together, unless what they are in has one.
func (w *works) addTotals(key taskKey, task *farmdata.Task) {
	totals := totalsOf(task)
	best := map[*work]map[farmdata.DDI]float64{}
	var machines []*work
	for _, total := range totals.order {
		if w.amounts[total.ddi] == nil && !slices.Contains([]farmdata.DDI{totalArea, totalDistance, totalTime, idleTime}, total.ddi) {
			continue
		}
		id, name := w.owner(total.element)
		at := w.find(key, id, name)
		if at == nil {
			return
		}
		if best[at] == nil {
			best[at] = map[farmdata.DDI]float64{}
			machines = append(machines, at)
		}
		value := totals.sums[total] * inSI(total.ddi)
		if total.ddi == totalArea && w.divides(total.element) {
			at.areas[total.element] = value
			if !w.inAnother(total.element, totals) {
				at.areaOfParts += value
			}
		}
		best[at][total.ddi] = max(best[at][total.ddi], value)
	}
	maps.Copy(w.left.totals, totals.leftOut)
	for _, at := range machines {
		if _, ok := best[at][totalArea]; ok {
			best[at][totalArea] = max(best[at][totalArea], at.areaOfParts)
		}
		at.take(best[at])
	}
	for _, total := range totals.order {
		w.addRates(key, total, totals)
	}
	w.addTimes(key, task)
}

// inAnother reports whether a device element is in another one that has a total area.
func (w *works) inAnother(element string, totals *taskTotals) bool {
	for above := range w.up(element) {
		if _, there := totals.sums[totalKey{totalArea, above}]; there && above != element {
			return true
		}
	}
	return false
}

// addTimes takes the effective times of a task for machines of which nothing else says how long they worked. If nothing says that any did, that is one
// machine, the one that is allocated, or an unknown one.
func (w *works) addTimes(key taskKey, task *farmdata.Task) {
	worked, unusable := effectiveTime(task)
	if worked > 0 && len(w.byTask[key]) == 0 {
		id, name := "", ""
		for i, a := range task.Devices {
			if d := w.devices[a.DeviceID]; d != nil && (i == 0 || d.ID == id) {
				id, name = d.ID, d.Designator
			} else {
				id, name = "", ""
				break
			}
		}
		w.find(key, id, name)
	}
	counted := len(w.byTask[key]) > 0
	for _, at := range w.byTask[key] {
		if at.Time.From != "" {
			continue
		}
		counted = false
		if worked > 0 {
			at.Time = figureOf(worked, FromTotals)
		}
	}
	if unusable && !counted {
		w.left.totals[totalTime] = true
	}
}

// effectiveTime returns how many seconds a task was worked on. What several of its times have in common, such as those of two workers, counts once.
// One that ends before it begins, because a clock was set back, is unusable, and one of which only the start or the end is local.
func effectiveTime(task *farmdata.Task) (worked float64, unusable bool) {
	type span struct{ start, stop time.Time }
	var spans []span
	for _, at := range task.Times {
		start, stop, took := at.Start.Wall, at.Stop.Wall, at.Duration
		if took <= 0 && !start.IsZero() && at.Start.Local == at.Stop.Local {
			took = stop.Sub(start)
		}
		switch {
		case at.Type != effective:
		case took <= 0:
			unusable = unusable || took < 0 && !stop.IsZero() || !start.IsZero() && !stop.IsZero() && at.Start.Local != at.Stop.Local
		case start.IsZero():
			worked += took.Seconds()
		default:
			spans = append(spans, span{start, start.Add(took)})
		}
	}
	slices.SortStableFunc(spans, func(a, b span) int { return a.start.Compare(b.start) })
	var end time.Time
	for _, s := range spans {
		if s.start.Before(end) {
			s.start = end
		}
		if s.stop.After(s.start) {
			worked, end = worked+s.stop.Sub(s.start).Seconds(), s.stop
		}
	}
	return worked, unusable
}

// take takes the totals of a machine.
func (w *work) take(totals map[farmdata.DDI]float64) {
	for ddi, f := range map[farmdata.DDI]*Figure{totalArea: &w.Area, totalDistance: &w.Distance, totalTime: &w.Time} {
		if value, ok := totals[ddi]; ok {
			*f = figureOf(value, FromTotals)
		}
	}
	worked, atWork := totals[totalTime]
	if idle, ok := totals[idleTime]; ok && atWork {
		w.allTime = worked + idle
	}
}

// addRates takes a total for the rates that it is the amount of.
func (w *works) addRates(task taskKey, key totalKey, totals *taskTotals) {
	first := w.amounts[key.ddi]
	if first == nil {
		return
	}
	id, name := w.owner(key.element)
	at := w.find(task, id, name)
	if at == nil {
		return
	}
	amount, taken := totals.sums[key]*inSI(key.ddi), false
	for _, r := range at.byPart[key.element] {
		if !r.kind.unitOnly && preferred(r.kind, key.element, totals) == key.ddi {
			r.total, r.from, taken = amount, FromTotals, true
		}
	}
	if taken || preferred(first, key.element, totals) != key.ddi {
		return
	}
	c := &farmdata.Column{DDI: first.rate, ElementID: key.element}
	w.descriptions.Describe(c)
	if r := at.rate(c, first); r != nil {
		r.total, r.from = amount, FromTotals
	}
}

// preferred returns the first total of a rate that a device element has; DDIUnknown if it has none.
func preferred(kind *rateKind, element string, totals *taskTotals) farmdata.DDI {
	for _, ddi := range kind.totals {
		if _, there := totals.sums[totalKey{ddi, element}]; there {
			return ddi
		}
	}
	return farmdata.DDIUnknown
}

// finished makes a Rate.
func (w *work) finished(r *rateSum) Rate {
	out := Rate{DDI: r.column.DDI.String(), Name: r.column.Name, Element: r.column.ElementID, Unit: r.column.Unit, Products: w.of.products(w.task, w.device, r.column.ElementID)}
	total := &farmdata.Column{DDI: r.kind.totals[0], ElementID: r.column.ElementID}
	w.of.descriptions.Describe(total)
	out.TotalUnit = total.Unit
	out.rateAmount = rateAmount{column: &r.column, total: total, amount: r.amount, by: r.by, shared: r.shared, whole: !r.partial && r.by > 0}
	if r.from == FromTotals {
		out.amount, out.by, out.shared, out.whole = r.total, w.Area.Value, true, true
		if r.kind.byTime {
			out.by = w.allTime
		} else if area, ok := w.areas[r.column.ElementID]; ok {
			out.by, out.shared = area, false
		}
	}
	for above := range w.of.up(r.column.ElementID) {
		out.inner = out.inner || above != r.column.ElementID && slices.ContainsFunc(w.byPart[above], func(o *rateSum) bool { return o.kind == r.kind })
	}
	out.show(out.amount, r.from)
	if r.from == FromTotals && out.shared && !r.kind.byTime && w.of.divides(r.column.ElementID) {
		out.Mean = Figure{} // of a part, by the area of all
	}
	return out
}

// products returns those allocated to a device element in a task, or to one that it is in, or that is in it, or to any; to the machine, without an element.
func (w *works) products(task taskKey, device, element string) []Named {
	list := []Named{}
	for _, p := range w.allocations(task) {
		owner, _ := w.owner(p.ElementID)
		switch {
		case slices.ContainsFunc(list, func(n Named) bool { return n.ID == p.ProductID }):
		case p.ElementID == "", owner == device && (element == "" || w.in(element, p.ElementID) || w.in(p.ElementID, element)):
			list = append(list, Named(w.names.Of(names.Product, names.Subject{Products: []string{p.ProductID}, Prescribed: true})))
		}
	}
	return list
}

// allocations returns which products a task has for which device elements.
func (w *works) allocations(task taskKey) []farmdata.ProductAllocation {
	list, known := w.allocated[task]
	if known || w.tasks[task] == nil {
		return list
	}
	seen := map[[2]string]bool{}
	for _, p := range w.tasks[task].Products {
		if key := [2]string{p.ProductID, p.ElementID}; p.ProductID != "" && !seen[key] {
			if len(list) == mostProducts {
				w.more = true
				break
			}
			seen[key] = true
			list = append(list, p)
		}
	}
	w.allocated[task] = list
	return list
}

// up goes from a device element to the whole machine.
func (w *works) up(element string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for range mostLevels {
			if !yield(element) {
				return
			}
			if element = w.elements[element].parent; element == "" {
				return
			}
		}
	}
}

// divides reports whether a device element is a section or a unit: a part of the width of a machine.
func (w *works) divides(element string) bool {
	return w.elements[element].kind == 4 || w.elements[element].kind == 5
}

// in reports whether a device element is another one, or in it.
func (w *works) in(element, other string) bool {
	for above := range w.up(element) {
		if above == other {
			return true
		}
	}
	return false
}
