package efdi

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agrimill/agrimill/farmdata"
)

// Entries of logs are decoded by hand, which is several times as fast as through the
// generated messages. A fuzz test checks that both see the same.

// fields goes through the fields of a message in memory.
type fields struct {
	rest   []byte
	number protowire.Number
	wire   protowire.Type
	value  uint64 // of a varint or a double
	body   []byte // of bytes
	bad    bool   // the message is malformed
}

func (f *fields) next() bool {
	if len(f.rest) == 0 || f.bad {
		return false
	}
	var size, n int
	if f.number, f.wire, n = protowire.ConsumeTag(f.rest); n < 0 || !f.number.IsValid() {
		f.bad = true
		return false
	}
	switch f.rest = f.rest[n:]; f.wire {
	case protowire.VarintType:
		f.value, size = protowire.ConsumeVarint(f.rest)
	case protowire.Fixed64Type:
		f.value, size = protowire.ConsumeFixed64(f.rest)
	case protowire.BytesType:
		f.body, size = protowire.ConsumeBytes(f.rest)
	default:
		size = protowire.ConsumeFieldValue(f.number, f.wire, f.rest)
	}
	if f.bad = size < 0; !f.bad {
		f.rest = f.rest[size:]
	}
	return !f.bad
}

// timestamp is a google.protobuf.Timestamp.
type timestamp struct {
	there   bool
	seconds int64
	nanos   int32
}

func (t *timestamp) decode(b []byte) bool {
	t.there = true
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.number == 1 && f.wire == protowire.VarintType:
			t.seconds = int64(f.value)
		case f.number == 2 && f.wire == protowire.VarintType:
			t.nanos = int32(f.value)
		}
	}
	return !f.bad
}

// instant returns the zero time for what is absent or out of range: beyond the years 1
// to 9999, as the definition of the type says. A timestamp without fields is what encoders write that know no time.
func (t timestamp) instant() time.Time {
	if !t.there || t.seconds == 0 && t.nanos == 0 || t.outOfRange() {
		return time.Time{}
	}
	return time.Unix(t.seconds, int64(t.nanos)).UTC()
}

func (t timestamp) outOfRange() bool {
	const first, last = -62135596800, 253402300799
	return t.seconds < first || t.seconds > last || t.nanos < 0 || t.nanos >= 1e9
}

// stamp is that of a moment with the time of a machine and of its receiver. UTC of the receiver that is farther from the
// time of the machine than any time zone explains is left out: one of them is wrong. It is the machine's that is left out if
// only that cannot be right.
func stamp(start, gps timestamp) (s farmdata.Stamp, finding *farmdata.Finding) {
	const farthest = 15 * time.Hour
	s = farmdata.Stamp{Wall: start.instant(), UTC: gps.instant()}
	if start.outOfRange() || gps.outOfRange() {
		finding = damaged(farmdata.KindTime, -1, "time out of range; it counts as unknown, here and in later entries", nil)
	}
	if !s.Wall.IsZero() && !s.UTC.IsZero() && s.Wall.Sub(s.UTC).Abs() > farthest {
		used := "machine's"
		if !isPlausible(s.Wall) && isPlausible(s.UTC) {
			s.Wall, used = time.Time{}, "receiver's"
		} else {
			s.UTC = time.Time{}
		}
		finding = damaged(farmdata.KindTime, -1, "times of the machine and of its GPS receiver are more than 15 hours apart; the "+used+" is used, here and in later entries", nil)
	}
	if t, _ := s.Time(); finding == nil && !t.IsZero() && !isPlausible(t) {
		finding = damaged(farmdata.KindTime, -1, "date cannot be right, because it is of 1980 or before, or after 2100, here and maybe in later entries", nil)
	}
	return s, finding
}

// isPlausible reports whether a clock that is set may show a time, as it does for TaskData.
func isPlausible(t time.Time) bool { return t.Year() > 1980 && t.Year() <= 2100 }

// undescribed is the finding for a field that this library does not know, or of another type than it knows.
func undescribed() *farmdata.Finding {
	return damaged(farmdata.KindUnsupported, -1, "field that is not described, here and maybe in later entries", nil)
}

// statusUnknown is the status of a position that does not say.
const statusUnknown = 15

