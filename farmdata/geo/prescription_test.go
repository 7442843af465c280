package geo_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"math/big"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// rows are the properties of each cell or zone, and where it is.
type rows []map[string]any

// table is a file: its rows, and its columns of values with what they are.
type table struct {
	rows    rows
	columns map[string]column
}

type column struct{ DDI, Name, Unit, Device string }

// both returns prescription maps as both formats write them, without what is null.
func both(t *testing.T, maps []farmdata.Prescription) map[string]table {
	t.Helper()
	return map[string]table{"GeoJSON": geoJSON(t, maps), "GeoParquet": geoParquet(t, maps)}
}

func geoJSON(t *testing.T, maps []farmdata.Prescription) (out table) {
	t.Helper()
	var b bytes.Buffer
	w, err := geo.NewWriter(&b, geo.Config{})
	for i := range maps {
		if err == nil {
			err = w.Prescription(&maps[i])
		}
	}
	if err == nil {
		err = w.Close()
	}
	var c struct {
		Features []struct {
			Geometry   struct{ Coordinates json.RawMessage }
			Properties map[string]any
		}
		Columns map[string]column
	}
	if err == nil {
		err = json.Unmarshal(b.Bytes(), &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Features {
		f.Properties["at"] = string(f.Geometry.Coordinates)
		delete(f.Properties, "kind")
		out.rows = append(out.rows, known(f.Properties))
	}
	out.columns = c.Columns
	return out
}

// geoParquet has a file for each map.
func geoParquet(t *testing.T, maps []farmdata.Prescription) (out table) {
	t.Helper()
	for i := range maps {
		var b bytes.Buffer
		testkit.NoError(t, geoparquet.WritePrescription(&b, &maps[i], geoparquet.Config{}))
		file := testkit.Must(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
		if described, ok := file.Lookup(geoparquet.ColumnsKey); ok {
			testkit.NoError(t, json.Unmarshal([]byte(described), &out.columns))
		}
		reader := parquet.NewReader(file)
		for {
			row := map[string]any{}
			if err := reader.Read(&row); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			for key, value := range row {
				switch v := value.(type) {
				case int64:
					row[key] = float64(v)
				case []byte:
					row[key] = string(v)
				}
			}
			row["at"] = coordinates(t, []byte(row["geometry"].(string)))
			delete(row, "geometry")
			delete(row, "bbox")
			out.rows = append(out.rows, known(row))
		}
	}
	return out
}

func (r rows) mustBe(t *testing.T, what string, want rows) {
	t.Helper()
	if len(r) != len(want) {
		t.Fatalf("%s: got %d cells, want %d", what, len(r), len(want))
	}
	for i := range want {
		if !maps.Equal(r[i], want[i]) {
			t.Fatalf("%s, cell %d: got\n%v, want\n%v", what, i, r[i], want[i])
		}
	}
}

func known(row map[string]any) map[string]any {
	maps.DeleteFunc(row, func(_ string, v any) bool { return v == nil })
	return row
}

// coordinates reads polygons of WKB.
func coordinates(t *testing.T, wkb []byte) string {
	t.Helper()
	var at func() any
	at = func() any {
		kind, count := binary.LittleEndian.Uint32(wkb[1:]), binary.LittleEndian.Uint32(wkb[5:])
		wkb = wkb[9:]
		parts := []any{}
		for range count {
			if kind == 6 {
				parts = append(parts, at())
				continue
			}
			n := binary.LittleEndian.Uint32(wkb)
			wkb = wkb[4:]
			ring := make([][2]float64, n)
			testkit.Must(binary.Decode(wkb, binary.LittleEndian, ring))(t)
			wkb = wkb[16*n:]
			parts = append(parts, ring)
		}
		return parts
	}
	text, err := json.Marshal(at())
	if err != nil || len(wkb) > 0 {
		t.Fatal(err, wkb)
	}
	return string(text)
}

func prescriptions(t *testing.T, archive []byte) []farmdata.Prescription {
	t.Helper()
	a := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(archive), int64(len(archive)), isoxml.Config{}))(t)
	if len(a.Sets[0].Findings) > 0 {
		t.Fatal(a.Sets[0].Findings)
	}
	return a.Sets[0].Prescriptions()
}

// TestCellsThatCannotBeRead: the error of the reader is that of the map, in both formats.
func TestCellsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	p := &farmdata.Prescription{Grid: &farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 2, Cells: func(yield func(*farmdata.Cell, error) bool) {
		_ = yield(&farmdata.Cell{}, nil) && yield(nil, broken)
	}}}
	testkit.ErrorIs(t, testkit.Must(geo.NewWriter(io.Discard, geo.Config{}))(t).Prescription(p), broken)
	testkit.ErrorIs(t, geoparquet.WritePrescription(io.Discard, p, geoparquet.Config{}), broken)
}

