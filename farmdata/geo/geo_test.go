package geo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// collection is what the tests look at in GeoJSON.
type collection struct {
	Type     string
	Features []struct {
		Type     string
		Geometry struct {
			Type        string
			Coordinates json.RawMessage
		}
		Properties map[string]any
	}
	Columns map[string]map[string]string
}

// written returns what write makes of an empty Writer.
func written(t *testing.T, cfg Config, write func(*Writer) error) (c collection) {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, cfg)
	if err == nil {
		err = write(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = w.Close() // does nothing
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &c); err != nil {
		t.Fatalf("%v: %s", err, b.Bytes())
	}
	if c.Type != "FeatureCollection" || c.Features == nil {
		t.Fatalf("%s is no collection", b.Bytes())
	}
	return c
}

// logOf makes a log of records; a finding stands where the record is nil.
func logOf(records ...*farmdata.Record) *farmdata.Log {
	return &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Records: func(yield func(*farmdata.Record, error) bool) {
		for i, record := range records {
			if record == nil {
				if !yield(nil, &farmdata.Finding{Kind: farmdata.KindCut, Record: int64(i)}) {
					return
				}
				continue
			}
			record.Number = int64(i)
			if !yield(record, nil) {
				return
			}
		}
	}}
}

var start = time.Date(2021, 1, 25, 1, 0, 0, 0, time.UTC)

func at(seconds int, north, east float64, values ...farmdata.Value) *farmdata.Record {
	return &farmdata.Record{Stamp: farmdata.Stamp{Wall: start.Add(time.Duration(seconds) * time.Second), Local: true}, Values: values,
		Position: farmdata.Position{North: north, East: east, Up: 1500, Status: 4, Has: farmdata.HasNorth | farmdata.HasEast | farmdata.HasUp | farmdata.HasStatus}}
}

func TestTracksEndAtGaps(t *testing.T) {
	t.Parallel()
	var found []*farmdata.Finding
	log := logOf(at(0, 52, 7), at(1, 52.1, 7.1), at(2, 0, 0), nil, at(3, 95, 7), at(4, 52.2, 7.2), // one part, with what is left out
		at(400, 53, 8),                     // one place
		at(800, 53, 8), at(801, 53.1, 8.1), // another part
		at(802, -17, 179.9), at(803, -17, -179.9), at(804, -17, -179.8)) // over the 180th meridian
	c := written(t, Config{Finding: func(f *farmdata.Finding) { found = append(found, f) }}, func(w *Writer) error { return w.Track(log) })
	var got []string
	for _, f := range c.Features {
		got = append(got, f.Geometry.Type+string(f.Geometry.Coordinates))
	}
	want := []string{"LineString[[7,52],[7.1,52.1],[7.2,52.2]]", "Point[8,53]", "LineString[[8,53],[8.1,53.1],[179.9,-17]]", "LineString[[-179.9,-17],[-179.8,-17]]"}
	if !slices.Equal(got, want) {
		t.Errorf("features %q, want %q", got, want)
	}
	p := c.Features[0].Properties
	if p["start"] != "2021-01-25T01:00:00" || p["end"] != "2021-01-25T01:00:04" || p["records"] != 3.0 || p["task"] != "TSK1" || c.Features[3].Properties["part"] != 4.0 {
		t.Errorf("properties %v", p)
	}
	if len(found) != 1 || found[0].Kind != farmdata.KindCut {
		t.Errorf("findings %v", found)
	}
	first, second := at(0, 52, 7), at(1, 52, 8)
	second.Stamp.UTC = start.Add(-time.Hour)
	if c := written(t, Config{}, func(w *Writer) error { return w.Track(logOf(first, second, at(2, 52, 9))) }); len(c.Features) != 1 {
		t.Errorf("%d parts, want one: a receiver that knows UTC now and then makes no gap", len(c.Features))
	}
}

