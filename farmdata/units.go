package farmdata

import "math"

// Units is which units values are in.
type Units int

// Units of values.
const (
	// Presented is the unit in which the device shows a value, otherwise that of the data dictionary: Column.Unit.
	Presented Units = iota
	// SI is the coherent unit of the SI, e.g. kg/m² or K, of what the data dictionary says that the raw value is. A part is
	// a part of 1, and the unit of what is counted is 1. A value that is not in the data dictionary is Presented.
	SI
)

// In returns a value and the unit that it is in, which is empty if the value has none.
func (v Value) In(units Units) (value float64, unit string) {
	if units == SI && !v.Column.CAN() {
		if m, ok := v.Column.DDI.Meaning(); ok && m.Unit != "" {
			if si, ok := coherent[m.Unit]; ok {
				return float64(v.Raw) * m.Scale * si.factor, si.unit
			}
		}
	}
	return v.Scaled(), v.Column.Unit
}

// coherent is what one of each unit of the data dictionary is in the SI.
var coherent = map[string]struct {
	factor float64
	unit   string
}{
	"mm": {1e-3, "m"}, "m": {1, "m"}, "m²": {1, "m²"}, "mm²/s": {1e-6, "m²/s"}, "ml": {1e-6, "m³"}, "L": {1e-3, "m³"}, "g": {1e-3, "kg"}, "kg": {1, "kg"},
	"ms": {1e-3, "s"}, "s": {1, "s"}, "h": {3600, "s"}, "/s": {1, "1/s"}, "Hz": {1, "1/s"}, "r/min": {1.0 / 60, "1/s"}, "mm/s": {1e-3, "m/s"},
	"mm³/m²": {1e-9, "m³/m²"}, "ml/m²": {1e-6, "m³/m²"}, "mg/m²": {1e-6, "kg/m²"}, "/m²": {1, "1/m²"}, "kWh/m²": {3.6e6, "J/m²"},
	"mm³/s": {1e-9, "m³/s"}, "ml/s": {1e-6, "m³/s"}, "mg/s": {1e-6, "kg/s"}, "kg/h": {1.0 / 3600, "kg/s"}, "ml/m": {1e-6, "m³/m"},
	"mm³/m³": {1e-9, "1"}, "mg/kg": {1e-6, "1"}, "ppm": {1e-6, "1"}, "%": {1e-2, "1"}, "#": {1, "1"}, "mm³/kg": {1e-9, "m³/kg"}, "mg/l": {1e-3, "kg/m³"},
	"mg/1000": {1e-9, "kg"}, "ml/1000": {1e-9, "m³"}, "°": {math.Pi / 180, "rad"}, "mK": {1e-3, "K"}, "Pa": {1, "Pa"}, "N": {1, "N"}, "N*m": {1, "N·m"},
	"W": {1, "W"}, "kWh": {3.6e6, "J"}, "A": {1, "A"}, "V": {1, "V"}, "Ohm": {1, "Ω"}, "mS/m": {1e-3, "S/m"},
}