// TestCellsAreThoseOfTheBytes compares every cell of grids of both types, in both formats, with the bytes of their files.
func TestCellsAreThoseOfTheBytes(t *testing.T) {
	t.Parallel()
	list := prescriptions(t, farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskGridOfValues, farmdatatest.TaskGridAgain, farmdatatest.TaskOtherMeaning))
	if len(list) != 3 || len(list[0].Tasks) != 2 || len(list[2].Tasks) != 1 {
		t.Fatalf("got %d maps, want the grid of two tasks, that of one, and the first one by its other meaning", len(list))
	}
	codes, values := farmdatatest.PrescriptionCells()
	var want rows
	row := func(i int, properties map[string]any) {
		maps.Copy(properties, map[string]any{"field": "PFD1", "field_name": "Long acre"})
		maps.Copy(properties, place(t, i, 12, 52.5, 7.4998, 0.0001, 0.0002))
		want = append(want, properties)
	}
	for i, code := range codes {
		zone := map[byte]map[string]any{
			1: {"zone_name": "low", "0006_DET1": 120.0, "product": "PDT1", "product_name": "Urea"},
			2: {"zone_name": "middle", "0006_DET1": 160.0, "product": "PDT1", "product_name": "Urea"},
			3: {"zone_name": "high", "0006_DET1": 220.0, "product": "PDT3"},
		}[code]
		maps.Copy(zone, map[string]any{"grid": "GRD00001", "task": "TSK1; TSK2", "task_name": "Base dressing; Base dressing, rest", "zone": float64(code)})
		row(i, zone)
	}
	for i := range len(values) / 8 {
		first, second := int32(binary.LittleEndian.Uint32(values[8*i:])), int32(binary.LittleEndian.Uint32(values[8*i+4:]))
		row(i, map[string]any{"grid": "GRD00002", "task": "TSK3", "task_name": "Sowing", "zone": 4.0, "product": "PDT2; PDT1", "product_name": "Winter wheat; Urea",
			"0001_DET1": float64(first) / 100, "0006_DET1": float64(second) / 100})
	}
	for i, code := range codes {
		properties := map[string]any{"grid": "GRD00001", "task": "TSK5", "task_name": "Late dressing", "zone": float64(code)}
		if code == 1 {
			properties["0006_DET1"] = 70.0
		}
		row(i, properties)
	}
	columns := map[string]column{
		"0001_DET1": {"0001", "Setpoint volume per area application rate", "mm³/m²", "Spreader"}, // the machine does not describe it
		"0006_DET1": {"0006", "Rate", "kg/ha", "Spreader"},
	}
	for format, got := range both(t, list) {
		if !maps.Equal(got.columns, columns) {
			t.Errorf("%s: got the columns %v, want %v", format, got.columns, columns)
		}
		got.rows.mustBe(t, format, want)
	}
}

