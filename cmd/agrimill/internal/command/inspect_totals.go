package command

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata/content"
)

// works adds what was worked, and what was applied or harvested there: of says of what each is.
func (t table) works(all []content.Work, of []any, is func(content.Work) []any, rateOf []any, rateIs func(content.Work, content.Rate) []any) {
	rates := 0
	t.heading(len(all), slices.Concat(of, []any{"AREA M²", "FROM", "DISTANCE M", "FROM", "TIME S", "FROM", "COMPLETE"})...)
	for _, w := range all {
		complete := "yes"
		if w.Incomplete {
			complete = "no"
		}
		t.row(append(is(w), figure(w.Area), w.Area.From, figure(w.Distance), w.Distance.From, figure(w.Time), w.Time.From, complete)...)
		rates += len(w.Rates)
	}
	t.heading(rates, slices.Concat(rateOf, []any{"MEAN", "UNIT", "TOTAL", "UNIT", "FROM"})...)
	for _, w := range all {
		for _, r := range w.Rates {
			t.row(append(rateIs(w, r), figure(r.Mean), r.Unit, figure(r.Total), r.TotalUnit, cmp.Or(r.Mean.From, r.Total.From))...)
		}
	}
}

func (t table) totals(all []content.Work) {
	t.works(all, []any{"TASK", "FIELD", "DEVICE", "PRODUCTS"},
		func(w content.Work) []any { return []any{w.Task.ID, w.Field.ID, w.Device.Name, idsOf(w.Products)} },
		[]any{"TASK", "RATE", "NAME", "ELEMENT", "PRODUCTS"},
		func(w content.Work, r content.Rate) []any {
			return []any{w.Task.ID, r.DDI, r.Name, r.Element, idsOf(r.Products)}
		})
}

// sums are those of all works of each task, field, device or product.
func (t table) sums(by content.By, sums []content.Work) {
	of := "SUM BY " + strings.ToUpper(string(by))
	named := func(w content.Work) content.Named {
		if by == content.ByProduct {
			return w.Products[0]
		}
		return map[content.By]content.Named{content.ByTask: w.Task, content.ByField: w.Field, content.ByDevice: w.Device}[by]
	}
	t.works(sums, []any{of, "NAME"},
		func(w content.Work) []any { return []any{named(w).ID, named(w).Name} },
		[]any{of, "RATE", "NAME"},
		func(w content.Work, r content.Rate) []any { return []any{named(w).ID, r.DDI, r.Name} })
}

func figure(f content.Figure) string {
	if f.From == "" {
		return ""
	}
	return number(f.Value)
}

func idsOf(list []content.Named) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = n.ID
	}
	return strings.Join(texts, " ")
}
