package isoxml

import (
	"bufio"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// positionPart is a part of a position: an attribute of PTN, and bytes in records.
type positionPart struct {
	name  string
	has   farmdata.PositionField
	size  int
	value func(*farmdata.Position) float64
	// In records is value * scale, from low to high; none stands for one that is absent, if there is such.
	scale     float64
	low, high float64
	none      int64
}

// positionParts are the parts in the order of records. It is only read.
var positionParts = []positionPart{
	{"A", farmdata.HasNorth, 4, func(p *farmdata.Position) float64 { return p.North }, degree, math.MinInt32, math.MaxInt32, 0},
	{"B", farmdata.HasEast, 4, func(p *farmdata.Position) float64 { return p.East }, degree, math.MinInt32, math.MaxInt32, 0},
	{"C", farmdata.HasUp, 4, func(p *farmdata.Position) float64 { return float64(p.Up) }, 1, math.MinInt32, math.MaxInt32, 0},
	{"D", farmdata.HasStatus, 1, func(p *farmdata.Position) float64 { return float64(p.Status) }, 1, 0, math.MaxUint8, 0},
	{"E", farmdata.HasPDOP, 2, func(p *farmdata.Position) float64 { return p.PDOP }, 10, 0, math.MaxUint16 - 1, math.MaxUint16},
	{"F", farmdata.HasHDOP, 2, func(p *farmdata.Position) float64 { return p.HDOP }, 10, 0, math.MaxUint16 - 1, math.MaxUint16},
	{"G", farmdata.HasSatellites, 1, func(p *farmdata.Position) float64 { return float64(p.Satellites) }, 1, 0, math.MaxUint8 - 1, math.MaxUint8},
}

// attribute is the part as it stands in XML.
func (q *positionPart) attribute(p *farmdata.Position) xml.Attr {
	return xml.Attr{Name: xml.Name{Local: q.name}, Value: strconv.FormatFloat(q.value(p), 'f', -1, 64)}
}

// raw is the part as it is in a record; false if it does not fit.
func (q *positionPart) raw(p *farmdata.Position) (n int64, fits bool) {
	if p.Has&q.has == 0 {
		return q.none, q.none != 0
	}
	f := math.Round(q.value(p) * q.scale)
	return int64(f), f >= q.low && f <= q.high && f/q.scale == q.value(p)
}

// logWriter is what is to be written of a log.
type logWriter struct {
	log     *farmdata.Log
	header  []byte // nil: not written
	bin     bool   // whether there is a binary file
	layout  positionLayout
	parts   []*positionPart // that are in the records
	utc     bool            // the time of the receiver is in the records
	columns []farmdata.Column
	index   columns.Memo[int]
	byKey   map[farmdata.Column]int
}

// positions is what the positions of a log have in common.
type positions struct {
	records                int
	first                  farmdata.Position
	any, tooLarge, differs farmdata.PositionField // parts that there are, that records cannot hold, that are not the same everywhere
}

func (p *positions) add(position *farmdata.Position) {
	if p.records++; p.records == 1 {
		p.first = *position
	}
	p.any |= position.Has
	for i := range positionParts {
		part := &positionParts[i]
		if _, fits := part.raw(position); !fits {
			p.tooLarge |= part.has
		}
		if position.Has&part.has != p.first.Has&part.has || part.value(position) != part.value(&p.first) {
			p.differs |= part.has
		}
	}
}

// plan reads a log for the first time, to know what its header has to say.
func (s *setWriter) plan(log *farmdata.Log) (*logWriter, error) {
	l := &logWriter{log: log, byKey: map[farmdata.Column]int{}}
	l.index.Make = l.add
	for i := range log.Columns {
		l.index.Of(&log.Columns[i])
	}
	l.index.Make = l.find
	constants := map[int]int64{}
	for _, v := range log.Constants {
		constants[l.index.Of(v.Column)] = v.Raw
	}
	var p positions
	records := log.Records
	if records == nil {
		records = func(func(*farmdata.Record, error) bool) {}
	}
	for record, err := range records {
		if s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		if err != nil {
			finding, err := s.found(err)
			if err != nil {
				return nil, err
			}
			l.bin = l.bin || finding.Kind == farmdata.KindEmpty
			continue
		}
		p.add(&record.Position)
		l.utc = l.utc || !record.Stamp.UTC.IsZero()
		for i, v := range record.Values {
			l.index.At(i, v.Column)
		}
	}
	if l.bin = l.bin || p.records > 0; !l.bin {
		if err := s.missing(log.Name, "records of the log"); err != nil {
			return nil, err
		}
	}
	if len(l.columns) > maxColumns {
		return nil, fmt.Errorf("%d different values: an index can tell %d apart", len(l.columns), maxColumns)
	}
	return l, l.makeHeader(constants, &p)
}

// add adds a column.
func (l *logWriter) add(c *farmdata.Column) int {
	i := len(l.columns)
	l.columns = append(l.columns, *c)
	if _, twice := l.byKey[keyOf(c)]; !twice {
		l.byKey[keyOf(c)] = i
	}
	return i
}

// find returns the number of a column that is not one of the log, but maybe the same.
func (l *logWriter) find(c *farmdata.Column) int {
	if i, ok := l.byKey[keyOf(c)]; ok {
		return i
	}
	return l.add(c)
}

// keyOf is what a header says of a column.
func keyOf(c *farmdata.Column) farmdata.Column {
	return farmdata.Column{DDI: c.DDI, ElementID: c.ElementID, PGN: c.PGN, StartBit: c.StartBit, StopBit: c.StopBit}
}

// makeHeader makes the header. What records cannot hold of positions is a constant if it is the same in all of them.
func (l *logWriter) makeHeader(constants map[int]int64, p *positions) error {
	var position []xml.Attr
	recorded := func(name string) { position = append(position, xml.Attr{Name: xml.Name{Local: name}}) }
	for i := range positionParts {
		part := &positionParts[i]
		switch {
		case p.any&part.has == 0:
		case p.tooLarge&part.has == 0:
			recorded(part.name)
			l.parts = append(l.parts, part)
		case p.differs&part.has != 0:
			return fmt.Errorf("attribute %s of PTN: positions that records cannot hold: too precise or large, or missing in some", part.name)
		case p.first.Has&part.has != 0:
			position = append(position, part.attribute(&p.first))
		}
	}
	if l.utc {
		recorded("H")
		recorded("I")
	}
	if !l.bin && len(l.columns) == 0 {
		return nil
	}
	w := &xmlWriter{b: []byte(xmlDeclaration)}
	w.begin("TIM")
	w.attribute("A", "")
	w.attribute("D", "4")
	if len(position) > 0 {
		w.position(position)
	}
	for i, c := range l.columns {
		w.begin("DLV")
		w.DDI("A", &c.DDI, objects.Required)
		if raw, constant := constants[i]; constant {
			w.Value("B", &raw, nil, 0)
		} else {
			w.attribute("B", "")
		}
		w.Text("C", &c.ElementID, 0)
		if c.CAN() {
			w.Whole("D", int64(c.PGN), objects.Required)
			w.Whole("E", int64(c.StartBit), objects.Required)
			w.Whole("F", int64(c.StopBit), objects.Required)
		}
		w.end("DLV")
	}
	w.end("TIM")
	l.header = append(w.b, '\n')
	// As the reader will understand it.
	ptn := &element{spot: spot{tag: "PTN"}, attrs: position, report: func(*farmdata.Finding) {}}
	l.layout = positionHeader(ptn)
	return nil
}

// log writes the files of a log.
func (s *setWriter) log(l *logWriter) error {
	if l.header != nil {
		if err := s.file(l.log.Name+".XML", writeAll(l.header)); err != nil {
			return err
		}
	}
	if !l.bin {
		return nil
	}
	return s.file(l.log.Name+".BIN", func(w io.Writer) error {
		out := bufio.NewWriterSize(w, 64<<10)
		d := newDecoder(header{position: l.layout, columns: l.columns})
		var b []byte
		for record, err := range l.log.Records {
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if err != nil {
				continue // which was told
			}
			if b, err = l.encode(b[:0], record); err == nil {
				err = l.check(d, b, record)
			}
			if err != nil {
				return fmt.Errorf("record %d cannot be written: %w", record.Number, err)
			}
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

// encode appends a record.
func (l *logWriter) encode(b []byte, record *farmdata.Record) ([]byte, error) {
	if len(record.Values) > math.MaxUint8 {
		return b, fmt.Errorf("it has %d values, at most %d fit", len(record.Values), math.MaxUint8)
	}
	if !record.Stamp.Local {
		return b, errors.New("its time is an instant, and TaskData has the local time of the machine")
	}
	b = appendTime(b, record.Stamp.Wall.IsZero(), record.Stamp.Wall.UnixMilli())
	for _, part := range l.parts {
		n, _ := part.raw(&record.Position)
		switch part.size {
		case 4:
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		case 2:
			b = binary.LittleEndian.AppendUint16(b, uint16(n))
		default:
			b = append(b, byte(n))
		}
	}
	if l.utc {
		b = appendTime(b, record.Stamp.UTC.IsZero(), record.Stamp.UTC.UnixMilli())
	}
	b = append(b, byte(len(record.Values)))
	for i, v := range record.Values {
		b = append(b, byte(l.index.At(i, v.Column)))
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Raw))
	}
	return b, nil
}

// appendTime appends a time of day and a date, in milliseconds since 1970; zeros if there is none.
func appendTime(b []byte, none bool, milliseconds int64) []byte {
	milliseconds -= epoch
	if none {
		milliseconds = 0
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(milliseconds%millisecondsOfDay))
	return binary.LittleEndian.AppendUint16(b, uint16(milliseconds/millisecondsOfDay))
}

// check decodes a record that was encoded, and fails if it is another one then.
func (l *logWriter) check(d *decoder, b []byte, record *farmdata.Record) error {
	length, _ := d.decode(b)
	read := &d.record
	switch {
	case length != len(b) || len(read.Values) != len(record.Values):
		return errors.New("a log has no form for it")
	case !sameStamp(read.Stamp, record.Stamp):
		return errors.New("its time is not one of whole milliseconds that a log can have")
	case !samePosition(&read.Position, &record.Position):
		return errors.New("its position has what a log cannot have")
	}
	for i, v := range record.Values {
		if v.Raw != read.Values[i].Raw {
			return errors.New("a value is beyond 32 bits")
		}
	}
	return nil
}

// samePosition reports whether two positions have the same parts.
func samePosition(a, b *farmdata.Position) bool {
	for i := range positionParts {
		if part := &positionParts[i]; a.Has&part.has != 0 && part.value(a) != part.value(b) {
			return false
		}
	}
	return a.Has == b.Has
}

// grid writes the file of a grid. read is the grid as it is read again, zones are those of its task.
func (s *setWriter) grid(grid, read *farmdata.Grid, zones *zones) error {
	if !hasFile(grid) {
		return s.missing(grid.Name, "cells of the grid")
	}
	return s.file(grid.Name+".BIN", func(w io.Writer) error {
		out := bufio.NewWriter(w)
		var b []byte
		told, number := false, int64(0)
		for cell, err := range grid.Cells {
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if err != nil {
				if _, err := s.found(err); err != nil {
					return err
				}
				told = true
				continue
			}
			if grid.Cols <= 0 || cell.Row != number/grid.Cols || cell.Col != number%grid.Cols || cell.Row >= grid.Rows {
				return errors.New("its cells are not row by row from the south west")
			}
			number++
			if b, err = encodeCell(b[:0], cell, read, zones); err != nil {
				return fmt.Errorf("cell in row %d, column %d cannot be written: %w", cell.Row, cell.Col, err)
			}
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
		if !told && number/grid.Cols < grid.Rows {
			if err := s.find(&farmdata.Finding{Kind: farmdata.KindCut, File: entryName(grid.Name + ".BIN"), Offset: -1, Record: -1, Detail: "the cells end before the grid"}); err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

// hasFile reports whether a grid has a cell, or a file that ends before it: one without a file is read as it was, as missing.
func hasFile(grid *farmdata.Grid) bool {
	if grid.Cells == nil {
		return false
	}
	for _, err := range grid.Cells {
		var finding *farmdata.Finding
		if !errors.As(err, &finding) || finding.Kind == farmdata.KindCut {
			return true
		}
	}
	return false
}

// encodeCell appends a cell of a grid that is read as it is told.
func encodeCell(b []byte, cell *farmdata.Cell, read *farmdata.Grid, zones *zones) ([]byte, error) {
	_, products := zones.columnsOf(read.Zone)
	if read.Type == 1 {
		if cell.Zone < 0 || cell.Zone > math.MaxUint8 {
			return b, errors.New("the code of its zone is not one of 0 to 255")
		}
		_, byCode := zones.prescribed()
		zone := byCode[cell.Zone]
		if products = zone.Products; len(cell.Values) > 0 && !slices.EqualFunc(cell.Values, zone.Amounts, sameValue) {
			return b, errors.New("its values are not those of its zone")
		}
	}
	switch {
	case read.Type != 1 && (read.Type != 2 || len(read.Columns) == 0):
		return b, errors.New("the grid is neither of type 1, nor of type 2 with a zone that says what its values are")
	case len(cell.Products) > 0 && !slices.Equal(cell.Products, products):
		return b, errors.New("its products are not those of its zone")
	case read.Type == 1:
		return append(b, byte(cell.Zone)), nil
	case len(cell.Values) != len(read.Columns):
		return b, errors.New("it does not have the values of the zone of the grid")
	}
	for i, v := range cell.Values {
		read := farmdata.Value{Column: &read.Columns[i], Raw: int64(int32(v.Raw))}
		if !sameValue(v, read) {
			return b, errors.New("a value is beyond 32 bits, or not that of the zone of the grid")
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Raw))
	}
	return b, nil
}

// sameValue reports whether a value, which need not name its column, is the one that is read.
func sameValue(v, read farmdata.Value) bool {
	return v.Raw == read.Raw && (v.Column == nil || *v.Column == *read.Column)
}