// TestGridsAcrossTheMeridian: a cell is cut at 180°, what is beyond it has longitudes below zero, and rounding cuts off nothing.
func TestGridsAcrossTheMeridian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		west, size float64
		want       []string
	}{
		{179.75, 0.5, []string{"[[[[179.75,-17],[180,-17],[180,-16],[179.75,-16],[179.75,-17]]],[[[-180,-17],[-179.75,-17],[-179.75,-16],[-180,-16],[-180,-17]]]]",
			"[[[-179.75,-17],[-179.25,-17],[-179.25,-16],[-179.75,-16],[-179.75,-17]]]"}},
		{179.5, 0.5, []string{"[[[179.5,-17],[180,-17],[180,-16],[179.5,-16],[179.5,-17]]]", "[[[-180,-17],[-179.5,-17],[-179.5,-16],[-180,-16],[-180,-17]]]"}},
		{math.Nextafter(179.5, 180), 0.5, []string{"[[[179.50000000000003,-17],[180,-17],[180,-16],[179.50000000000003,-16],[179.50000000000003,-17]]]",
			"[[[-180,-17],[-179.49999999999997,-17],[-179.49999999999997,-16],[-180,-16],[-180,-17]]]"}},
	} {
		grid := &farmdata.Grid{North: -17, East: tt.west, CellNorth: 1, CellEast: tt.size, Rows: 1, Cols: 2}
		grid.Cells = func(yield func(*farmdata.Cell, error) bool) {
			_ = yield(&farmdata.Cell{}, nil) && yield(nil, &farmdata.Finding{}) && yield(&farmdata.Cell{Col: 1}, nil)
		}
		list := []farmdata.Prescription{{Grid: grid}}
		for format, got := range both(t, list) {
			var at []string
			for _, row := range got.rows {
				at = append(at, row["at"].(string))
			}
			if !slices.Equal(at, tt.want) {
				t.Errorf("%s, cells from %v: got %s, want %s", format, tt.west, at, tt.want)
			}
		}
	}
}

// TestZonesArePolygons: treatment zones with polygons are on the map, with holes, also those without an amount.
func TestZonesArePolygons(t *testing.T) {
	t.Parallel()
	list := prescriptions(t, farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskZones))
	if len(list) != 2 || list[1].Grid != nil {
		t.Fatalf("got %d maps, want a grid and zones", len(list))
	}
	zone := func(code float64, name, at string, more map[string]any) map[string]any {
		row := map[string]any{"task": "TSK4", "task_name": "Liming", "field": "PFD1", "field_name": "Long acre", "zone": code, "zone_name": name, "at": at}
		maps.Copy(row, more)
		return row
	}
	want := rows{
		zone(1, "west", "[[[[7.5001,52.5001],[7.501,52.5001],[7.501,52.5009],[7.5001,52.5008],[7.5001,52.5001]],[[7.5004,52.5004],[7.5006,52.5005],[7.5006,52.5004],[7.5004,52.5004]]]]",
			map[string]any{"0006_DET1": 1500.0, "product": "PDT3"}),
		zone(2, "east", "[[[[7.501,52.5002],[7.5019,52.5002],[7.5019,52.5008],[7.501,52.5009],[7.501,52.5002]]]]", map[string]any{"0006_DET1": 900.0}),
		zone(3, "nothing", "[[[[7.5008,52.50095],[7.5012,52.50095],[7.501,52.50105],[7.5008,52.50095]]]]", nil),
	}
	for format, got := range both(t, list[1:]) {
		if !slices.EqualFunc(got.rows, want, maps.Equal) {
			t.Errorf("%s: got\n%v, want\n%v", format, got.rows, want)
		}
	}
}

// TestZonesWithTheSameCode have names of their own.
func TestZonesWithTheSameCode(t *testing.T) {
	t.Parallel()
	ring := farmdata.LineString{Type: 1, Points: []farmdata.Point{{North: 52, East: 7}, {North: 53, East: 7}, {North: 53, East: 8}}}
	polygons := []farmdata.Polygon{{Rings: []farmdata.LineString{ring}}}
	set := &farmdata.Set{Tasks: []farmdata.Task{{ID: "TSK1", Zones: []farmdata.TreatmentZone{{Code: 1, Designator: "a", Polygons: polygons}, {Code: 1, Designator: "b", Polygons: polygons}}}}}
	for format, got := range both(t, set.Prescriptions()) {
		if got.rows[0]["zone_name"] != "a" || got.rows[1]["zone_name"] != "b" {
			t.Errorf("%s: got %v", format, got)
		}
	}
}

