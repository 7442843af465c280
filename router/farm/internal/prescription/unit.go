package prescription

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

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
	to, known := farmdata.ParseUnit(m.Unit)
	from, ok := farmdata.ParseUnit(unit)
	factor, shift, same := from.To(to)
	switch {
	case !known:
		return 0, fmt.Errorf("the unit of %s can only be %s or %s", ddi, strings.TrimSpace(m.Unit+" "), Raw)
	case !ok:
		return 0, fmt.Errorf("the unit %q is not known", unit)
	case !same || shift != 0:
		return 0, fmt.Errorf("the unit %q is of another kind than %s, the unit of %s", unit, m.Unit, ddi)
	}
	return significant(factor / m.Scale), nil
}

// significant is a number without what division adds to it: 0.01, not 0.010000000000000002.
func significant(f float64) float64 {
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'g', 12, 64), 64) // which it can read
	return f
}
