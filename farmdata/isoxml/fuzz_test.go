package isoxml

import (
	"encoding/binary"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// fuzzLimits are small, so that inputs can exceed them.
var fuzzLimits = Config{MaxFiles: 50, MaxXML: 1 << 20, MaxElements: 5000, MaxDepth: 20, MaxNesting: 2, MaxNested: 1 << 20, MaxStream: 1 << 20, MaxFindings: 20}

// FuzzOpen: no archive makes Open panic, and what it gives keeps to the limits.
func FuzzOpen(f *testing.F) {
	good := sampleRecord(1000, 10, 20, value{0, 1}, value{1, 2})
	plain := []entry{{"TASKDATA/TASKDATA.XML", sample}, {"TASKDATA/TLG00001.XML", sampleHeader}, {"TASKDATA/TLG00001.BIN", good + good}}
	f.Add(zipped(f, plain...))
	f.Add(zipped(f, entry{"a.zip", zipped(f, plain...)}, entry{"b.zip", "x"}))
	small, _ := filepath.Glob(filepath.Join(shared, "farm", "taskdata_[tw]*.zip"))
	for _, name := range small {
		if data, err := os.ReadFile(name); err == nil {
			f.Add(string(data))
		}
	}
	f.Fuzz(func(t *testing.T, archive string) {
		a, err := Open(t.Context(), strings.NewReader(archive), int64(len(archive)), fuzzLimits)
		if err != nil {
			return
		}
		if len(a.Sets) == 0 {
			t.Error("neither a set nor an error")
		}
		checkFindings(t, a.Findings)
		for _, set := range a.Sets {
			checkSet(t, set)
		}
	})
}

func checkFindings(t *testing.T, list []*farmdata.Finding) {
	t.Helper()
	if len(list) > fuzzLimits.MaxFindings+1 {
		t.Errorf("%d findings", len(list))
	}
	for _, finding := range list {
		if finding.Kind == "" || finding.Error() == "" {
			t.Errorf("finding %+v says nothing", finding)
		}
	}
}

func checkSet(t *testing.T, set *farmdata.Set) {
	t.Helper()
	checkFindings(t, set.Findings)
	for _, log := range set.Logs {
		records, bytes := int64(0), int64(0)
		for record, err := range log.Records {
			var finding *farmdata.Finding
			switch {
			case err != nil && (record != nil || !errors.As(err, &finding)):
				t.Fatalf("record %v with error %v", record, err)
			case err != nil:
				continue
			case record.Number != records:
				t.Fatalf("record %d has the number %d", records, record.Number)
			}
			records++
			bytes += 7 + int64(5*len(record.Values))
			for _, v := range record.Values {
				_ = v.Scaled()
				if v.Column == nil {
					t.Fatal("value without a column")
				}
			}
		}
		if bytes > fuzzLimits.MaxStream {
			t.Errorf("records of at least %d bytes, the limit is %d", bytes, fuzzLimits.MaxStream)
		}
	}
	for _, task := range set.Tasks {
		for _, grid := range task.Grids {
			cells := int64(0)
			for cell, err := range grid.Cells {
				if err != nil {
					continue
				}
				if cells++; cell.Row*grid.Cols+cell.Col+1 != cells || cell.Row >= grid.Rows {
					t.Fatalf("cell %d of %d x %d is in row %d, column %d", cells, grid.Rows, grid.Cols, cell.Row, cell.Col)
				}
			}
		}
	}
}

// FuzzRecords: the records that a log gives, encoded again, are the bytes of the
// log up to where its last finding says.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(sampleRecord(1000, 10, 20, value{0, 1}, value{1, 2})), uint16(0x1FF), byte(2))
	f.Add([]byte(sampleRecord(1000, 10, 20, value{3, 1})), uint16(0b1011), byte(2))
	f.Add([]byte(nil), uint16(0), byte(0))
	f.Add([]byte("0"), uint16(0b1001100010), byte(2)) // an east without a north
	f.Fuzz(func(t *testing.T, bin []byte, parts uint16, columns byte) {
		ptn := &element{spot: spot{tag: "PTN"}, report: func(*farmdata.Finding) {}}
		for i := range 9 {
			if parts>>i&1 == 1 {
				ptn.attrs = append(ptn.attrs, xml.Attr{Name: xml.Name{Local: string(rune('A' + i))}})
			}
		}
		h := header{position: positionHeader(ptn), columns: make([]farmdata.Column, columns)}
		index := map[*farmdata.Column]byte{}
		for i := range h.columns {
			index[&h.columns[i]] = byte(i)
		}
		d := newDecoder(h)
		at := 0
		for {
			length, _ := d.decode(bin[at:])
			if length == 0 {
				break
			}
			encoded := encode(d, h.position, index, bin[at:])
			if string(encoded) != string(bin[at:at+length]) {
				t.Fatalf("record at %d is\n%x, encoded again\n%x", at, bin[at:at+length], encoded)
			}
			at += length
		}
		if length, finding := d.decode(bin[at:]); length == 0 && finding == nil && len(bin)-at >= maxRecord {
			t.Errorf("%d bytes are too few for a record", len(bin)-at)
		}
	})
}

// encode writes a decoded record. What the model does not keep bit by bit, the
// time of the receiver, is taken from the original.
func encode(d *decoder, layout positionLayout, index map[*farmdata.Column]byte, original []byte) []byte {
	b := make([]byte, layout.length)
	// A time of day beyond the day goes into the next days.
	days, milliseconds := binary.LittleEndian.Uint16(original[4:]), binary.LittleEndian.Uint32(original)
	if !d.record.Stamp.Wall.IsZero() { // a date that is not set is not kept
		milliseconds = uint32(d.record.Stamp.Wall.UnixMilli() - epoch - int64(days)*millisecondsOfDay)
	}
	binary.LittleEndian.PutUint32(b, milliseconds)
	binary.LittleEndian.PutUint16(b[4:], days)
	p := d.record.Position
	put32 := func(at int, v int32) {
		if at != 0 {
			binary.LittleEndian.PutUint32(b[at:], uint32(v))
		}
	}
	put16 := func(at int, v float64) {
		if at != 0 {
			binary.LittleEndian.PutUint16(b[at:], uint16(v*10+0.5))
		}
	}
	put8 := func(at int, v byte) {
		if at != 0 {
			b[at] = v
		}
	}
	round := func(v float64) int32 {
		if v < 0 {
			return int32(v*degree - 0.5)
		}
		return int32(v*degree + 0.5)
	}
	put32(layout.north, round(p.North))
	put32(layout.east, round(p.East))
	put32(layout.up, int32(p.Up))
	put8(layout.status, p.Status)
	put16(layout.pdop, p.PDOP)
	put16(layout.hdop, p.HDOP)
	put8(layout.satellites, byte(p.Satellites))
	if at := layout.milliseconds; at != 0 {
		copy(b[at:at+4], original[at:])
	}
	if at := layout.days; at != 0 {
		copy(b[at:at+2], original[at:])
	}
	b = append(b, byte(len(d.record.Values)))
	for _, v := range d.record.Values {
		b = append(b, index[v.Column])
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Raw))
	}
	return b
}
