package command

import (
	"strings"

	"github.com/agrimill/agrimill/farmdata/content"
)

// writeTotals writes what was worked, and what was applied or harvested there.
func writeTotals(row func(...any), heading func(int, ...any) bool, all []content.Work) {
	figure := func(f content.Figure) (string, content.From) {
		if f.From == "" {
			return "", ""
		}
		return number(f.Value), f.From
	}
	rates := 0
	heading(len(all), "TASK", "FIELD", "DEVICE", "PRODUCTS", "AREA M²", "FROM", "DISTANCE M", "FROM", "TIME S", "FROM", "COMPLETE")
	for _, w := range all {
		area, areaFrom := figure(w.Area)
		distance, distanceFrom := figure(w.Distance)
		seconds, secondsFrom := figure(w.Time)
		complete := "yes"
		if w.Incomplete {
			complete = "no"
		}
		row(w.Task.ID, w.Field.ID, w.Device.Name, idsOf(w.Products), area, areaFrom, distance, distanceFrom, seconds, secondsFrom, complete)
		rates += len(w.Rates)
	}
	heading(rates, "TASK", "RATE", "NAME", "ELEMENT", "PRODUCTS", "MEAN", "UNIT", "TOTAL", "UNIT", "FROM")
	for _, w := range all {
		for _, r := range w.Rates {
			mean, from := figure(r.Mean)
			total, totalFrom := figure(r.Total)
			if from == "" {
				from = totalFrom
			}
			row(w.Task.ID, r.DDI, r.Name, r.Element, idsOf(r.Products), mean, r.Unit, total, r.TotalUnit, from)
		}
	}
}

func idsOf(list []content.Named) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = n.ID
	}
	return strings.Join(texts, " ")
}