// decodePosition decodes a Position or a GPSEntry. It returns false for what is malformed, and a finding for what
// cannot be taken.
func decodePosition(b []byte, p *farmdata.Position, gps *timestamp) (finding *farmdata.Finding, ok bool) {
	const double, integer = protowire.Number(protowire.Fixed64Type), protowire.Number(protowire.VarintType)
	status := uint32(p.Status)
	f := fields{rest: b}
	for f.next() {
		v := math.Float64frombits(f.value)
		switch f.number<<3 | protowire.Number(f.wire) {
		case 1<<3 | double:
			p.North = v
		case 2<<3 | double:
			p.East = v
		case 3<<3 | integer:
			p.Up = protowire.DecodeZigZag(f.value)
		case 4<<3 | integer:
			status = uint32(f.value)
		case 5<<3 | double:
			p.PDOP = v
		case 6<<3 | double:
			p.HDOP = v
		case 7<<3 | integer:
			p.Satellites = int(uint32(f.value))
		case 8<<3 | protowire.Number(protowire.BytesType):
			if !gps.decode(f.body) {
				return nil, false
			}
		case 9<<3 | integer:
			p.FieldStatus = uint8(min(f.value, math.MaxUint8))
		default:
			if finding == nil && (f.number != extension || f.wire == protowire.Fixed64Type || f.wire == protowire.VarintType) {
				finding = undescribed()
			}
		}
	}
	if p.Status = uint8(status); status > math.MaxUint8 {
		p.Status, finding = statusUnknown, damaged(farmdata.KindValue, -1, "status of a position is out of range", nil)
	}
	return finding, !f.bad
}

// has sets which parts a position has, and returns a finding for a place that is none. In protobuf, zero and absent are
// the same, so a latitude without a longitude is half a place; with neither, the place is 0, 0, which is not valid. A
// status is there with every position.
func has(p *farmdata.Position) *farmdata.Finding {
	p.Has = farmdata.HasStatus
	half := (p.North == 0) != (p.East == 0)
	for _, part := range []struct {
		has   bool
		field farmdata.PositionField
	}{
		{p.North != 0 || !half, farmdata.HasNorth}, {p.East != 0 || !half, farmdata.HasEast}, {p.Up != 0, farmdata.HasUp},
		{p.PDOP > 0 && p.PDOP <= math.MaxFloat64, farmdata.HasPDOP}, {p.HDOP > 0 && p.HDOP <= math.MaxFloat64, farmdata.HasHDOP},
		{p.Satellites != 0, farmdata.HasSatellites},
	} {
		if part.has {
			p.Has |= part.field
		}
	}
	switch {
	case half:
		return damaged(farmdata.KindPosition, -1, "half a place: a latitude without a longitude, or a longitude without a latitude", nil)
	case p.OffEarth():
		return damaged(farmdata.KindPosition, -1, "position is not on Earth", nil)
	}
	return nil
}

// columnKey is what tells columns of a log apart.
type columnKey struct {
	ddi         uint32
	element     int64
	uri         string // if element is 0
	pgn         uint32
	start, stop uint8
}

// id is the ID of the device element as it stands in TaskData.
func (k columnKey) id() string {
	if k.element == 0 {
		return k.uri
	}
	return "DET" + strconv.FormatInt(k.element, 10)
}

// plain reports whether DDI and number of the device element are all there is.
func (k columnKey) plain() bool { return k == columnKey{ddi: k.ddi, element: k.element} }

// column is what describes the values of a key.
type column struct {
	key    columnKey
	plain  bool // that key is
	column *farmdata.Column
}

// decoder decodes the entries of one log, each into the same memory.
type decoder struct {
	descriptions *farmdata.Descriptions
	columns      map[columnKey]*farmdata.Column
	max          int
	nameless     bool // there was a device element that no device has
	// previous are the columns of the last record in their order: usually those of
	// the next one, too.
	previous []column
	// distinct is how many of them, from the first one on, are known to differ.
	distinct int
	// marks has the number of the entry that again last saw a column in, entry that of the last one.
	marks map[*farmdata.Column]int
	entry int
}

func newDecoder(descriptions *farmdata.Descriptions, maxColumns int) *decoder {
	return &decoder{descriptions: descriptions, columns: map[columnKey]*farmdata.Column{}, max: maxColumns, marks: map[*farmdata.Column]int{}}
}

