package isoxml

import (
	"math"
	"strconv"

	"github.com/agrimill/agrimill/farmdata"
)

// needs reports each attribute that is absent or empty although the object says nothing without it.
func (e *element) needs(names ...string) {
	for _, name := range names {
		if e.str(name) == "" {
			e.wrong(name, "missing")
		}
	}
}

// whole reads a whole number from low to high. ok is false if the number is absent or cannot be read; the
// latter is reported.
func (e *element) whole(name string, low, high int64) (n int64, ok bool) {
	value := e.str(name)
	if value == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		// Some programs write whole numbers with decimals.
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
			e.wrong(name, "no whole number")
			return 0, false
		}
		n = int64(f)
	}
	if n < low || n > high {
		e.wrong(name, "out of range")
		return 0, false
	}
	return n, true
}

// int reads a number that has no reason to be large. It returns 0 for one that is absent or cannot be read, as uint8 does.
func (e *element) int(name string) int {
	n, _ := e.whole(name, math.MinInt32, math.MaxUint32)
	return int(n)
}

func (e *element) uint8(name string) uint8 {
	n, _ := e.whole(name, 0, math.MaxUint8)
	return uint8(n)
}

// float reads a number. ok is false if it is absent or cannot be read; the latter is reported.
func (e *element) float(name string) (f float64, ok bool) {
	value := e.str(name)
	if value == "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		e.wrong(name, "no number")
		return 0, false
	}
	return f, true
}

// ddi reads a DDI; absent stands for one that is absent or cannot be read.
func (e *element) ddi(name string, absent farmdata.DDI) farmdata.DDI {
	value := e.str(name)
	if value == "" {
		return absent
	}
	ddi, err := farmdata.ParseDDI(value)
	if err != nil {
		e.wrong(name, err.Error())
		return absent
	}
	return ddi
}
