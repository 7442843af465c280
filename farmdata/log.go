package farmdata

import (
	"iter"
	"math"
	"slices"
	"time"
)

// Log is a time log: what its values mean, and its records as a stream.
type Log struct {
	// Name is the file name without its ending, e.g. "TLG00001".
	Name string
	// TaskID is the ID of the task that names the log; empty if none does.
	TaskID string
	// Size is the size of the log in bytes as its container tells it.
	Size int64
	// Columns are the values that records may have. A log of EFDI has them only
	// once its records are read, so there it is empty.
	Columns []Column
	// Constants are values that the header gives for every record; they are not in
	// the records, but in those of WithConstants.
	Constants []Value
	// Records reads the log from its beginning, every time it is ranged over. The
	// record is the same one each time, overwritten: Clone what is to be kept. An
	// error is a *Finding and comes instead of a record; the stream goes on after
	// it where it can, and ends by itself where it cannot. Loops over the same or
	// other logs of a Set may run at the same time if the source of the Set can be
	// read at the same time (as an *os.File can).
	Records iter.Seq2[*Record, error] `json:"-"`
}

// WithConstants reads the log as Records does, by the same rules, but each record has the Constants as well, before its own values:
// those of which it has no value itself, whatever earlier records have. Maps, records and totals are made of that.
func (l *Log) WithConstants() iter.Seq2[*Record, error] {
	if len(l.Constants) == 0 {
		return l.Records
	}
	return func(yield func(*Record, error) bool) {
		same := map[*Column]int{}                                                       // which constant is of the same kind as the values of a column; -1: none
		var last []*Column                                                              // by place in a record, of the columns that no constant is of the same kind as: usually the same every time
		carried, kinds := make([]bool, len(l.Constants)), make([]int, len(l.Constants)) // kinds: which is the first of the same kind
		for i, v := range l.Constants {
			kinds[i] = slices.IndexFunc(l.Constants, func(first Value) bool { return first.Column.sameKind(v.Column) })
		}
		var whole Record
		for record, err := range l.Records {
			if err != nil {
				if !yield(nil, err) {
					return
				}
				continue
			}
			clear(carried)
			for place, v := range record.Values {
				if place == len(last) {
					last = append(last, nil)
				}
				if v.Column == last[place] {
					continue
				}
				i, known := same[v.Column]
				if !known {
					i = slices.IndexFunc(l.Constants, func(constant Value) bool { return constant.Column.sameKind(v.Column) })
					same[v.Column] = i
				}
				if i >= 0 {
					carried[i] = true
				} else {
					last[place] = v.Column
				}
			}
			values := whole.Values[:0]
			for i, v := range l.Constants {
				if !carried[kinds[i]] {
					values = append(values, v)
				}
			}
			whole = *record
			whole.Values = append(values, record.Values...)
			if !yield(&whole, nil) {
				return
			}
		}
	}
}

// Column describes the values of one data dictionary identifier of one device
// element.
type Column struct {
	DDI DDI
	// Name is the designator that the device has for it, otherwise that of the
	// data dictionary, otherwise empty.
	Name string
	// ElementID is the ID of the device element, e.g. "DET-1"; Element its designator.
	ElementID string
	Element   string
	// DeviceID and Device are ID and designator of its device; empty if no device
	// has the element.
	DeviceID string
	Device   string
	// Unit is what scaled values are in. Of a DDI that is described nowhere it is empty.
	Unit string
	// Scale and Offset make raw values scaled ones: (raw + Offset) * Scale.
	Scale  float64
	Offset int64
	// Decimals is how many decimals of scaled values are worth showing; -1 if unknown.
	Decimals int
	// PGN, StartBit and StopBit say which bits of which CAN message the value is, for
	// DDI DFFE; zero otherwise.
	PGN               uint32
	StartBit, StopBit uint8
}

// CAN reports whether the values are bits of a CAN message: PGN and bits tell such columns apart, not the DDI.
func (c *Column) CAN() bool { return c.PGN != 0 || c.StartBit != 0 || c.StopBit != 0 }

// sameKind reports whether only the column itself tells the values of two columns apart.
func (c *Column) sameKind(other *Column) bool {
	return c.DDI == other.DDI && c.ElementID == other.ElementID && c.PGN == other.PGN && c.StartBit == other.StartBit && c.StopBit == other.StopBit
}

// Value is one measured value.
type Value struct {
	// Column describes the value. It is shared: do not change it.
	Column *Column
	// Raw is the value as it was recorded.
	Raw int64
}

// Scaled returns the value in the unit of its column: 4.685 for 4685 thousandths, which times 0.001 are 4.6850000000000005.
func (v Value) Scaled() float64 {
	n, parts := float64(v.Raw)+float64(v.Column.Offset), math.Round(1/v.Column.Scale)
	if 1/parts == v.Column.Scale {
		return n / parts
	}
	return n * v.Column.Scale
}

// Record is what was recorded at one moment.
type Record struct {
	// Number counts the records of the log from 0.
	Number   int64
	Stamp    Stamp
	Position Position
	// Values are in the order of the data. A column is there once or not at all,
	// except in damaged data.
	Values []Value
}

// Clone returns a copy that the stream does not overwrite.
func (r *Record) Clone() *Record {
	clone := *r
	clone.Values = slices.Clone(r.Values)
	return &clone
}

// Position is a place, as a GPS receiver tells it.
type Position struct {
	// North and East are degrees of WGS 84.
	North, East float64
	// Up is millimeters above the ellipsoid.
	Up int64
	// Status is how the position was made: 0 no GPS, 1 GNSS, 2 DGNSS, 3 precise, 4 RTK
	// fixed, 5 RTK float, 6 dead reckoning, 7 manual, 8 simulated, 14 error, 15 unknown.
	// Many terminals write 15 beside good positions.
	Status uint8
	// PDOP and HDOP are the dilutions of precision.
	PDOP, HDOP float64
	// Satellites is how many were used.
	Satellites int
	// FieldStatus of a list of positions: 0 unknown, 1 in a field, 2 on a road, 3 off road.
	FieldStatus uint8
	// Has says which of these the data has.
	Has PositionField
}

// PositionField is a set of parts of a Position.
type PositionField uint8

// Parts of a Position.
const (
	HasNorth PositionField = 1 << iota
	HasEast
	HasUp
	HasStatus
	HasPDOP
	HasHDOP
	HasSatellites
	HasFieldStatus
)

// Valid reports whether there is a position that can be on Earth. Exactly 0, 0 is
// what terminals write that have none.
func (p Position) Valid() bool {
	return p.Has&(HasNorth|HasEast) == HasNorth|HasEast && (p.North != 0 || p.East != 0) && p.onEarth()
}

// OffEarth reports whether there is a position that cannot be one.
func (p Position) OffEarth() bool {
	return p.Has&(HasNorth|HasEast) == HasNorth|HasEast && !p.onEarth()
}

func (p Position) onEarth() bool {
	return p.North >= -90 && p.North <= 90 && p.East >= -180 && p.East <= 180
}

// Epoch is the day that ISO 11783-10 counts days from.
var Epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
