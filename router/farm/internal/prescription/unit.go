package prescription

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// measure is what a unit has of the SI, and of which powers of mass, length and time.
type measure struct {
	factor             float64
	mass, length, time int
}

// units are the units that rates may be made of. Gallons, pounds and acres are those of the US. It is only read.
var units = map[string]measure{
	"mg": {1e-6, 1, 0, 0}, "g": {1e-3, 1, 0, 0}, "kg": {1, 1, 0, 0}, "dt": {100, 1, 0, 0}, "t": {1000, 1, 0, 0}, "lb": {0.45359237, 1, 0, 0}, "oz": {0.028349523125, 1, 0, 0},
	"mm": {1e-3, 0, 1, 0}, "cm": {1e-2, 0, 1, 0}, "m": {1, 0, 1, 0}, "km": {1e3, 0, 1, 0}, "in": {0.0254, 0, 1, 0}, "ft": {0.3048, 0, 1, 0},
	"ha": {1e4, 0, 2, 0}, "ac": {4046.8564224, 0, 2, 0}, "l": {1e-3, 0, 3, 0}, "ml": {1e-6, 0, 3, 0}, "hl": {0.1, 0, 3, 0}, "gal": {0.003785411784, 0, 3, 0},
	"s": {1, 0, 0, 1}, "min": {60, 0, 0, 1}, "h": {3600, 0, 0, 1},
	"": {1, 0, 0, 0}, "1": {1, 0, 0, 0}, "#": {1, 0, 0, 0}, "seeds": {1, 0, 0, 0}, "plants": {1, 0, 0, 0}, "%": {1e-2, 0, 0, 0}, "ppm": {1e-6, 0, 0, 0},
}

// parse reads a unit such as kg/ha or mm³/m².
func parse(text string) (m measure, ok bool) {
	above, below, divided := strings.Cut(text, "/")
	if m, ok = power(above); !ok || !divided {
		return m, ok && above != ""
	}
	d, ok := power(below)
	return measure{m.factor / d.factor, m.mass - d.mass, m.length - d.length, m.time - d.time}, ok && below != ""
}

// power reads a unit that may have an exponent of two or three.
func power(text string) (measure, bool) {
	text = strings.TrimSpace(text)
	if m, ok := units[unitName(text)]; ok {
		return m, true
	}
	for ending, n := range map[string]int{"²": 2, "2": 2, "³": 3, "3": 3} {
		if base, found := strings.CutSuffix(text, ending); found {
			m, ok := units[unitName(base)]
			return measure{math.Pow(m.factor, float64(n)), m.mass * n, m.length * n, m.time * n}, ok && base != ""
		}
	}
	return measure{}, false
}

// unitName spells liters in one way: they are the only unit with two.
func unitName(text string) string { return strings.ReplaceAll(text, "L", "l") }

// Factor is what a number in a unit is times to be the raw number of a DDI.
func Factor(ddi farmdata.DDI, unit string) (float64, error) {
	if unit == Raw {
		return 1, nil
	}
	m, ok := ddi.Meaning()
	if !ok {
		return 0, fmt.Errorf("the data dictionary does not have %s, so its unit can only be %s", ddi, Raw)
	}
	if unit == m.Unit && unit != "" {
		return 1 / m.Scale, nil
	}
	to, known := parse(m.Unit)
	from, ok := parse(unit)
	switch {
	case !known:
		return 0, fmt.Errorf("the unit of %s can only be %s or %s", ddi, strings.TrimSpace(m.Unit+" "), Raw)
	case !ok:
		return 0, fmt.Errorf("the unit %q is not known", unit)
	case from.mass != to.mass || from.length != to.length || from.time != to.time:
		return 0, fmt.Errorf("the unit %q is of another kind than %s, the unit of %s", unit, m.Unit, ddi)
	}
	return significant(from.factor / to.factor / m.Scale), nil
}

// significant is a number without what division adds to it: 100, not 99.99999999999999.
func significant(f float64) float64 {
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'g', 12, 64), 64) // which it can read
	return f
}
