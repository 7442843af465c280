// Package tracks tells where the parts of the way of a machine begin.
package tracks

import (
	"math"
	"time"

	"github.com/agrimill/agrimill/farmdata"
)

// gap is the time without a valid position that ends a part.
const gap = 5 * time.Minute

// Steps goes from place to place. Its zero value is before the first one.
type Steps struct {
	begun       bool
	last        time.Time
	north, east float64
}

// Next goes to a place, and reports whether a part begins there: at the first one, five minutes later than the one before, or
// more than jump degrees from it.
func (s *Steps) Next(at farmdata.Stamp, north, east, jump float64) (begins bool) {
	now := at.Wall // the same clock from record to record, whether a receiver knows UTC or not
	if now.IsZero() {
		now = at.UTC
	}
	begins = !s.begun || now.Sub(s.last) > gap || math.Abs(north-s.north) > jump || math.Abs(east-s.east) > jump
	*s = Steps{true, now, north, east}
	return begins
}
