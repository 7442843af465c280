package farmdata

import (
	_ "embed" // ddi.tsv
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// DDI is a data dictionary identifier of ISO 11783-11: what a value measures.
type DDI uint16

// DDIs with a meaning of their own.
const (
	// DDIDefaultData asks for the values that a device finds worth logging.
	DDIDefaultData DDI = 0xDFFF
	// DDIPGN stands for bits of a CAN message, see Column.PGN.
	DDIPGN DDI = 0xDFFE
	// DDIUnknown stands for a DDI that is missing or cannot be read. The data dictionary reserves it.
	DDIUnknown DDI = 0xFFFF
)

// ParseDDI reads up to four hexadecimal digits.
func ParseDDI(text string) (DDI, error) {
	n, err := strconv.ParseUint(text, 16, 16)
	if err != nil {
		return 0, errors.New("not a DDI of up to four hexadecimal digits")
	}
	return DDI(n), nil
}

// String returns four hexadecimal digits, as DDIs stand in TaskData.
func (d DDI) String() string { return fmt.Sprintf("%04X", uint16(d)) }

// Proprietary reports whether the DDI means what its manufacturer says.
func (d DDI) Proprietary() bool { return d >= 0xE000 && d <= 0xFFFE }

// Meaning is what the data dictionary says about a DDI.
type Meaning struct {
	// Name is in English.
	Name string
	// Unit is what raw values times Scale are in; empty for numbers without one.
	Unit string
	// Scale is the resolution.
	Scale float64
}

// Meaning returns what the data dictionary of ISO 11783-11 says; ok is false for a DDI that is not in it, which
// stays a number.
//
// The facts are those that VDMA publishes at https://www.isobus.net/isobus/dDEntity, as of October 28, 2025.
func (d DDI) Meaning() (m Meaning, ok bool) {
	m, ok = dictionary()[d]
	return m, ok
}

//go:embed ddi.tsv
var ddiTable string

// dictionary is only read.
var dictionary = sync.OnceValue(func() map[DDI]Meaning {
	table := make(map[DDI]Meaning, strings.Count(ddiTable, "\n"))
	for line := range strings.Lines(ddiTable) {
		if cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(cells) == 4 { // others are comments
			ddi, errDDI := ParseDDI(cells[0])
			scale, errScale := strconv.ParseFloat(cells[3], 64)
			if errDDI == nil && errScale == nil { // the test of the table holds it
				table[ddi] = Meaning{Name: cells[1], Unit: cells[2], Scale: scale}
			}
		}
	}
	return table
})
