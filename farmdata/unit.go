package farmdata

import (
	"math"
	"strconv"
	"strings"
)

// Unit is a unit such as kg/ha, as ParseUnit reads it.
type Unit struct {
	factor, shift float64 // one is factor in the SI, zero is shift there
	quantity      quantity
}

// quantity is what a unit measures: powers of base quantities, or another one by name.
type quantity struct {
	mass, length, time int
	other              string
}

var (
	number, mass, length, duration = quantity{}, quantity{mass: 1}, quantity{length: 1}, quantity{time: 1}
	area, volume                   = quantity{length: 2}, quantity{length: 3}
	pressure, force                = quantity{mass: 1, length: -1, time: -2}, quantity{mass: 1, length: 1, time: -2}
	energy, power                  = quantity{mass: 1, length: 2, time: -2}, quantity{mass: 1, length: 2, time: -3}
	temperature, angle             = quantity{other: "temperature"}, quantity{other: "angle"}
)

// units are those that others are made of. Gallons, pounds, ounces and acres are those of the US. It is only read.
var units = map[string]Unit{
	"mg": {1e-6, 0, mass}, "g": {1e-3, 0, mass}, "kg": {1, 0, mass}, "dt": {100, 0, mass}, "t": {1000, 0, mass}, "lb": {0.45359237, 0, mass}, "oz": {0.028349523125, 0, mass},
	"mm": {1e-3, 0, length}, "cm": {1e-2, 0, length}, "m": {1, 0, length}, "km": {1e3, 0, length}, "in": {0.0254, 0, length}, "ft": {0.3048, 0, length},
	"ha": {1e4, 0, area}, "ac": {4046.8564224, 0, area}, "l": {1e-3, 0, volume}, "ml": {1e-6, 0, volume}, "hl": {0.1, 0, volume}, "gal": {0.003785411784, 0, volume},
	"ms": {1e-3, 0, duration}, "s": {1, 0, duration}, "min": {60, 0, duration}, "h": {3600, 0, duration}, "Hz": {1, 0, quantity{time: -1}},
	"1": {1, 0, number}, "#": {1, 0, number}, "r": {1, 0, number}, "seeds": {1, 0, number}, "plants": {1, 0, number}, "%": {1e-2, 0, number}, "ppm": {1e-6, 0, number},
	"mK": {1e-3, 0, temperature}, "K": {1, 0, temperature}, "°C": {1, 273.15, temperature}, "°": {math.Pi / 180, 0, angle}, "rad": {1, 0, angle},
	"Pa": {1, 0, pressure}, "kPa": {1e3, 0, pressure}, "bar": {1e5, 0, pressure}, "N": {1, 0, force}, "kN": {1e3, 0, force},
	"J": {1, 0, energy}, "kWh": {3.6e6, 0, energy}, "W": {1, 0, power}, "kW": {1e3, 0, power},
}

// ParseUnit reads a unit such as kg, m², kg/ha or mm³/m²; ok is false if it is not known.
func ParseUnit(text string) (u Unit, ok bool) {
	above, below, divided := strings.Cut(text, "/")
	if divided && strings.TrimSpace(above) == "" {
		above = "1"
	}
	if u, ok = raised(above); !ok || !divided {
		return u, ok
	}
	d, ok := raised(below)
	q := quantity{u.quantity.mass - d.quantity.mass, u.quantity.length - d.quantity.length, u.quantity.time - d.quantity.time, u.quantity.other}
	return Unit{u.factor / d.factor, 0, q}, ok && u.shift == 0 && d.shift == 0 && d.quantity.other == ""
}

// raised reads a unit that may have an exponent of two or three.
func raised(text string) (Unit, bool) {
	text = strings.ReplaceAll(strings.TrimSpace(text), "L", "l") // liters are the only unit with two spellings
	if u, ok := units[text]; ok {
		return u, true
	}
	for ending, n := range map[string]int{"²": 2, "2": 2, "³": 3, "3": 3} {
		if base, found := strings.CutSuffix(text, ending); found {
			u, ok := units[base]
			return Unit{math.Pow(u.factor, float64(n)), 0, quantity{u.quantity.mass * n, u.quantity.length * n, u.quantity.time * n, ""}},
				ok && u.quantity.other == "" && u.quantity != number // which has no square: 12 is not 1²
		}
	}
	return Unit{}, false
}

// To says how numbers in the unit become those in another one: n*factor + shift. ok is false if they measure different things.
func (u Unit) To(other Unit) (factor, shift float64, ok bool) {
	if u.quantity != other.quantity || other.factor == 0 {
		return 0, 0, false
	}
	return significant(u.factor / other.factor), significant((u.shift - other.shift) / other.factor), true
}

// significant is a number without what division adds to it: 100, not 99.99999999999999.
func significant(f float64) float64 {
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'g', 12, 64), 64) // which it can read
	return f
}
