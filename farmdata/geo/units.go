package geo

import (
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// unit is what one of it is in a unit of the same quantity: value = n*factor + shift.
type unit struct {
	quantity      string
	factor, shift float64
}

// simple are the units that others are made of by division.
var simple = map[string]unit{
	"mg": {"mass", 1e-6, 0}, "g": {"mass", 1e-3, 0}, "kg": {"mass", 1, 0}, "dt": {"mass", 100, 0}, "t": {"mass", 1000, 0}, "lb": {"mass", 0.45359237, 0},
	"mm³": {"volume", 1e-9, 0}, "ml": {"volume", 1e-6, 0}, "l": {"volume", 1e-3, 0}, "L": {"volume", 1e-3, 0}, "m³": {"volume", 1, 0}, "gal": {"volume", 3.785411784e-3, 0},
	"mm²": {"area", 1e-6, 0}, "m²": {"area", 1, 0}, "ha": {"area", 1e4, 0}, "ac": {"area", 4046.8564224, 0},
	"mm": {"length", 1e-3, 0}, "cm": {"length", 1e-2, 0}, "m": {"length", 1, 0}, "km": {"length", 1e3, 0}, "ft": {"length", 0.3048, 0},
	"ms": {"time", 1e-3, 0}, "s": {"time", 1, 0}, "min": {"time", 60, 0}, "h": {"time", 3600, 0},
	"1": {"number", 1, 0}, "#": {"number", 1, 0}, "ppm": {"number", 1e-6, 0}, "%": {"number", 1e-2, 0},
	"K": {"temperature", 1, 0}, "mK": {"temperature", 1e-3, 0}, "°C": {"temperature", 1, 273.15},
	"Pa": {"pressure", 1, 0}, "kPa": {"pressure", 1e3, 0}, "bar": {"pressure", 1e5, 0},
	"rad": {"angle", 1, 0}, "°": {"angle", 0.017453292519943295, 0},
	"W": {"power", 1, 0}, "kW": {"power", 1e3, 0}, "J": {"energy", 1, 0}, "kWh": {"energy", 3.6e6, 0}, "N": {"force", 1, 0}, "kN": {"force", 1e3, 0},
	"r": {"number", 1, 0}, "seeds": {"number", 1, 0},
}

// parseUnit reads a unit: a simple one, or one divided by another.
func parseUnit(text string) (u unit, ok bool) {
	above, below, divided := strings.Cut(text, "/")
	if !divided {
		u, ok = simple[text]
		return u, ok
	}
	if above == "" {
		above = "1"
	}
	a, okA := simple[above]
	b, okB := simple[below]
	if !okA || !okB || a.shift != 0 || b.shift != 0 {
		return unit{}, false
	}
	return unit{quantity: a.quantity + "/" + b.quantity, factor: a.factor / b.factor}, true
}

// Key is how the values of a column are written.
type Key struct {
	// Name and Unit are those of the column on the map.
	Name, Unit string

	offset       int64
	scale, shift float64
}

// Value returns a value in the unit of the key.
func (k *Key) Value(v farmdata.Value) float64 { return float64(v.Raw+k.offset)*k.scale + k.shift }

// keyIn returns the key of a column in a unit, without a name; ok is false if its values cannot be converted.
func keyIn(c *farmdata.Column, to string) (k Key, ok bool) {
	k = Key{Unit: c.Unit, offset: c.Offset, scale: c.Scale}
	if to == "" || to == c.Unit {
		return k, true
	}
	wanted, ok := parseUnit(to)
	if !ok {
		return k, false
	}
	if own, ok := parseUnit(c.Unit); ok && own.quantity == wanted.quantity {
		return Key{Unit: to, offset: c.Offset, scale: c.Scale * own.factor / wanted.factor, shift: (own.shift - wanted.shift) / wanted.factor}, true
	}
	// What the device calls it may be any word; the data dictionary says what it is.
	one, name := farmdata.Value{Column: c, Raw: 1}.In(farmdata.SI)
	if si, ok := parseUnit(name); ok && name != c.Unit && si.quantity == wanted.quantity {
		return Key{Unit: to, scale: one * si.factor / wanted.factor, shift: (si.shift - wanted.shift) / wanted.factor}, true
	}
	return k, false
}
