package isoxml

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"path"
	"strings"
	"time"
	"unsafe"

	"github.com/agrimill/agrimill/farmdata"
)

// maxColumns is what the one byte of an index can tell apart.
const maxColumns = 256

// maxRecord is the most bytes that a record can have: time, position, and 255 values.
const maxRecord = 6 + 24 + 1 + 255*5

// positionLayout says where the parts of a position are in a record: those whose
// attributes are empty in the header. Others are constants, or absent.
type positionLayout struct {
	fixed farmdata.Position
	// Offsets in the record; 0 means that the part is not in it.
	north, east, up, status, pdop, hdop, satellites, milliseconds, days int
	length                                                              int // up to the number of values
}

// positionHeader reads a PTN element. Without one, e is nil.
func positionHeader(e *element) positionLayout {
	h := positionLayout{length: 6} // behind the time
	if e == nil {
		return h
	}
	part := func(name string, size int, has farmdata.PositionField, constant bool) (offset int) {
		value, there := e.lookup(name)
		recorded := there && value == ""
		if recorded || constant {
			h.fixed.Has |= has
		}
		if !recorded {
			return 0
		}
		h.length += size
		return h.length - size
	}
	p := &h.fixed
	north, hasNorth := e.float("A")
	p.North, h.north = north, part("A", 4, farmdata.HasNorth, hasNorth)
	east, hasEast := e.float("B")
	p.East, h.east = east, part("B", 4, farmdata.HasEast, hasEast)
	up, hasUp := e.whole("C", math.MinInt64, math.MaxInt64)
	p.Up, h.up = up, part("C", 4, farmdata.HasUp, hasUp)
	status, hasStatus := e.whole("D", 0, math.MaxUint8)
	p.Status, h.status = uint8(status), part("D", 1, farmdata.HasStatus, hasStatus)
	pdop, hasPDOP := e.float("E")
	p.PDOP, h.pdop = pdop, part("E", 2, farmdata.HasPDOP, hasPDOP)
	hdop, hasHDOP := e.float("F")
	p.HDOP, h.hdop = hdop, part("F", 2, farmdata.HasHDOP, hasHDOP)
	satellites, hasSatellites := e.whole("G", 0, math.MaxUint8)
	p.Satellites, h.satellites = int(satellites), part("G", 1, farmdata.HasSatellites, hasSatellites)
	h.milliseconds, h.days = part("H", 4, 0, false), part("I", 2, 0, false)
	for _, pair := range [][2]string{{"A", "B"}, {"B", "A"}, {"H", "I"}, {"I", "H"}} {
		_, has := e.lookup(pair[0])
		if _, other := e.lookup(pair[1]); has && !other {
			e.wrong(pair[1], "missing, although there is "+pair[0])
		}
	}
	return h
}

// header is the XML file of a log.
type header struct {
	position  positionLayout
	columns   []farmdata.Column
	constants map[int]int64 // by column
	values    int           // that the file has, with those that are not columns
	length    int64         // of the records in bytes, at least; 0: not known
}

// openLog reads the header of a log. A log that cannot be read is given without
// records.
func (r *setReader) openLog(name, taskID string) *farmdata.Log {
	log := &farmdata.Log{Name: name, TaskID: taskID, Records: func(func(*farmdata.Record, error) bool) {}}
	key := strings.ToLower(name)
	bin, hasBin := r.files[key+".bin"]
	xml, hasXML := r.files[key+".xml"]
	if !hasBin {
		r.find(farmdata.KindMissing, path.Join(r.set.Path, name+".BIN"), "records of the log")
	}
	if !hasXML {
		r.find(farmdata.KindMissing, path.Join(r.set.Path, name+".XML"), "header of the log")
		return log
	}
	h, ok := r.readHeader(xml)
	if !ok {
		return log
	}
	log.Columns = h.columns
	for i := range log.Columns {
		if r.ctx.Err() != nil {
			return log
		}
		r.describe(xml.path, &log.Columns[i])
		if raw, ok := h.constants[i]; ok {
			log.Constants = append(log.Constants, farmdata.Value{Column: &log.Columns[i], Raw: raw})
		}
	}
	h.constants = nil // records outlive it
	if hasBin {
		log.Size, h.length = bin.size, r.lengths[key]
		log.Records = records(bin, h, r.cfg.MaxStream, r.cfg.MaxFindings)
	}
	return log
}

