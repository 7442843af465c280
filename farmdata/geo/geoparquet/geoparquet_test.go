package geoparquet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/internal/testkit"
)

// file is what a test reads in a file: rows as maps, and the metadata.
type file struct {
	*parquet.File
	rows []map[string]any
	geo  struct {
		Version       string
		PrimaryColumn string `json:"primary_column"`
		Columns       map[string]struct {
			Encoding string
			Types    []string `json:"geometry_types"`
			BBox     []float64
			CRS      any
			Covering struct{ BBox map[string][]string }
		}
	}
}

func written(t *testing.T, write func(io.Writer) error) (f file) {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, write(&b))
	opened := testkit.Must(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	f.File = opened
	text, _ := opened.Lookup("geo")
	if err := json.Unmarshal([]byte(text), &f.geo); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	g := f.geo.Columns["geometry"]
	if f.geo.Version != "1.1.0" || f.geo.PrimaryColumn != "geometry" || g.Encoding != "WKB" || g.CRS != nil || !slices.Equal(g.Covering.BBox["ymax"], []string{"bbox", "ymax"}) {
		t.Fatalf("metadata %s", text)
	}
	reader := parquet.NewReader(bytes.NewReader(b.Bytes()))
	for {
		row := map[string]any{}
		if err := reader.Read(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		f.rows = append(f.rows, row)
	}
	return f
}

func bbox(west, south, east, north float64) map[string]any {
	return map[string]any{"xmin": west, "ymin": south, "xmax": east, "ymax": north}
}

// adjusted reports whether a column of timestamps is one of instants.
func adjusted(t *testing.T, f file, name string) bool {
	t.Helper()
	leaf, ok := f.Schema().Lookup(name)
	if !ok {
		t.Fatalf("no column %s", name)
	}
	kind, ok := leaf.Node.Type().LogicalType().Value.(*format.TimestampType)
	if !ok {
		t.Fatalf("%s is %v", name, leaf.Node.Type())
	}
	return kind.IsAdjustedToUTC
}

var start = time.Date(2021, 1, 25, 1, 0, 0, 0, time.UTC)

func at(number int64, north, east float64, values ...farmdata.Value) *farmdata.Record {
	return &farmdata.Record{Number: number, Stamp: farmdata.Stamp{Wall: start, Local: true}, Values: values,
		Position: farmdata.Position{North: north, East: east, Up: 1500, Status: 4, Has: farmdata.HasNorth | farmdata.HasEast | farmdata.HasUp | farmdata.HasStatus}}
}

func TestPointsAreRows(t *testing.T) {
	t.Parallel()
	columns := []farmdata.Column{{DDI: 0x43, ElementID: "DET-1", Unit: "m", Scale: 0.001}, {DDI: 1, ElementID: "a.b", Scale: 1}}
	withUTC := at(3, -52, -7, farmdata.Value{Column: &columns[1], Raw: 5})
	withUTC.Stamp.UTC = start.Add(-time.Hour)
	withUTC.Position.PDOP, withUTC.Position.HDOP, withUTC.Position.Satellites = 1.5, 0, 12
	withUTC.Position.FieldStatus = 2
	withUTC.Position.Has |= farmdata.HasPDOP | farmdata.HasHDOP | farmdata.HasSatellites | farmdata.HasFieldStatus
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Columns: columns, Records: func(yield func(*farmdata.Record, error) bool) {
		_ = yield(at(0, 52, 7, farmdata.Value{Column: &columns[0], Raw: 9000}), nil) && yield(at(1, 0, 0), nil) && yield(at(2, 99, 0), nil) &&
			yield(withUTC, nil) && yield(nil, &farmdata.Finding{Kind: farmdata.KindCut})
	}}
	var found []*farmdata.Finding
	f := written(t, func(w io.Writer) error {
		return writePoints(w, []*farmdata.Log{log}, Config{Finding: func(finding *farmdata.Finding) { found = append(found, finding) }})
	})
	if len(f.rows) != 2 || len(found) != 1 {
		t.Fatalf("%d rows, findings %v", len(f.rows), found)
	}
	first, second := f.rows[0], f.rows[1]
	if first["0043_DET-1"] != 9.0 || first["0001_a_b"] != nil || second["0043_DET-1"] != nil || second["0001_a_b"] != 5.0 {
		t.Errorf("values of %v and %v", first, second)
	}
	if first["log"] != "TLG00001" || first["task"] != "TSK1" || second["record"] != int64(3) || first["up"] != 1.5 || first["utc"] != nil || second["utc"] == nil {
		t.Errorf("rows %v and %v", first, second)
	}
	for name, want := range map[string]any{"pdop": 1.5, "hdop": 0.0, "satellites": int32(12), "field_status": int32(2)} {
		if first[name] != nil || second[name] != want {
			t.Errorf("%s is %v, and %v where the receiver says %v", name, first[name], second[name], want)
		}
	}
	if !reflect.DeepEqual(first["bbox"], bbox(7, 52, 7, 52)) || !slices.Equal(f.geo.Columns["geometry"].BBox, []float64{-7, -52, 7, 52}) {
		t.Errorf("boxes %v and %v", first["bbox"], f.geo.Columns["geometry"].BBox)
	}
	wkb, _ := first["geometry"].([]byte)
	if text, ok := first["geometry"].(string); ok {
		wkb = []byte(text)
	}
	if want := "\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x1c\x40\x00\x00\x00\x00\x00\x00\x4a\x40"; string(wkb) != want {
		t.Errorf("geometry %x, want %x", wkb, want)
	}
	if adjusted(t, f, "time") || !adjusted(t, f, "utc") {
		t.Error("local time is a timestamp without zone, UTC is one with it")
	}
	text, _ := f.Lookup(ColumnsKey)
	var described map[string]geo.Description
	if err := json.Unmarshal([]byte(text), &described); err != nil || described["0043_DET-1"].Unit != "m" {
		t.Errorf("columns %s, %v", text, err)
	}
}

