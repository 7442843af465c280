package content

import (
	"cmp"
	"slices"
)

// By is what works are summed up by.
type By string

// What works have in common.
const (
	ByTask    By = "task"
	ByField   By = "field"
	ByDevice  By = "device"
	ByProduct By = "product"
)

var allBy = []By{ByTask, ByField, ByDevice, ByProduct}

// of returns what a work is summed up in.
func (b By) of(w *Work) []Named {
	switch b {
	case ByTask:
		return []Named{w.Task}
	case ByField:
		return []Named{w.Field}
	case ByDevice:
		return []Named{w.Device}
	case ByProduct:
		return w.Products
	default:
		return nil
	}
}

// Sum sums up works, as [Totals] returned them, that have a task, a field, a device or a product in common: each sum has the one that it is
// of, and no other. Works without any are in none, and there are at most 10,000 sums; by anything else there are none.
//
// Machines of a task whose values are in the same log drove together, and so did those without a log with those of the first one: the largest
// area, distance and time of them counts, not their sum. Of a device element that is in another one with the same rate nothing counts. What is of several products
// counts for each of them, also if they were used one after the other. A sum is Incomplete if one of its works is, or if the area of a machine is not known, but that of others is.
func Sum(works []Work, by By) []Work {
	type key struct {
		set *int
		id  string
	}
	first := map[taskKey]int{} // log by task
	for i := range works {
		task := works[i].task
		first[task] = cmp.Or(first[task], works[i].log)
	}
	list, at := []*sum{}, map[key]*sum{}
	for i := range works {
		w := &works[i]
		for _, of := range by.of(w) {
			k := key{w.task.set, of.ID}
			if of.ID == "" || at[k] == nil && len(list) == mostTotals {
				continue
			}
			if at[k] == nil {
				at[k] = newSum(by, of)
				list = append(list, at[k])
			}
			at[k].add(w, cmp.Or(w.log, first[w.task]))
		}
	}
	out := make([]Work, len(list))
	for i, s := range list {
		out[i] = s.finished()
	}
	return out
}

// sum is a Work that is made of others.
type sum struct {
	Work
	product string // empty: not by product
	teams   map[team]*Work
	order   []*Work // of teams
	rates   []*rateOf
}

// team is machines that drove together.
type team struct {
	task taskKey
	log  int
}

// rateOf is a Rate that is made of others.
type rateOf struct {
	Rate
	from   From
	amount float64 // for which by is known
	shared float64 // of by, in the last work
	own    float64 // of by there, that is not shared
	last   *Work
}

func newSum(by By, of Named) *sum {
	s := &sum{Work: Work{Products: []Named{}}, teams: map[team]*Work{}}
	switch by {
	case ByTask:
		s.Task = of
	case ByField:
		s.Field = of
	case ByDevice:
		s.Device = of
	case ByProduct:
		s.Products, s.product = []Named{of}, of.ID
	}
	return s
}

// add adds a work of a machine that drove with those of a log; 0: of none.
func (s *sum) add(w *Work, log int) {
	key := team{w.task, log}
	t := s.teams[key]
	if t == nil {
		t = &Work{}
		s.teams[key], s.order = t, append(s.order, t)
	}
	s.Works++
	s.Incomplete = s.Incomplete || w.Incomplete
	t.Area, t.Distance, t.Time = t.Area.larger(w.Area), t.Distance.larger(w.Distance), t.Time.larger(w.Time)
	for i := range w.Rates {
		r := &w.Rates[i]
		other := s.product != "" && !slices.ContainsFunc(r.Products, func(n Named) bool { return n.ID == s.product })
		if r.inner || other {
			continue
		}
		at := slices.IndexFunc(s.rates, func(known *rateOf) bool { return known.DDI == r.DDI })
		if at < 0 {
			at = len(s.rates)
			s.rates = append(s.rates, &rateOf{Rate: Rate{DDI: r.DDI, Name: r.Name, Unit: r.Unit, TotalUnit: r.TotalUnit, Products: s.Products, rateAmount: rateAmount{column: r.column, total: r.total, whole: true}}})
		}
		s.rates[at].add(r, w)
	}
}

// add adds a rate of a work. Device elements that work on the same area, such as tanks, do so once.
func (r *rateOf) add(other *Rate, w *Work) {
	if r.last != w {
		r.last, r.shared, r.own = w, 0, 0
	}
	r.from = r.from.and(max(other.Mean.From, other.Total.From))
	r.Rate.amount += other.amount
	r.whole = r.whole && other.whole
	if other.by > 0 {
		by := other.by
		if other.shared {
			by = max(0, by-r.shared)
			r.shared += by
		} else if other.Mean.From == FromLog && w.area > 0 { // of functions one behind the other, not more than what all of them worked
			if room := w.area - r.own; by > room+1e-9*w.area {
				by = max(0, room)
			}
			r.own += by
		}
		r.amount, r.by = r.amount+other.amount, r.by+by
	}
}

func (s *sum) finished() Work {
	for _, t := range s.order {
		s.Area, s.Distance, s.Time = s.Area.and(t.Area), s.Distance.and(t.Distance), s.Time.and(t.Time)
	}
	for _, t := range s.order {
		s.Incomplete = s.Incomplete || t.Area.From == "" && s.Area.From != ""
	}
	s.Rates = make([]Rate, len(s.rates))
	for i, r := range s.rates {
		s.Rates[i] = r.Rate
		s.Rates[i].show(r.amount, r.from)
	}
	return s.Work
}

// and returns where a sum is from.
func (f From) and(other From) From {
	switch {
	case f == "" || f == other:
		return other
	case other == "":
		return f
	}
	return FromBoth
}

// and returns the sum of two figures; what is not known adds nothing.
func (f Figure) and(other Figure) Figure {
	return figureOf(f.Value+other.Value, f.From.and(other.From))
}

func (f Figure) larger(other Figure) Figure {
	if f.From == "" || other.From != "" && other.Value > f.Value {
		return other
	}
	return f
}
