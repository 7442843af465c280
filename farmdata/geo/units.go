package geo

import (
	"math"

	"github.com/agrimill/agrimill/farmdata"
)

// Key is how the values of a column are written.
type Key struct {
	// Name and Unit are those of the column on the map.
	Name, Unit string

	offset       int64
	scale, shift float64
	parts        float64 // one has so many of scale, if that is a whole number; otherwise 0
}

// Value returns a value in the unit of the key: 4.685 for 4685 thousandths, which times 0.001 are 4.6850000000000005.
func (k *Key) Value(v farmdata.Value) float64 {
	if k.parts != 0 {
		return (float64(v.Raw)+float64(k.offset))/k.parts + k.shift
	}
	return (float64(v.Raw)+float64(k.offset))*k.scale + k.shift
}

// divided returns the key with its parts.
func (k Key) divided() Key {
	if parts := math.Round(1 / k.scale); 1/parts == k.scale { // as farmdata.Value.Scaled does
		k.parts = parts
	}
	return k
}

// keyIn returns the key of a column in a unit, without a name; ok is false if its values cannot be converted.
func keyIn(c *farmdata.Column, to string) (k Key, ok bool) {
	k = Key{Unit: c.Unit, offset: c.Offset, scale: c.Scale}
	if to == "" || to == c.Unit {
		return k.divided(), true
	}
	wanted, ok := farmdata.ParseUnit(to)
	if !ok {
		return k, false
	}
	if factor, shift, ok := convert(c.Unit, wanted); ok {
		return Key{Unit: to, offset: c.Offset, scale: c.Scale * factor, shift: shift}.divided(), true
	}
	// What the device calls it may be any word; the data dictionary says what it is.
	one, si := farmdata.Value{Column: c, Raw: 1}.In(farmdata.SI)
	if factor, shift, ok := convert(si, wanted); ok && si != c.Unit {
		return Key{Unit: to, scale: one * factor, shift: shift}.divided(), true
	}
	return k, false
}

func convert(from string, to farmdata.Unit) (factor, shift float64, ok bool) {
	unit, ok := farmdata.ParseUnit(from)
	if !ok {
		return 0, 0, false
	}
	return unit.To(to)
}