// readHeader reads the XML file of a log; false if it is not one.
func (r *setReader) readHeader(f file) (header, bool) {
	h := header{position: positionHeader(nil), constants: map[int]int64{}}
	var root, isHeader, positioned bool
	begin := func(parent any, e *element) any {
		switch {
		case !root:
			root = true
			if e.tag == "TIM" {
				isHeader = true
				e.noTime("A")
				e.lookup("D")
				r.unasked(e, true)
				return &h
			}
		case !isHeader: // which is said
		case parent == nil && (e.tag == "PTN" || e.tag == "DLV"):
			r.skipped.misplaced(e.spot)
		case e.tag == "PTN" && positioned:
			e.find(farmdata.KindDuplicate, "position that the header has already; the first one counts")
		case e.tag == "PTN":
			h.position, positioned = positionHeader(e), true
			e.noTime("H", "I")
			r.unasked(e, true)
		case e.tag == "DLV":
			r.addColumn(&h, e)
		default:
			r.skipped.unread(e.spot)
		}
		return nil
	}
	r.walk(f, r.findings.add, begin, func(any, any, spot) {})
	if !isHeader {
		r.find(farmdata.KindUnreadable, f.path, "not the header of a log")
	}
	if surplus := h.values - maxColumns; surplus > 0 {
		r.find(farmdata.KindSurplus, f.path, fmt.Sprintf("more values than an index can tell apart: %d", surplus))
	}
	return h, isHeader
}

// noTime finds what the header of a log has for all of its records.
func (e *element) noTime(names ...string) {
	for _, name := range names {
		if e.str(name) != "" {
			e.wrong(name, "one time for all records, which is not read")
		}
	}
}

// addColumn adds a value of the header, if an index can tell it apart.
func (r *setReader) addColumn(h *header, e *element) {
	if h.values++; h.values > maxColumns {
		return
	}
	if raw, ok := e.whole("B", math.MinInt64, math.MaxInt64); ok {
		h.constants[len(h.columns)] = raw
	}
	e.needs("A")
	pgn, _ := e.whole("D", 0, math.MaxUint32)
	r.budget.memory -= int64(unsafe.Sizeof(farmdata.Column{}))
	c := farmdata.Column{DDI: e.ddi("A", farmdata.DDIUnknown), ElementID: e.str("C"), PGN: uint32(pgn), StartBit: e.uint8("E"), StopBit: e.uint8("F")}
	if c.DDI == farmdata.DDIPGN {
		e.needs("D", "E", "F")
	}
	r.unasked(e, true)
	h.columns = append(h.columns, c)
}

// describe completes a column with what its device says about it, otherwise with
// what the data dictionary says.
func (r *setReader) describe(file string, c *farmdata.Column) {
	if !r.descriptions.Describe(c) && c.ElementID != "" {
		r.find(farmdata.KindReference, file, "no device has the device element of a value")
	}
}

// records decodes the binary file of a log.
func records(f file, h header, limit int64, maxFindings int) iter.Seq2[*farmdata.Record, error] {
	return func(yield func(*farmdata.Record, error) bool) {
		s, finding := openStream(f, limit)
		if finding != nil {
			yield(nil, finding)
			return
		}
		defer s.close()
		d := newDecoder(h)
		told := 0
		for number := int64(0); ; number++ {
			s.fill(maxRecord)
			length, finding := d.decode(s.next)
			if length == 0 { // not a whole record
				if finding == nil {
					finding = s.ended(number)
					if finding == nil && s.offset < h.length {
						finding = &farmdata.Finding{Kind: farmdata.KindCut, File: f.path, Offset: s.offset, Record: number,
							Detail: "the file is shorter than its task says"}
					}
				} else {
					finding.File, finding.Offset, finding.Record = f.path, s.offset+finding.Offset, number
				}
				if finding != nil {
					yield(nil, finding)
				}
				return
			}
			if finding != nil && told <= maxFindings {
				finding.File, finding.Offset, finding.Record = f.path, s.offset+finding.Offset, number
				if told++; told > maxFindings {
					finding = &farmdata.Finding{Kind: farmdata.KindLimit, File: f.path, Offset: -1, Record: number, Detail: "more findings than the limit allows"}
				}
				if !yield(nil, finding) {
					return
				}
			}
			s.skip(length)
			d.record.Number = number
			if !yield(&d.record, nil) {
				return
			}
		}
	}
}

