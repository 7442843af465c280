package content

import (
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// taskTotals are the totals of a task, which go on from one of its times to the next one.
type taskTotals struct {
	sums    map[totalKey]float64
	order   []totalKey
	last    map[totalKey]int64
	counted map[string]bool       // device elements that have a total which never falls
	leftOut map[farmdata.DDI]bool // a second value of one time, and negative areas, distances and times
}

func totalsOf(task *farmdata.Task) *taskTotals {
	t := &taskTotals{sums: map[totalKey]float64{}, last: map[totalKey]int64{}, counted: map[string]bool{}, leftOut: map[farmdata.DDI]bool{}}
	times := slices.Clone(task.Times)
	if !slices.ContainsFunc(times, func(at farmdata.TaskTime) bool { return at.Start.Wall.IsZero() }) {
		slices.SortStableFunc(times, func(a, b farmdata.TaskTime) int { return a.Start.Wall.Compare(b.Start.Wall) })
	}
	for _, at := range times {
		if at.Type != planned {
			t.add(at.Totals)
		}
	}
	return t
}

// add takes the totals of a time. A device element began anew if an area, a distance or a time is less than before. If only an amount is, it
// was corrected.
func (t *taskTotals) add(totals []farmdata.Total) {
	anew, there := map[string]bool{}, map[totalKey]bool{}
	counts := func(ddi farmdata.DDI) bool { return ddi >= totalArea && ddi <= idleTime }
	totals = slices.DeleteFunc(slices.Clone(totals), func(total farmdata.Total) bool { // of two in one time the first one counts
		key := totalKey{total.DDI, total.ElementID}
		if there[key] || counts(total.DDI) && total.Raw < 0 { // no area, distance or time, and not one of zero either
			t.leftOut[total.DDI] = true
			return true
		}
		there[key] = true
		return false
	})
	for _, total := range totals {
		if counts(total.DDI) {
			t.counted[total.ElementID] = true
			anew[total.ElementID] = anew[total.ElementID] || total.Raw < t.last[totalKey{total.DDI, total.ElementID}]
		}
	}
	for _, total := range totals {
		key := totalKey{total.DDI, total.ElementID}
		before, seen := t.last[key]
		if !seen {
			t.order = append(t.order, key)
		}
		if anew[key.element] || total.Raw < before && !t.counted[key.element] {
			before = 0
		}
		t.sums[key] += float64(total.Raw) - float64(before)
		t.last[key] = total.Raw
	}
}