// TestZonesWithoutAPlaceAreFound: nothing is left out of a map without a word.
func TestZonesWithoutAPlaceAreFound(t *testing.T) {
	t.Parallel()
	line := farmdata.LineString{Type: 1, Points: []farmdata.Point{{North: 52, East: 7}, {North: 53, East: 7}}}
	p := &farmdata.Prescription{Zones: []farmdata.PrescribedZone{{TreatmentZone: &farmdata.TreatmentZone{Code: 3, Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{line}}}}}}}
	var found []string
	note := func(f *farmdata.Finding) { found = append(found, f.Error()) }
	w, err := geo.NewWriter(io.Discard, geo.Config{Finding: note})
	if err == nil {
		err = errors.Join(w.Prescription(p), w.Close(), geoparquet.WritePrescription(io.Discard, p, geoparquet.Config{Finding: note}))
	}
	if want := "position: treatment zone 3 has no place on Earth: no map shows it"; err != nil || !slices.Equal(found, []string{want, want}) {
		t.Errorf("got %q, %v, want twice %s", found, err, want)
	}
}

// Zones without polygons are on no map, which says so once for a task: those that are for other places than the cells of a grid, and all of a
// task without a grid.
func TestZonesElsewhereAreFound(t *testing.T) {
	t.Parallel()
	archive := farmdatatest.Prescriptions(t, farmdatatest.TaskZones, farmdatatest.TaskElsewhere, farmdatatest.TaskOneRate)
	opened := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(archive), int64(len(archive)), isoxml.Config{}))(t)
	set := opened.Sets[0]
	const of = "unsupported: treatment zones without polygons, which no map shows: "
	grid, one := "TSK6: "+of+"2; zone 1, default, position lost; zone 9, outside", "TSK7: "+of+"1; zone 1, default"
	var found []string
	cfg := geo.Config{Finding: func(f *farmdata.Finding) { found = append(found, f.Error()) }}
	layer := func(layer geo.Layer) geo.Config {
		cfg.Layers = []geo.Layer{layer}
		return cfg
	}
	for name, tt := range map[string]struct {
		write func() error
		want  []string
	}{
		"GeoJSON":                     {func() error { return geo.Write(io.Discard, set, cfg) }, []string{grid, one}},
		"GeoJSON of tracks":           {func() error { return geo.Write(io.Discard, set, layer(geo.Tracks)) }, nil},
		"GeoParquet of grids":         {func() error { return geoparquet.Write(io.Discard, set, layer(geo.Grids)) }, []string{grid, one}},
		"GeoParquet of a grid":        {func() error { return geoparquet.WritePrescription(io.Discard, &set.Prescriptions()[1], cfg) }, []string{grid}},
		"GeoParquet of zones of TSK4": {func() error { return geoparquet.WritePrescription(io.Discard, &set.Prescriptions()[0], cfg) }, nil},
	} {
		found, cfg.Layers = nil, nil
		if err := tt.write(); err != nil || !slices.Equal(found, tt.want) {
			t.Errorf("%s: %v, found %q, want %q", name, err, found, tt.want)
		}
	}
}

// place is where a cell of a grid is that is so many cells wide.
func place(t *testing.T, cell, columns int, south, west, height, width float64) map[string]any {
	t.Helper()
	row, col := float64(cell/columns), float64(cell%columns)
	s, w, n, e := south+row*height, west+col*width, south+(row+1)*height, west+(col+1)*width
	at := testkit.Must(json.Marshal([][][2]float64{{{w, s}, {e, s}, {e, n}, {w, n}, {w, s}}}))(t)
	return map[string]any{"row": row, "column": col, "at": string(at)}
}

