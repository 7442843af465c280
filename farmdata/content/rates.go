package content

import (
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// rateKind is a rate, and the totals that are the same amount, the preferred one first. What is only planned, or has no total of its own, has just
// the unit of one.
type rateKind struct {
	rate     farmdata.DDI
	totals   []farmdata.DDI
	unitOnly bool
	// What worksOf adds: whether it is a rate by time, and what one of its raw values is in the SI.
	byTime bool
	factor float64
}

func rateKinds() []rateKind {
	const volume, mass, count, volumeFine, massFine = 0x0050, 0x0051, 0x0052, 0x015F, 0x0160
	return []rateKind{
		{rate: 0x0001, totals: []farmdata.DDI{volume}, unitOnly: true}, {rate: 0x0002, totals: []farmdata.DDI{volume, volumeFine}},
		{rate: 0x0006, totals: []farmdata.DDI{mass}, unitOnly: true}, {rate: 0x0007, totals: []farmdata.DDI{mass, massFine}},
		{rate: 0x000B, totals: []farmdata.DDI{count}, unitOnly: true}, {rate: 0x000C, totals: []farmdata.DDI{count}},
		{rate: 0x024C, totals: []farmdata.DDI{volume}, unitOnly: true}, {rate: 0x024D, totals: []farmdata.DDI{volume, volumeFine}},
		{rate: 0x0025, totals: []farmdata.DDI{volume, volumeFine}}, {rate: 0x002A, totals: []farmdata.DDI{mass, massFine}}, {rate: 0x002F, totals: []farmdata.DDI{count}},
		{rate: 0x0053, totals: []farmdata.DDI{0x0059}}, {rate: 0x0054, totals: []farmdata.DDI{0x005A}}, {rate: 0x0055, totals: []farmdata.DDI{0x005B}},
		{rate: 0x0056, totals: []farmdata.DDI{0x0059}}, {rate: 0x0057, totals: []farmdata.DDI{0x005A}}, {rate: 0x0058, totals: []farmdata.DDI{0x005B}},
		{rate: 0x00B5, totals: []farmdata.DDI{0x00B7}}, {rate: 0x00B6, totals: []farmdata.DDI{0x00B7}}, // dry mass
		{rate: 0x00B9, totals: []farmdata.DDI{0x00BD}}, {rate: 0x00BB, totals: []farmdata.DDI{0x00BD}}, // seed cotton
		{rate: 0x00BA, totals: []farmdata.DDI{0x00BE}}, {rate: 0x00BC, totals: []farmdata.DDI{0x00BE}}, // lint
		{rate: 0x01B1, totals: []farmdata.DDI{0x0161}}, {rate: 0x01B5, totals: []farmdata.DDI{0x0162}}, // nitrogen, ammonium
		{rate: 0x01B9, totals: []farmdata.DDI{0x0163}}, {rate: 0x01BD, totals: []farmdata.DDI{0x0164}}, // phosphor, potassium
		{rate: 0x0095, totals: []farmdata.DDI{0x0094}}, {rate: 0x0096, totals: []farmdata.DDI{0x0094}}, // fuel
		{rate: 0x019A, totals: []farmdata.DDI{0x0199}}, {rate: 0x019B, totals: []farmdata.DDI{0x0199}}, // diesel exhaust fluid
		{rate: 0x0292, totals: []farmdata.DDI{0x0298}}, {rate: 0x0293, totals: []farmdata.DDI{0x0298}}, // CO2
		{rate: 0xB003, totals: []farmdata.DDI{0x02A7}}, {rate: 0xB004, totals: []farmdata.DDI{0x02A7}}, // contamination
		{rate: 0x005C, totals: []farmdata.DDI{0x0059}, unitOnly: true}, {rate: 0x005F, totals: []farmdata.DDI{0x0059}, unitOnly: true}, // crop loss
		{rate: 0x005D, totals: []farmdata.DDI{0x005A}, unitOnly: true}, {rate: 0x0060, totals: []farmdata.DDI{0x005A}, unitOnly: true},
		{rate: 0x005E, totals: []farmdata.DDI{0x005B}, unitOnly: true}, {rate: 0x0061, totals: []farmdata.DDI{0x005B}, unitOnly: true},
		{rate: 0x023F, totals: []farmdata.DDI{0x023D}, unitOnly: true}, {rate: 0x02B4, totals: []farmdata.DDI{0x02B1}, unitOnly: true}, // energy
	}
}

// isRate reports whether a DDI, which a device may give a unit, is what was applied, harvested or lost by something. What is planned, a limit or an average
// adds up to nothing.
func isRate(ddi farmdata.DDI, unit string) bool {
	if m, ok := ddi.Meaning(); ok {
		first, _, _ := strings.Cut(m.Name, " ")
		if slices.Contains([]string{"Setpoint", "Default", "Minimum", "Maximum", "Average", "Lifetime"}, first) {
			return false
		}
		if unit = m.Unit; strings.Contains(m.Name, "application rate") || strings.HasSuffix(m.Name, "crop loss") { // some are percentages
			return true
		}
	}
	u, ok := farmdata.ParseUnit(unit)
	if !ok || !strings.Contains(unit, "/") { // m³/m² is a length
		return false
	}
	return slices.ContainsFunc([]string{"kg/m²", "m³/m²", "1/m²", "kg/s", "m³/s", "kg/m", "m³/m", "m³/kg"}, func(rate string) bool {
		other, _ := farmdata.ParseUnit(rate)
		_, _, same := u.To(other)
		return same
	})
}

// inSI is what one of a raw value is in the SI.
func inSI(ddi farmdata.DDI) float64 {
	factor, _ := farmdata.Value{Column: &farmdata.Column{DDI: ddi}, Raw: 1}.In(farmdata.SI)
	return factor
}

// presented shows a value of the SI as a column does.
func presented(c *farmdata.Column, si float64) float64 {
	return (si/inSI(c.DDI) + float64(c.Offset)) * c.Scale
}
