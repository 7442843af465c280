package efdi

import (
	"math"
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
	tag := f.varint()
	f.number, f.wire = protowire.DecodeTag(tag)
	if !f.number.IsValid() {
		f.bad = true
	}
	switch f.wire {
	case protowire.VarintType:
		f.value = f.varint()
	case protowire.Fixed64Type:
		if v, n := protowire.ConsumeFixed64(f.rest); n < 0 {
			f.bad = true
		} else {
			f.value, f.rest = v, f.rest[n:]
		}
	case protowire.BytesType:
		if n := f.varint(); n > uint64(len(f.rest)) {
			f.bad = true
		} else {
			f.body, f.rest = f.rest[:n], f.rest[n:]
		}
	default:
		if n := protowire.ConsumeFieldValue(f.number, f.wire, f.rest); n < 0 {
			f.bad = true
		} else {
			f.rest = f.rest[n:]
		}
	}
	return !f.bad
}

// varint consumes a number. Most have one or two bytes.
func (f *fields) varint() uint64 {
	b := f.rest
	if len(b) > 0 && b[0] < 0x80 {
		f.rest = b[1:]
		return uint64(b[0])
	}
	if len(b) > 1 && b[1] < 0x80 {
		f.rest = b[2:]
		return uint64(b[0]&0x7F) | uint64(b[1])<<7
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		f.bad = true
		return 0
	}
	f.rest = b[n:]
	return v
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
// to 9999, as the definition of the type says.
func (t timestamp) instant() time.Time {
	const first, last = -62135596800, 253402300799
	if !t.there || t.seconds < first || t.seconds > last || t.nanos < 0 || t.nanos >= 1e9 {
		return time.Time{}
	}
	return time.Unix(t.seconds, int64(t.nanos)).UTC()
}

// decodePosition decodes a Position or a GPSEntry.
func decodePosition(b []byte, p *farmdata.Position, gps *timestamp) bool {
	f := fields{rest: b}
	for f.next() {
		switch f.wire {
		case protowire.Fixed64Type:
			switch v := math.Float64frombits(f.value); f.number {
			case 1:
				p.North = v
			case 2:
				p.East = v
			case 5:
				p.PDOP = v
			case 6:
				p.HDOP = v
			}
		case protowire.VarintType:
			switch f.number {
			case 3:
				p.Up = protowire.DecodeZigZag(f.value)
			case 4:
				p.Status = uint8(f.value)
			case 7:
				p.Satellites = int(uint32(f.value))
			case 9:
				p.FieldStatus = uint8(f.value)
			}
		case protowire.BytesType:
			if f.number == 8 && !gps.decode(f.body) {
				return false
			}
		}
	}
	return !f.bad
}

// has sets which parts a position has. In protobuf, zero and absent are the same. A
// latitude, a longitude and a status are there with every position.
func has(p *farmdata.Position) {
	p.Has = farmdata.HasNorth | farmdata.HasEast | farmdata.HasStatus
	if p.Up != 0 {
		p.Has |= farmdata.HasUp
	}
	if p.PDOP != 0 {
		p.Has |= farmdata.HasPDOP
	}
	if p.HDOP != 0 {
		p.Has |= farmdata.HasHDOP
	}
	if p.Satellites != 0 {
		p.Has |= farmdata.HasSatellites
	}
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
	// previous are the columns of the last record in their order: usually those of
	// the next one, too.
	previous []column
}

func newDecoder(descriptions *farmdata.Descriptions, maxColumns int) *decoder {
	return &decoder{descriptions: descriptions, columns: map[columnKey]*farmdata.Column{}, max: maxColumns}
}

// decode decodes an entry. A record that is not whole is not to be used.
func (d *decoder) decode(body []byte, record *farmdata.Record) (finding *farmdata.Finding, whole bool) {
	*record = farmdata.Record{Values: record.Values[:0]}
	var start, gps timestamp
	var positioned bool
	f := fields{rest: body}
	for {
		f.rest = d.decodePlain(f.rest, record)
		if !f.next() {
			break
		}
		ok := true
		if f.wire == protowire.BytesType {
			switch f.number {
			case 1:
				ok = start.decode(f.body)
			case 2: // nothing is known about the end of a moment, but it has to be well formed
				ok = new(timestamp).decode(f.body)
			case 5:
				positioned = true
				ok = decodePosition(f.body, &record.Position, &gps)
			case 6:
				ok = decodePosition(f.body, new(farmdata.Position), new(timestamp))
			case 7:
				var problem *farmdata.Finding
				if ok, problem = d.decodeValue(f.body, record); problem != nil {
					finding = problem
				}
			}
		}
		if !ok {
			f.bad = true
		}
	}
	if f.bad {
		return damaged(farmdata.KindSyntax, -1, "entry is malformed", nil), false
	}
	record.Stamp = farmdata.Stamp{Wall: start.instant(), UTC: gps.instant()}
	if positioned {
		record.Position.FieldStatus = 0 // is no field of this position
		has(&record.Position)
		if finding == nil && record.Position.OffEarth() {
			finding = damaged(farmdata.KindPosition, -1, "position is not on Earth", nil)
		}
	}
	return finding, true
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
func varint(b []byte, at int) (uint64, int) {
	if at < len(b) && b[at] < 0x80 {
		return uint64(b[at]), at + 1
	}
	return longVarint(b, at)
}

func longVarint(b []byte, at int) (uint64, int) {
	v, n := protowire.ConsumeVarint(b[min(at, len(b)):])
	if n < 0 {
		return 0, len(b) + 1
	}
	return v, at + n
}

// decodeValue appends a value to the record. It returns false for what is malformed
// and a finding for what cannot be taken.
func (d *decoder) decodeValue(b []byte, record *farmdata.Record) (bool, *farmdata.Finding) {
	var key columnKey
	var raw int64
	var uri []byte
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
		case f.number == 1:
			key.ddi = uint32(f.value)
		case f.number == 2:
			raw = protowire.DecodeZigZag(f.value)
		case f.number == 4:
			key.pgn = uint32(f.value)
		case f.number == 5:
			key.start = uint8(f.value)
		case f.number == 6:
			key.stop = uint8(f.value)
		}
	}
	if f.bad {
		return false, nil
	}
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
		d.previous[n] = column{key, key.plain(), found}
	}
	record.Values = append(record.Values, farmdata.Value{Column: d.previous[n].column, Raw: raw})
	return true, nil
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
	d.descriptions.Describe(column)
	d.columns[key] = column
	return column, nil
}

// decodeEntry decodes an entry of a list of positions.
func decodeEntry(body []byte, record *farmdata.Record) (*farmdata.Finding, bool) {
	*record = farmdata.Record{}
	var gps timestamp
	if !decodePosition(body, &record.Position, &gps) {
		return damaged(farmdata.KindSyntax, -1, "entry is malformed", nil), false
	}
	has(&record.Position)
	record.Position.Has |= farmdata.HasFieldStatus
	record.Stamp.UTC = gps.instant()
	if record.Position.OffEarth() {
		return damaged(farmdata.KindPosition, -1, "position is not on Earth", nil), true
	}
	return nil, true
}