// TestRealGridsAreThoseOfTheirBytes compares the cells of real grids of type 2, in both formats, with their files, whose values are
// 4 bytes each, and with the attributes of their element.
func TestRealGridsAreThoseOfTheirBytes(t *testing.T) {
	t.Parallel()
	grids := 0
	for _, name := range farmdatatest.Files(t, "../..", "farm/*.zip") {
		archive := testkit.Must(os.ReadFile(name))(t)
		a, err := isoxml.Open(t.Context(), bytes.NewReader(archive), int64(len(archive)), isoxml.Config{})
		if err != nil {
			continue // no TaskData
		}
		for _, set := range a.Sets {
			for _, p := range set.Prescriptions() {
				if p.Grid == nil || p.Grid.Type != 2 {
					continue
				}
				want := realCells(t, archive, set.Path, p.Grid)
				for format, got := range both(t, []farmdata.Prescription{p}) {
					what := name + ", " + p.Grid.Name + ", " + format
					if !maps.Equal(got.columns, want.columns) {
						t.Errorf("%s: got the columns %v, want %v", what, got.columns, want.columns)
					}
					for _, row := range got.rows { // also have the task, the field and so on
						maps.DeleteFunc(row, func(key string, _ any) bool { return want.rows[0][key] == nil })
					}
					got.rows.mustBe(t, what, want.rows)
				}
				grids++
			}
		}
	}
	if grids == 0 {
		t.Error("no grids in real files")
	}
}

// realCells are the place and the values of each cell, by the main file and the grid's own.
func realCells(t *testing.T, archive []byte, folder string, grid *farmdata.Grid) table {
	t.Helper()
	want := table{columns: map[string]column{}}
	var element []byte
	for _, found := range regexp.MustCompile(`<GRD [^>]*>`).FindAll(entry(t, archive, path.Join(folder, "TASKDATA.XML")), -1) {
		if bytes.Contains(found, []byte(`G="`+grid.Name+`"`)) {
			element = found
		}
	}
	number := func(attribute string) float64 {
		value := regexp.MustCompile(` ` + attribute + `="([^"]*)"`).FindSubmatch(element)
		if value == nil {
			t.Fatalf("no %s in %s", attribute, element)
		}
		return testkit.Must(strconv.ParseFloat(string(value[1]), 64))(t)
	}
	bin, inRow, cells := entry(t, archive, path.Join(folder, grid.Name+".BIN")), int(number("E")), int(number("E")*number("F"))
	if len(bin) != 4*cells*len(grid.Columns) {
		t.Fatalf("%d bytes for %d cells of %d values", len(bin), cells, len(grid.Columns))
	}
	for i := range cells {
		row := place(t, i, inRow, number("A"), number("B"), number("C"), number("D"))
		var keys geo.Keys
		for j := range grid.Columns {
			c := &grid.Columns[j]
			raw := int32(binary.LittleEndian.Uint32(bin[4*(i*len(grid.Columns)+j):]))
			exact, _ := new(big.Rat).SetString(strconv.FormatFloat(c.Scale, 'f', -1, 64))
			exact.Mul(exact, new(big.Rat).SetInt64(int64(raw)+c.Offset))
			row[keys.Name(c)], _ = exact.Float64()
			want.columns[keys.Name(c)] = column{c.DDI.String(), c.Name, c.Unit, c.Device}
		}
		want.rows = append(want.rows, row)
	}
	return want
}

// entry returns a file of an archive.
func entry(t *testing.T, archive []byte, name string) []byte {
	t.Helper()
	r := testkit.Must(zip.NewReader(bytes.NewReader(archive), int64(len(archive))))(t)
	for _, f := range r.File {
		if strings.EqualFold(f.Name, name) {
			content := testkit.Must(f.Open())(t)
			return testkit.Must(io.ReadAll(content))(t)
		}
	}
	t.Fatalf("no %s", name)
	return nil
}