func TestPointsHaveTheirValues(t *testing.T) {
	t.Parallel()
	columns := []farmdata.Column{
		{DDI: 0x43, ElementID: "DET-1", Name: `Width "left"`, Unit: "m", Scale: 0.001}, {DDI: 0x43, ElementID: "DET-1", Scale: 1}, {DDI: 1, Scale: math.Inf(1)},
	}
	value := func(column int, raw int64) farmdata.Value { return farmdata.Value{Column: &columns[column], Raw: raw} }
	precise := at(2, 52, 7, value(0, 8000))
	precise.Position.PDOP, precise.Position.HDOP, precise.Position.Satellites = 1.5, 0, 12
	precise.Position.FieldStatus = 2
	precise.Position.Has |= farmdata.HasPDOP | farmdata.HasHDOP | farmdata.HasSatellites | farmdata.HasFieldStatus
	c := written(t, Config{}, func(w *Writer) error {
		return w.Points(logOf(at(0, 52.1234567, 7, value(0, 9000), value(1, 5), value(0, 1), value(2, 1)), at(1, 0, 0, value(0, 1)), precise))
	})
	if len(c.Features) != 2 || string(c.Features[0].Geometry.Coordinates) != "[7,52.1234567]" {
		t.Fatalf("features %+v", c.Features)
	}
	p := c.Features[0].Properties
	if p["0043_DET-1"] != 9.0 || p["0043_DET-1_2"] != 5.0 || p["time"] != "2021-01-25T01:00:00" || p["up"] != 1.5 || p["status"] != 4.0 {
		t.Errorf("properties %v", p)
	}
	for name, want := range map[string]float64{"pdop": 1.5, "hdop": 0, "satellites": 12, "field_status": 2} {
		if v, there := p[name]; there || c.Features[1].Properties[name] != want {
			t.Errorf("%s is %v, and %v where the receiver says %v", name, v, c.Features[1].Properties[name], want)
		}
	}
	if v, there := p["0001"]; !there || v != nil {
		t.Errorf("infinity is %v, want null", v)
	}
	if c.Features[1].Properties["0043_DET-1"] != 8.0 || c.Columns["0043_DET-1"]["unit"] != "m" || c.Columns["0043_DET-1"]["name"] != `Width "left"` {
		t.Errorf("properties %v, columns %v", c.Features[1].Properties, c.Columns)
	}
}

// ring is a ring of places given as east, north.
func ring(kind int, places ...float64) farmdata.LineString {
	line := farmdata.LineString{Type: kind}
	for i := 0; i+1 < len(places); i += 2 {
		line.Points = append(line.Points, farmdata.Point{East: places[i], North: places[i+1]})
	}
	return line
}

func TestFieldsFollowTheRules(t *testing.T) {
	t.Parallel()
	field := &farmdata.Field{ID: "PFD1", Designator: "Field", Area: 100, Polygons: []farmdata.Polygon{
		{Rings: []farmdata.LineString{
			ring(2, 7.2, 52.2, 7.4, 52.2, 7.4, 52.4),   // a hole, counterclockwise, before its exterior
			ring(1, 7, 52, 7, 53, 8, 53, 8, 52, 8, 52), // clockwise, open, a place twice
			ring(1, 9, 52, 10, 52, 10, 53, 9, 52),      // another one, closed
			ring(2, 50, 50, 51, 50, 51, 51),            // a hole in nothing
			ring(1, 7, 52, 8, 52),                      // a line
			ring(1, 7, 52, 8, 52, 9, 52),               // a line of three places
			ring(1, 7, 95, 8, 52, 200, 52),             // not on Earth
		}},
		{},
	}}
	var found []string
	c := written(t, Config{Finding: func(f *farmdata.Finding) { found = append(found, f.Error()) }}, func(w *Writer) error {
		crossed := []farmdata.LineString{ring(1, 7, 52, 8, 53, 8, 52, 7, 53)} // which goes both ways around the same area
		for _, other := range []*farmdata.Field{{ID: "nowhere"}, {ID: "crossed", Polygons: []farmdata.Polygon{{Rings: crossed}}}} {
			if err := w.Field(other); err != nil {
				return err
			}
		}
		return w.Field(field)
	})
	if want := []string{"crossed: position: field has no place on Earth: no map shows it",
		"PFD1: position: rings that field lacks, because they enclose nothing, or are interior ones that are in no other one: 4"}; !slices.Equal(found, want) {
		t.Errorf("got findings %q, want %q", found, want)
	}
	const want = "[[[[7,52],[8,52],[8,53],[7,53],[7,52]],[[7.2,52.2],[7.4,52.4],[7.4,52.2],[7.2,52.2]]],[[[9,52],[10,52],[10,53],[9,52]]]]"
	if len(c.Features) != 1 || c.Features[0].Geometry.Type != "MultiPolygon" || string(c.Features[0].Geometry.Coordinates) != want {
		t.Errorf("%d features, the first one %s, want\n%s", len(c.Features), c.Features[0].Geometry.Coordinates, want)
	}
	if p := c.Features[0].Properties; p["name"] != "Field" || p["area"] != 100.0 {
		t.Errorf("properties %v", p)
	}
	if len(field.Polygons[0].Rings[1].Points) != 5 || field.Polygons[0].Rings[1].Points[0].North != 52 || field.Polygons[0].Rings[1].Points[1].North != 53 {
		t.Error("the field was changed")
	}
}