// decoder decodes records, each into the same memory.
type decoder struct {
	position positionLayout
	columns  [maxColumns]*farmdata.Column // nil: not in the header
	values   [maxColumns]farmdata.Value
	record   farmdata.Record
	// Whether a finding about the date of the machine, or of the receiver, or about a value that is there twice was given: usually all
	// records have it.
	toldWall, toldUTC, toldTwice bool
}

func newDecoder(h header) *decoder {
	d := &decoder{position: h.position}
	for i := range h.columns {
		d.columns[i] = &h.columns[i]
	}
	d.record.Position, d.record.Stamp.Local = h.position.fixed, true
	return d
}

const (
	millisecondsOfDay = 24 * 60 * 60 * 1000
	epoch             = 315532800000 // farmdata.Epoch in milliseconds
	// farthest is how far UTC may be from a local time. Time zones are within 14 h.
	farthest = 15 * time.Hour
	degree   = 1e7
	// firstDay and lastDay of what isPlausible are 1981-01-01 and 2100-12-31.
	firstDay, lastDay = 366, 44194
)

// decode decodes the record that data begins with. length is 0 if that is not all
// of it, or cannot be told apart; the latter with a finding. The offset of a
// finding is that in the record.
func (d *decoder) decode(data []byte) (length int, finding *farmdata.Finding) {
	head := d.position.length
	if len(data) <= head {
		return 0, nil
	}
	count := int(data[head])
	rest := data[head+1:]
	whole := len(rest) >= 5*count
	if !whole {
		count = len(rest) / 5
	}
	values, last := d.values[:count], -1
	sorted := true // so none is there twice
	for i := range values {
		value := (*[5]byte)(rest)
		rest = rest[5:]
		column := d.columns[value[0]]
		if column == nil {
			return 0, &farmdata.Finding{Kind: farmdata.KindOutOfStep, Offset: int64(head + 1 + 5*i), Detail: "value that the header does not describe"}
		}
		sorted, last = sorted && int(value[0]) > last, int(value[0])
		values[i] = farmdata.Value{Column: column, Raw: int64(int32(binary.LittleEndian.Uint32(value[1:])))}
	}
	if !whole {
		return 0, nil
	}
	d.record.Values = values[:count:count]

	milliseconds, days := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint16(data[4:])
	odd := days < firstDay || days > lastDay
	if milliseconds < millisecondsOfDay && !odd { // nearly always
		d.record.Stamp.Wall = time.UnixMilli(millisecond(days, milliseconds)).UTC()
	} else {
		finding = d.decodeOddTime(milliseconds, days)
	}
	if d.position.milliseconds != 0 && d.position.days != 0 {
		finding = d.decodeReceiver(data, finding)
	}
	if odd && finding == nil && !d.toldWall && !d.toldUTC && !isPlausible(d.record.Stamp.Wall) {
		d.toldWall = true
		finding = &farmdata.Finding{Kind: farmdata.KindTime, Offset: 4, Detail: "date of the machine's clock cannot be right, because it is of 1980 or after 2100, here and maybe in later records"}
	}
	if !sorted && finding == nil && !d.toldTwice {
		finding = d.decodeTwice(data, count)
	}
	d.decodePosition(data)
	if finding == nil && d.record.Position.OffEarth() {
		finding = &farmdata.Finding{Kind: farmdata.KindPosition, Offset: int64(max(d.position.north, d.position.east, 0)), Detail: "position is not on Earth"}
	}
	return head + 1 + 5*count, finding
}

// decodeTwice finds a value that a record has twice.
func (d *decoder) decodeTwice(data []byte, count int) *farmdata.Finding {
	var seen [maxColumns]bool
	for i := range count {
		at := d.position.length + 1 + 5*i
		if seen[data[at]] {
			d.toldTwice = true
			return &farmdata.Finding{Kind: farmdata.KindDuplicate, Offset: int64(at),
				Detail: "value that the record has already; the first one counts on maps, here and maybe in later records"}
		}
		seen[data[at]] = true
	}
	return nil
}

