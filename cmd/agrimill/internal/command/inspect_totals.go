package command

import (
	"cmp"
	"strings"

	"github.com/agrimill/agrimill/farmdata/content"
)

func (t table) totals(all []content.Work) {
	heading, row := t.heading, t.row
	rates := 0
	heading(len(all), append([]any{"TASK", "FIELD", "DEVICE", "PRODUCTS"}, workHeading...)...)
	for _, w := range all {
		row(append([]any{w.Task.ID, w.Field.ID, w.Device.Name, idsOf(w.Products)}, work(w)...)...)
		rates += len(w.Rates)
	}
	heading(rates, "TASK", "RATE", "NAME", "ELEMENT", "PRODUCTS", "MEAN", "UNIT", "TOTAL", "UNIT", "FROM")
	for _, w := range all {
		for _, r := range w.Rates {
			row(append([]any{w.Task.ID, r.DDI, r.Name, r.Element, idsOf(r.Products)}, rate(r)...)...)
		}
	}
}

// sums adds what was worked, and what was applied or harvested, in all of each task, field, device or product.
func (t table) sums(by content.By, sums []content.Work) {
	heading, row := t.heading, t.row
	of, rates := "SUM BY "+strings.ToUpper(string(by)), 0
	heading(len(sums), append([]any{of, "NAME"}, workHeading...)...)
	names := make([]content.Named, len(sums))
	for i, w := range sums {
		names[i] = map[content.By]content.Named{content.ByTask: w.Task, content.ByField: w.Field, content.ByDevice: w.Device}[by]
		if by == content.ByProduct {
			names[i] = w.Products[0]
		}
		row(append([]any{names[i].ID, names[i].Name}, work(w)...)...)
		rates += len(w.Rates)
	}
	heading(rates, of, "RATE", "NAME", "MEAN", "UNIT", "TOTAL", "UNIT", "FROM")
	for i, w := range sums {
		for _, r := range w.Rates {
			row(append([]any{names[i].ID, r.DDI, r.Name}, rate(r)...)...)
		}
	}
}

var workHeading = []any{"AREA M²", "FROM", "DISTANCE M", "FROM", "TIME S", "FROM", "COMPLETE"}

func work(w content.Work) []any {
	complete := "yes"
	if w.Incomplete {
		complete = "no"
	}
	return []any{figure(w.Area), w.Area.From, figure(w.Distance), w.Distance.From, figure(w.Time), w.Time.From, complete}
}

func rate(r content.Rate) []any {
	return []any{figure(r.Mean), r.Unit, figure(r.Total), r.TotalUnit, cmp.Or(r.Mean.From, r.Total.From)}
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