// A field has obstacles, headlands and so on as polygons as well. They overlap the boundary, so they are not on the map, which is a finding.
func TestFieldsAreTheirBoundaries(t *testing.T) {
	t.Parallel()
	shape := func(kind int, west, east float64) farmdata.Polygon {
		return farmdata.Polygon{Type: kind, Rings: []farmdata.LineString{ring(1, west, 52, east, 52, east, 53)}}
	}
	for name, tt := range map[string]struct {
		polygons []farmdata.Polygon
		parts    int
		found    string
	}{
		"boundaries":        {[]farmdata.Polygon{shape(1, 7, 8), shape(1, 9, 10)}, 2, ""},
		"an obstacle":       {[]farmdata.Polygon{shape(6, 7.4, 7.5), shape(1, 7, 8), shape(10, 7, 7.1)}, 1, "boundary, such as obstacles: 2"},
		"a flat boundary":   {[]farmdata.Polygon{shape(1, 7, 7), shape(1, 7, 8), shape(6, 7.4, 7.5)}, 1, "enclose nothing, or are interior ones that are in no other one: 1, without"},
		"no word of a kind": {[]farmdata.Polygon{shape(0, 7, 8)}, 1, ""},
	} {
		multi, finding := FieldPolygon(&farmdata.Field{ID: "PFD1", Polygons: tt.polygons})
		if len(multi) != tt.parts || (finding == nil) != (tt.found == "") || finding != nil && !strings.Contains(finding.Error(), tt.found) {
			t.Errorf("%s: got %d parts and finding %v, want %d and %q", name, len(multi), finding, tt.parts, tt.found)
		}
	}
}

// TestHolesAreInTheirRings compares with what looks at each edge for each hole.
func TestHolesAreInTheirRings(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var polygon farmdata.Polygon
		places := func(n int) (xy []float64) {
			for range 2 * n {
				xy = append(xy, float64(1+random.IntN(12)))
			}
			return xy
		}
		for range 1 + random.IntN(4) {
			polygon.Rings = append(polygon.Rings, ring(1, places(3+random.IntN(8))...))
		}
		for range random.IntN(6) {
			polygon.Rings = append(polygon.Rings, ring(2, places(3)...))
		}
		var want [][][]Coordinates
		for _, line := range polygon.Rings {
			ring := closed(line)
			if isFlat(ring) {
				continue
			}
			orient(ring, line.Type == 1)
			if line.Type == 1 {
				want = append(want, [][]Coordinates{ring})
			} else if i := slices.IndexFunc(want, func(p [][]Coordinates) bool { return contains(p[0], ring[0]) }); i >= 0 {
				want[i] = append(want[i], ring)
			}
		}
		if got, surplus := MultiPolygon([]farmdata.Polygon{polygon}); !reflect.DeepEqual(got, want) || surplus != 0 {
			t.Fatalf("%v: got %v, %d, want %v", polygon, got, surplus, want)
		}
	}
}

// contains reports whether a place is inside of a closed ring.
func contains(ring []Coordinates, at Coordinates) (inside bool) {
	for i := 1; i < len(ring); i++ {
		a, b := ring[i-1], ring[i]
		if (a[1] > at[1]) != (b[1] > at[1]) && at[0] < (b[0]-a[0])*(at[1]-a[1])/(b[1]-a[1])+a[0] {
			inside = !inside
		}
	}
	return inside
}

// TestHolesBeyondTheLimit: a ring whose edges all reach the latitude of every hole costs holes beyond MaxCrossings, which is said.
func TestHolesBeyondTheLimit(t *testing.T) {
	t.Parallel()
	const edges, more = 10_000, 10
	line := farmdata.LineString{Type: 1}
	for i := range edges {
		line.Points = append(line.Points, farmdata.Point{North: 52 + float64(i%2), East: 7 + float64(i)/edges})
	}
	line.Points = append(line.Points, farmdata.Point{North: 53, East: 9}) // so that it has an area
	field := &farmdata.Field{ID: "PFD1", Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{line}}}}
	for range MaxCrossings/edges + more {
		field.Polygons[0].Rings = append(field.Polygons[0].Rings, ring(2, 7.5, 52.5, 7.6, 52.5, 7.6, 52.6))
	}
	var found []*farmdata.Finding
	c := written(t, Config{Finding: func(f *farmdata.Finding) { found = append(found, f) }}, func(w *Writer) error { return w.Field(field) })
	if len(c.Features) != 1 || len(found) != 1 || found[0].Kind != farmdata.KindLimit || !strings.HasSuffix(found[0].Error(), fmt.Sprintf("more steps than are allowed: %d", more)) {
		t.Errorf("got %d features and %v, want the field, and that it lacks %d holes", len(c.Features), found, more)
	}
}

