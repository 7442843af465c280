package isoxml

import (
	"encoding/binary"
	"iter"
	"path"
	"strings"
	"time"

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
	part := func(name string, size int, has farmdata.PositionField) (offset int, constant bool) {
		value, there := e.lookup(name)
		switch {
		case !there:
			return 0, false
		case value != "":
			h.fixed.Has |= has
			return 0, true
		}
		h.fixed.Has |= has
		offset = h.length
		h.length += size
		return offset, false
	}
	var constant bool
	if h.north, constant = part("A", 4, farmdata.HasNorth); constant {
		h.fixed.North = e.float("A")
	}
	if h.east, constant = part("B", 4, farmdata.HasEast); constant {
		h.fixed.East = e.float("B")
	}
	if h.up, constant = part("C", 4, farmdata.HasUp); constant {
		h.fixed.Up = e.int64("C")
	}
	if h.status, constant = part("D", 1, farmdata.HasStatus); constant {
		h.fixed.Status = uint8(e.int("D"))
	}
	if h.pdop, constant = part("E", 2, farmdata.HasPDOP); constant {
		h.fixed.PDOP = e.float("E")
	}
	if h.hdop, constant = part("F", 2, farmdata.HasHDOP); constant {
		h.fixed.HDOP = e.float("F")
	}
	if h.satellites, constant = part("G", 1, farmdata.HasSatellites); constant {
		h.fixed.Satellites = e.int("G")
	}
	h.milliseconds, _ = part("H", 4, 0)
	h.days, _ = part("I", 2, 0)
	return h
}

// header is the XML file of a log.
type header struct {
	position  positionLayout
	columns   []farmdata.Column
	constants map[int]int64 // by column
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
	if hasBin {
		log.Size = bin.size
		log.Records = records(bin, h, r.cfg.MaxStream, r.cfg.MaxFindings)
	}
	return log
}

// readHeader reads the XML file of a log; false if it is not one.
func (r *setReader) readHeader(f file) (header, bool) {
	h := header{position: positionHeader(nil), constants: map[int]int64{}}
	var root, surplus bool
	begin := func(parent any, e *element) any {
		switch {
		case !root:
			root = true
			if e.tag == "TIM" {
				return &h
			}
		case parent != nil && e.tag == "PTN":
			h.position = positionHeader(e)
		case parent != nil && e.tag == "DLV" && len(h.columns) < maxColumns:
			if raw := e.str("B"); raw != "" {
				h.constants[len(h.columns)] = e.int64("B")
			}
			h.columns = append(h.columns, farmdata.Column{
				DDI: e.ddi("A"), ElementID: e.str("C"), PGN: uint32(e.int("D")), StartBit: uint8(e.int("E")), StopBit: uint8(e.int("F")),
			})
		case parent != nil && e.tag == "DLV" && !surplus:
			surplus = true
			r.find(farmdata.KindSurplus, f.path, "more values than an index can tell apart")
		}
		return nil
	}
	var isHeader bool
	r.walk(f, begin, func(_, object any) { isHeader = isHeader || object != nil })
	if !isHeader {
		r.find(farmdata.KindUnreadable, f.path, "not the header of a log")
	}
	return h, isHeader
}

// describe completes a column with what its device says about it, otherwise with
// what the data dictionary says.
func (r *setReader) describe(file string, c *farmdata.Column) {
	at, known := r.elements[c.ElementID]
	if !known {
		if c.ElementID != "" {
			r.find(farmdata.KindReference, file, "no device has the device element of a value")
		}
		c.Describe(nil, nil)
		return
	}
	c.Describe(&r.set.Devices[at.device], &r.set.Devices[at.device].Elements[at.element])
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
			length, finding := d.decode(s.buf[s.start:s.end])
			if length == 0 { // not a whole record
				if finding == nil {
					finding = s.ended(number)
				} else {
					finding.File, finding.Offset, finding.Record = f.path, s.offset()+finding.Offset, number
				}
				if finding != nil {
					yield(nil, finding)
				}
				return
			}
			if finding != nil && told <= maxFindings {
				finding.File, finding.Offset, finding.Record = f.path, s.offset()+finding.Offset, number
				if told++; told > maxFindings {
					finding = &farmdata.Finding{Kind: farmdata.KindLimit, File: f.path, Offset: -1, Record: number, Detail: "more findings than are reported"}
				}
				if !yield(nil, finding) {
					return
				}
			}
			s.start += length
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
}

func newDecoder(h header) *decoder {
	d := &decoder{position: h.position}
	for i := range h.columns {
		d.columns[i] = &h.columns[i]
	}
	d.record.Position = h.position.fixed
	return d
}

const (
	millisecondsOfDay = 24 * 60 * 60 * 1000
	epoch             = 315532800000 // farmdata.Epoch in milliseconds
	degree            = 1e7
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
	for i := range count {
		value := rest[5*i : 5*i+5]
		column := d.columns[value[0]]
		if column == nil {
			return 0, &farmdata.Finding{Kind: farmdata.KindOutOfStep, Offset: int64(head + 1 + 5*i), Detail: "value that the header does not describe"}
		}
		d.values[i] = farmdata.Value{Column: column, Raw: int64(int32(binary.LittleEndian.Uint32(value[1:])))}
	}
	if !whole {
		return 0, nil
	}
	d.record.Values = d.values[:count:count]

	milliseconds, days := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint16(data[4:])
	if milliseconds >= millisecondsOfDay {
		finding = &farmdata.Finding{Kind: farmdata.KindTime, Detail: "time of day beyond the end of the day"}
	}
	d.record.Stamp = farmdata.Stamp{Wall: dayTime(days, milliseconds), Local: true}
	if at := &d.position; at.milliseconds != 0 && at.days != 0 {
		milliseconds, days := binary.LittleEndian.Uint32(data[at.milliseconds:]), binary.LittleEndian.Uint16(data[at.days:])
		// Zero, and all bits, is what receivers write that know no time.
		if days != 0 && days != 0xFFFF && milliseconds < millisecondsOfDay {
			d.record.Stamp.UTC = dayTime(days, milliseconds)
		}
	}
	d.decodePosition(data)
	if finding == nil && d.record.Position.OffEarth() {
		finding = &farmdata.Finding{Kind: farmdata.KindPosition, Offset: int64(max(d.position.north, d.position.east, 0)), Detail: "position is not on Earth"}
	}
	return head + 1 + 5*count, finding
}

func (d *decoder) decodePosition(data []byte) {
	at, p := &d.position, &d.record.Position
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
	if at.pdop != 0 {
		p.PDOP = float64(binary.LittleEndian.Uint16(data[at.pdop:])) / 10
	}
	if at.hdop != 0 {
		p.HDOP = float64(binary.LittleEndian.Uint16(data[at.hdop:])) / 10
	}
	if at.satellites != 0 {
		p.Satellites = int(data[at.satellites])
	}
}

// dayTime is a time of day of a day since farmdata.Epoch.
func dayTime(days uint16, milliseconds uint32) time.Time {
	return time.UnixMilli(epoch + int64(days)*millisecondsOfDay + int64(milliseconds)).UTC()
}