// decode decodes an entry. A record that is not whole is not to be used.
func (d *decoder) decode(body []byte, record *farmdata.Record) (finding *farmdata.Finding, whole bool) {
	*record = farmdata.Record{Values: record.Values[:0]}
	var start, gps timestamp
	var positioned bool
	note := func(found *farmdata.Finding) {
		if finding == nil {
			finding = found
		}
	}
	f := fields{rest: body}
	for {
		f.rest = d.decodePlain(f.rest, record)
		if !f.next() {
			break
		}
		ok := true
		var found *farmdata.Finding
		switch {
		case f.wire == protowire.VarintType && (f.number == 3 || f.number == 4): // duration and type of a moment
		case f.wire != protowire.BytesType:
			found = undescribed()
		case f.number == 1:
			ok = start.decode(f.body)
		case f.number == 2: // nothing is known about the end of a moment, but it has to be well formed
			ok = new(timestamp).decode(f.body)
		case f.number == 5:
			positioned = true
			found, ok = decodePosition(f.body, &record.Position, &gps)
		case f.number == 6:
			_, ok = decodePosition(f.body, new(farmdata.Position), new(timestamp))
		case f.number == 7:
			ok, found = d.decodeValue(f.body, record)
		case f.number != extension:
			found = undescribed()
		}
		note(found)
		if !ok {
			f.bad = true
		}
	}
	if f.bad {
		return damaged(farmdata.KindSyntax, -1, "entry is malformed", nil), false
	}
	var found *farmdata.Finding
	if positioned {
		record.Position.FieldStatus = 0 // is no field of this position
		note(has(&record.Position))
	}
	record.Stamp, found = stamp(start, gps)
	note(found)
	note(d.again(record.Values))
	return finding, true
}

// again finds a value that an entry has twice. It looks at all of them only if columns are not those of the entry before.
func (d *decoder) again(values []farmdata.Value) *farmdata.Finding {
	if d.distinct >= len(values) {
		return nil
	}
	twice := slices.ContainsFunc(values[:d.distinct], func(v farmdata.Value) bool { return v.Column == values[d.distinct].Column })
	if !twice {
		d.entry, d.distinct = d.entry+1, len(values)
		for i, v := range values {
			if twice = d.marks[v.Column] == d.entry; twice {
				d.distinct = i
				break
			}
			d.marks[v.Column] = d.entry
		}
	}
	if !twice {
		return nil
	}
	return damaged(farmdata.KindDuplicate, -1, "value that the entry has already; the first one counts on maps, here and maybe in later entries", nil)
}

// Tags of the fields of an entry and of a value that decodePlain knows.
const (
	tagValue     = 7<<3 | byte(protowire.BytesType)
	tagDDI       = 1<<3 | byte(protowire.VarintType)
	tagRaw       = 2<<3 | byte(protowire.VarintType)
	tagElement   = 3<<3 | byte(protowire.BytesType)
	tagElementID = 1<<3 | byte(protowire.VarintType)
)

// decodePlain appends the values that b begins with to the record and returns what follows: values as encoders write
// them, of the same columns as in the last record. That is nearly all of a log, and decodeValue, which decodes
// the others, takes three times as long.
func (d *decoder) decodePlain(b []byte, record *farmdata.Record) []byte {
	values := record.Values
	for len(b) >= 2 && b[0] == tagValue && len(values) < len(d.previous) {
		end := 2 + int(b[1])
		if b[1] >= 0x80 || end > len(b) {
			break
		}
		key := &d.previous[len(values)]
		raw, ok := key.decode(b[2:end])
		if !ok {
			break
		}
		values = append(values, farmdata.Value{Column: key.column, Raw: raw})
		b = b[end:]
	}
	record.Values = values
	return b
}

// decode returns the value that is in all of b, if it is one of the column: DDI, value, and number of the device element, in
// this order, each once or not at all.
func (c *column) decode(b []byte) (raw int64, ok bool) {
	var ddi, value, element uint64
	at := 0
	if at < len(b) && b[at] == tagDDI {
		ddi, at = varint(b, at+1)
	}
	if at < len(b) && b[at] == tagRaw {
		value, at = varint(b, at+1)
	}
	if at+2 < len(b) && b[at] == tagElement && int(b[at+1]) == len(b)-at-2 && b[at+2] == tagElementID {
		element, at = varint(b, at+3)
	}
	return protowire.DecodeZigZag(value), at == len(b) && c.plain && uint32(ddi) == c.key.ddi && protowire.DecodeZigZag(element) == c.key.element
}