var errDisk = errors.New("disk full")

type full struct{ left int }

// Write takes what is left.
func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

// TestWriteErrorsEndTheWork: a log is not read to its end when nobody takes it.
func TestWriteErrorsEndTheWork(t *testing.T) {
	t.Parallel()
	read := 0
	endless := func(f func(int) *farmdata.Record) iter.Seq2[*farmdata.Record, error] {
		return func(yield func(*farmdata.Record, error) bool) {
			for i := range 1_000_000 {
				record := f(i)
				record.Number = int64(i)
				if read++; !yield(record, nil) {
					return
				}
			}
		}
	}
	log := &farmdata.Log{Records: endless(func(i int) *farmdata.Record { return at(i, 52, 7+float64(i)/1e6) })}
	for name, write := range map[string]func(*Writer) error{
		"track": func(w *Writer) error { return w.Track(log) }, "points": func(w *Writer) error { return w.Points(log) },
	} {
		w := testkit.Must(NewWriter(&full{10_000}, Config{}))(t)
		read = 0
		if err := write(w); !errors.Is(err, errDisk) || read > 10_000 {
			t.Errorf("%s: %v after %d records", name, err, read)
		}
		if err := w.Close(); !errors.Is(err, errDisk) {
			t.Errorf("%s: Close: %v", name, err)
		}
	}
	c := written(t, Config{}, func(w *Writer) error {
		if err := w.Points(&farmdata.Log{Records: func(yield func(*farmdata.Record, error) bool) { yield(nil, io.ErrUnexpectedEOF) }}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v, want the error of the stream", err)
		}
		return nil
	})
	if len(c.Features) != 0 {
		t.Errorf("features %v", c.Features)
	}
}

// FuzzMultiPolygon: whatever the rings are, what comes out follows the rules.
func FuzzMultiPolygon(f *testing.F) {
	f.Add([]byte{1, 4, 0, 0, 10, 0, 10, 10, 0, 10, 2, 3, 2, 2, 4, 2, 4, 4})
	f.Add([]byte{1, 3, 0, 0, 1, 1, 2, 2})
	f.Add([]byte("000\xeca\xb9x0\xec0"))          // crosses itself, and the 180th meridian
	f.Add([]byte("00\xa5\xfe\xd4000\xa5\xfe0\n")) // crosses the meridian twice in almost one place
	f.Add([]byte{1, 3, 116, 0, 140, 2, 120, 1})   // a line across the meridian that is none from -180 to 180
	f.Fuzz(func(t *testing.T, data []byte) {
		var polygon farmdata.Polygon
		for len(data) > 2 {
			line := farmdata.LineString{Type: int(data[0])}
			n := min(int(data[1]), (len(data)-2)/2)
			for i := range n {
				line.Points = append(line.Points, farmdata.Point{East: float64(int8(data[2+2*i])) * 1.5, North: float64(int8(data[3+2*i]))})
			}
			polygon.Rings = append(polygon.Rings, line)
			data = data[2+2*n:]
		}
		multi, _ := MultiPolygon([]farmdata.Polygon{polygon})
		if Encloses([]farmdata.Polygon{polygon}) != (len(multi) > 0) {
			t.Errorf("got %v, want what Encloses says", multi)
		}
		for _, rings := range multi {
			for i, ring := range rings {
				if len(ring) < 4 || ring[0] != ring[len(ring)-1] {
					t.Errorf("ring %v is not closed", ring)
				}
				if (area(ring[1:]) > 0) != (i == 0) {
					t.Errorf("ring %d of %v goes the wrong way", i, rings)
				}
				for _, at := range ring {
					if math.Abs(at[0]) > 180 || math.Abs(at[1]) > 90 {
						t.Errorf("%v is not on Earth", at)
					}
				}
			}
		}
	})
}

func TestStringsAreEscaped(t *testing.T) {
	t.Parallel()
	field := &farmdata.Field{Designator: "a\"b\\c\n\x00\xff<é", Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{ring(1, 7, 52, 8, 52, 8, 53)}}}}
	c := written(t, Config{}, func(w *Writer) error { return w.Field(field) })
	if got := c.Features[0].Properties["name"]; got != strings.ToValidUTF8(field.Designator, "\ufffd") {
		t.Errorf("%q", got)
	}
}