// decodeOddTime decodes a time of the machine that is beyond the end of its day, or has no date.
func (d *decoder) decodeOddTime(milliseconds uint32, days uint16) (finding *farmdata.Finding) {
	if milliseconds >= millisecondsOfDay {
		finding = &farmdata.Finding{Kind: farmdata.KindTime, Detail: "time of day beyond the end of the day"}
	}
	if isDate(days) && milliseconds != math.MaxUint32 {
		d.record.Stamp.Wall = time.UnixMilli(millisecond(days, milliseconds)).UTC()
	} else if d.record.Stamp.Wall = (time.Time{}); finding == nil && !d.toldWall {
		d.toldWall = true
		finding = &farmdata.Finding{Kind: farmdata.KindTime, Offset: 4, Detail: "date of the machine's clock is not set, here and maybe in later records"}
	}
	return finding
}

// decodeReceiver decodes the time of the GPS receiver. It returns the finding of the record so far, or its own.
func (d *decoder) decodeReceiver(data []byte, finding *farmdata.Finding) *farmdata.Finding {
	at, stamp := &d.position, &d.record.Stamp
	milliseconds, days := binary.LittleEndian.Uint32(data[at.milliseconds:]), binary.LittleEndian.Uint16(data[at.days:])
	if stamp.UTC = (time.Time{}); !isDate(days) {
		return finding
	}
	utc := time.UnixMilli(millisecond(days, milliseconds)).UTC()
	detail, told := "", &d.toldUTC
	switch {
	case milliseconds >= millisecondsOfDay:
		detail = "time of day of the GPS receiver beyond the end of the day; it is left out, here and in later records"
	case stamp.Wall.IsZero() && !isPlausible(utc):
		detail = "date of the GPS receiver cannot be right, because it is of 1980 or after 2100; it is left out, here and in later records"
	case stamp.Wall.IsZero() || utc.Sub(stamp.Wall).Abs() <= farthest:
		stamp.UTC = utc
		return finding
	case !isPlausible(stamp.Wall) && isPlausible(utc):
		stamp.Wall, stamp.UTC, told = time.Time{}, utc, &d.toldWall
		detail = "times of the machine and of its GPS receiver are more than 15 hours apart; the receiver's is used, because the machine's date cannot be right, here and in later records"
	default:
		detail = "times of the machine and of its GPS receiver are more than 15 hours apart; the machine's is used, here and in later records"
	}
	if finding == nil && !*told {
		*told = true
		finding = &farmdata.Finding{Kind: farmdata.KindTime, Offset: int64(at.milliseconds), Detail: detail}
	}
	return finding
}

// isPlausible reports whether a clock that is set may show a time: one that is not begins at the epoch of 1980 and counts on, and
// one that is read wrongly is beyond this century.
func isPlausible(t time.Time) bool { return t.Year() > 1980 && t.Year() <= 2100 }

func (d *decoder) decodePosition(data []byte) {
	at, p := &d.position, &d.record.Position
	p.Has = at.fixed.Has
	if at.north != 0 {
		p.North = float64(int32(binary.LittleEndian.Uint32(data[at.north:]))) / degree
	}
	if at.east != 0 {
		p.East = float64(int32(binary.LittleEndian.Uint32(data[at.east:]))) / degree
	}
	if at.up != 0 {
		p.Up = int64(int32(binary.LittleEndian.Uint32(data[at.up:])))
	}
	if at.status != 0 {
		p.Status = data[at.status]
	}
	// All bits is what receivers write that do not know.
	if at.pdop != 0 {
		n := binary.LittleEndian.Uint16(data[at.pdop:])
		if p.PDOP = float64(n) / 10; n == math.MaxUint16 {
			p.Has &^= farmdata.HasPDOP
		}
	}
	if at.hdop != 0 {
		n := binary.LittleEndian.Uint16(data[at.hdop:])
		if p.HDOP = float64(n) / 10; n == math.MaxUint16 {
			p.Has &^= farmdata.HasHDOP
		}
	}
	if at.satellites != 0 {
		if p.Satellites = int(data[at.satellites]); p.Satellites == math.MaxUint8 {
			p.Has &^= farmdata.HasSatellites
		}
	}
}

// isDate reports whether days are a date: zero, and all bits, is what clocks have that were not set.
func isDate(days uint16) bool { return days != 0 && days != math.MaxUint16 }

// millisecond is a time of day of a day since farmdata.Epoch, in milliseconds since 1970.
func millisecond(days uint16, milliseconds uint32) int64 {
	return epoch + int64(days)*millisecondsOfDay + int64(milliseconds)
}