// TestColumnsThatAreKnownOnlyOnceRead: a log of EFDI has no columns before it is
// read, and others each time.
func TestColumnsThatAreKnownOnlyOnceRead(t *testing.T) {
	t.Parallel()
	found := 0
	log := &farmdata.Log{Records: func(yield func(*farmdata.Record, error) bool) {
		a, b := &farmdata.Column{DDI: 1, ElementID: "DET1", Scale: 1}, &farmdata.Column{DDI: 2, ElementID: "DET1", Scale: 1}
		first := at(0, 52, 7, farmdata.Value{Column: a, Raw: 1})
		first.Stamp.Local = false
		_ = yield(first, nil) && yield(nil, &farmdata.Finding{}) && yield(at(1, 52, 8, farmdata.Value{Column: b, Raw: 2}, farmdata.Value{Column: a, Raw: 3}), nil)
	}}
	f := written(t, func(w io.Writer) error {
		return writePoints(w, []*farmdata.Log{log}, Config{Finding: func(*farmdata.Finding) { found++ }})
	})
	if len(f.rows) != 2 || f.rows[0]["0001_DET1"] != 1.0 || f.rows[1]["0001_DET1"] != 3.0 || f.rows[1]["0002_DET1"] != 2.0 || found != 1 {
		t.Errorf("rows %v, %d findings told", f.rows, found)
	}
	if !adjusted(t, f, "time") {
		t.Error("the instants of EFDI are timestamps with zone")
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	ring := farmdata.LineString{Type: 1, Points: []farmdata.Point{{East: 7, North: 52}, {East: 8, North: 52}, {East: 8, North: 53}}}
	f := written(t, func(w io.Writer) error {
		polygons := []farmdata.Polygon{{Rings: []farmdata.LineString{ring}}}
		return writeFields(w, []farmdata.Field{{ID: "PFD0"}, {ID: "PFD1", Designator: "Field", Area: 100, FarmID: "FRM1", Polygons: polygons}, {Polygons: polygons}}, Config{})
	})
	if len(f.rows) != 2 || f.rows[1]["area"] != nil || f.rows[0]["name"] != "Field" || f.rows[0]["area"] != int64(100) || !reflect.DeepEqual(f.rows[0]["bbox"], bbox(7, 52, 8, 53)) {
		t.Errorf("rows %v", f.rows)
	}
	if got := f.geo.Columns["geometry"].Types; !slices.Equal(got, []string{"MultiPolygon"}) {
		t.Errorf("types %v", got)
	}
	f = written(t, func(w io.Writer) error { return writeFields(w, nil, Config{}) })
	if len(f.rows) != 0 || f.geo.Columns["geometry"].BBox != nil {
		t.Errorf("no field: rows %v, box %v", f.rows, f.geo.Columns["geometry"].BBox)
	}
}

var errDisk = errors.New("disk full")

type full struct{}

// Write fails.
func (full) Write([]byte) (int, error) { return 0, errDisk }

// TestRowGroupsAreBounded: what is held in memory does not grow with the log.
func TestRowGroupsAreBounded(t *testing.T) {
	t.Parallel()
	columns := make([]farmdata.Column, 200)
	const records = 12_000
	log := &farmdata.Log{Columns: columns, Records: func(yield func(*farmdata.Record, error) bool) {
		for i := range int64(records) {
			if !yield(at(i, 52, 7+float64(i)/records), nil) {
				return
			}
		}
	}}
	var b bytes.Buffer
	testkit.NoError(t, writePoints(&b, []*farmdata.Log{log}, Config{}))
	f := testkit.Must(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	if f.NumRows() != records || len(f.RowGroups()) < 2 {
		t.Errorf("%d rows in %d groups", f.NumRows(), len(f.RowGroups()))
	}
	for _, group := range f.RowGroups() {
		if group.NumRows() > 6000 {
			t.Errorf("a row group of %d rows of 200 columns", group.NumRows())
		}
	}
	if err := writePoints(full{}, []*farmdata.Log{log}, Config{}); !errors.Is(err, errDisk) {
		t.Errorf("%v, want the error of the writer", err)
	}
	log.Records = func(yield func(*farmdata.Record, error) bool) { yield(nil, io.ErrUnexpectedEOF) }
	if err := writePoints(io.Discard, []*farmdata.Log{log}, Config{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, want the error of the stream", err)
	}
}

// A track is in parts without gaps: each a line, a point where there is one place only.
func TestTracks(t *testing.T) {
	type place struct {
		seconds     int
		north, east float64
	}
	places := []place{{0, 1, 1}, {1, 1, 2}, {2, 0, 0}, {1000, 2, 179}, {1001, 2, -179}, {1002, 2, -178}}
	begin := time.Date(2026, time.May, 4, 6, 30, 0, 0, time.UTC)
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Records: func(yield func(*farmdata.Record, error) bool) {
		for i, p := range places {
			if !yield(&farmdata.Record{Number: int64(i), Stamp: farmdata.Stamp{Wall: begin.Add(time.Duration(p.seconds) * time.Second), Local: true},
				Position: farmdata.Position{North: p.north, East: p.east, Has: farmdata.HasNorth | farmdata.HasEast}}, nil) {
				return
			}
		}
		yield(nil, &farmdata.Finding{Kind: farmdata.KindCut})
	}}
	var found int
	f := written(t, func(w io.Writer) error {
		return writeTracks(w, []*farmdata.Log{log, {Name: "TLG00002", Records: func(func(*farmdata.Record, error) bool) {}}}, Config{Finding: func(*farmdata.Finding) { found++ }})
	})
	if len(f.rows) != 3 || found != 1 || !slices.Equal(f.geo.Columns["geometry"].Types, []string{"LineString", "Point"}) {
		t.Fatalf("%d rows, %d findings, types %v; want 3, 1, lines and points", len(f.rows), found, f.geo.Columns["geometry"].Types)
	}
	row := f.rows[0]
	if row["log"] != "TLG00001" || row["task"] != "TSK1" || row["part"] != int64(1) || row["records"] != int64(2) ||
		row["start"] != "2026-05-04T06:30:00" || row["end"] != "2026-05-04T06:30:01" || !reflect.DeepEqual(row["bbox"], bbox(1, 1, 2, 1)) {
		t.Errorf("got %v", row)
	}
	want := coordinates(coordinates(header(nil, wkbLineString, 2), geo.Coordinates{1, 1}), geo.Coordinates{2, 1})
	if got := row["geometry"]; got != string(want) && !reflect.DeepEqual(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if row := f.rows[2]; row["records"] != int64(2) || !reflect.DeepEqual(row["bbox"], bbox(-179, 2, -178, 2)) {
		t.Errorf("got %v, want the part behind the 180th meridian", row)
	}
}

// TestRowGroupsOfTracksAreBounded: lines of many logs are not in memory together.
func TestRowGroupsOfTracksAreBounded(t *testing.T) {
	t.Parallel()
	const places, logs = 20_000, 15
	log := &farmdata.Log{Records: func(yield func(*farmdata.Record, error) bool) {
		for i := range places {
			if !yield(&farmdata.Record{Position: farmdata.Position{North: 1 + float64(i)/1e6, East: 1, Has: farmdata.HasNorth | farmdata.HasEast}}, nil) {
				return
			}
		}
	}}
	var b bytes.Buffer
	testkit.NoError(t, writeTracks(&b, slices.Repeat([]*farmdata.Log{log}, logs), Config{}))
	f := testkit.Must(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	for _, group := range f.RowGroups() {
		if size := group.NumRows() * places * 16; size > mostGeometries+places*16 {
			t.Errorf("a row group with lines of %d bytes", size)
		}
	}
	if f.NumRows() != logs {
		t.Errorf("got %d rows, want %d", f.NumRows(), logs)
	}
}

// A part of a track ends before it takes too much memory, and the next goes on where it ended.
func TestLongTrack(t *testing.T) {
	log := &farmdata.Log{Records: func(yield func(*farmdata.Record, error) bool) {
		for i := range longestPart + 10 {
			if !yield(&farmdata.Record{Position: farmdata.Position{North: 1 + float64(i)/1e6, East: 1, Has: farmdata.HasNorth | farmdata.HasEast}}, nil) {
				return
			}
		}
	}}
	f := written(t, func(w io.Writer) error { return writeTracks(w, []*farmdata.Log{log}, Config{}) })
	if len(f.rows) != 2 || f.rows[0]["records"] != int64(longestPart) || f.rows[1]["records"] != int64(10) {
		t.Fatalf("%d rows", len(f.rows))
	}
	first, second := f.rows[0]["bbox"].(map[string]any), f.rows[1]["bbox"].(map[string]any)
	if first["ymax"] != second["ymin"] {
		t.Errorf("one ends at %v, the next begins at %v", first["ymax"], second["ymin"])
	}
}

// TestManyAllocations: what each of many logs refers to, by many allocations with long names, does not all come into memory.
func TestManyAllocations(t *testing.T) {
	t.Parallel()
	set := &farmdata.Set{}
	var allocations []farmdata.DeviceAllocation
	for i := range 100 {
		id := fmt.Sprint("DVC", i)
		set.Devices = append(set.Devices, farmdata.Device{ID: id, Designator: strings.Repeat(id, 5000)})
		allocations = append(allocations, farmdata.DeviceAllocation{DeviceID: id})
	}
	for i := range 12 {
		id := fmt.Sprint("TSK", i)
		set.Tasks = append(set.Tasks, farmdata.Task{ID: id, Devices: allocations})
		set.Logs = append(set.Logs, &farmdata.Log{TaskID: id, Records: func(yield func(*farmdata.Record, error) bool) {
			yield(&farmdata.Record{Position: farmdata.Position{North: 52, East: 7, Has: farmdata.HasNorth | farmdata.HasEast}}, nil)
		}})
	}
	for _, layer := range []geo.Layer{geo.Tracks, geo.Points} {
		for logs, fails := range map[int]bool{2: false, 12: true} {
			some := *set
			some.Logs = set.Logs[:logs]
			if err := Write(io.Discard, &some, Config{Layers: []geo.Layer{layer}, Add: []geo.Attribute{geo.Machine}}); (err != nil) != fails {
				t.Errorf("%s of %d logs: got %v, want an error: %v", layer, logs, err, fails)
			}
		}
	}
}