// varint returns the number at a place in b and the place behind it, which is beyond b if there is none.
func varint(b []byte, at int) (n uint64, end int) {
	for shift := 0; at < len(b) && shift < 64; shift += 7 {
		c := b[at]
		if n, at = n|uint64(c&0x7F)<<shift, at+1; c < 0x80 && (shift < 63 || c <= 1) {
			return n, at
		}
	}
	return 0, len(b) + 1
}

// decodeValue appends a value to the record. It returns false for what is malformed
// and a finding for what cannot be taken.
func (d *decoder) decodeValue(b []byte, record *farmdata.Record) (bool, *farmdata.Finding) {
	var key columnKey
	var raw int64
	var uri []byte
	var unknown *farmdata.Finding
	var pgn uint64
	var start, stop uint32
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.number == 3 && f.wire == protowire.BytesType:
			for id := (fields{rest: f.body}); ; {
				if !id.next() {
					if id.bad {
						return false, nil
					}
					break
				}
				switch {
				case id.number == 1 && id.wire == protowire.VarintType:
					key.element = protowire.DecodeZigZag(id.value)
				case id.number == 2 && id.wire == protowire.BytesType:
					if !utf8.Valid(id.body) {
						return false, nil
					}
					if uri == nil {
						uri = id.body
					}
				}
			}
		case f.wire != protowire.VarintType:
			unknown = undescribed()
		case f.number == 1:
			key.ddi = uint32(f.value)
		case f.number == 2:
			raw = protowire.DecodeZigZag(f.value)
		case f.number == 4:
			pgn = f.value
		case f.number == 5:
			start = uint32(f.value)
		case f.number == 6:
			stop = uint32(f.value)
		default:
			unknown = undescribed()
		}
	}
	if f.bad {
		return false, nil
	}
	if pgn > math.MaxUint32 || start > math.MaxUint8 || stop > math.MaxUint8 {
		return true, damaged(farmdata.KindValue, -1, "PGN or bits of a CAN message are out of range", nil)
	}
	key.pgn, key.start, key.stop = uint32(pgn), uint8(start), uint8(stop)
	if key.element == 0 && len(uri) > 0 {
		key.uri = string(uri)
	}
	n := len(record.Values)
	if n >= len(d.previous) || d.previous[n].key != key {
		found, finding := d.column(key)
		if finding != nil {
			return true, finding
		}
		if n >= len(d.previous) {
			d.previous = append(d.previous, column{})
		}
		d.previous[n], d.distinct = column{key, key.plain(), found}, min(d.distinct, n)
	}
	record.Values = append(record.Values, farmdata.Value{Column: d.previous[n].column, Raw: raw})
	return true, unknown
}

// column returns what describes the values of a key.
func (d *decoder) column(key columnKey) (*farmdata.Column, *farmdata.Finding) {
	if column := d.columns[key]; column != nil {
		return column, nil
	}
	if key.ddi > math.MaxUint16 {
		return nil, damaged(farmdata.KindValue, -1, "DDI of more than 16 bits", nil)
	}
	if len(d.columns) >= d.max {
		return nil, damaged(farmdata.KindLimit, -1, "more kinds of values than allowed", nil)
	}
	column := &farmdata.Column{DDI: farmdata.DDI(key.ddi), ElementID: key.id(), PGN: key.pgn, StartBit: key.start, StopBit: key.stop}
	if !d.descriptions.Describe(column) && column.ElementID != "" {
		d.nameless = true
	}
	d.columns[key] = column
	return column, nil
}

// decodeEntry decodes an entry of a list of positions.
func decodeEntry(body []byte, record *farmdata.Record) (*farmdata.Finding, bool) {
	*record = farmdata.Record{}
	var gps timestamp
	finding, ok := decodePosition(body, &record.Position, &gps)
	if !ok {
		return damaged(farmdata.KindSyntax, -1, "entry is malformed", nil), false
	}
	misplaced := has(&record.Position)
	record.Position.Has |= farmdata.HasFieldStatus
	var mistimed *farmdata.Finding
	record.Stamp, mistimed = stamp(timestamp{}, gps)
	return cmp.Or(finding, misplaced, mistimed), true
}
