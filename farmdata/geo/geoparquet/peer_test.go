//go:build peer

package geoparquet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/internal/testkit"
)

// pythonOfPeers is the Python that the variable PYTHON names, otherwise python3.
func pythonOfPeers() string { return cmp.Or(os.Getenv("PYTHON"), "python3") }

// peerFiles writes a file of each layer, and one that the 180th meridian cuts.
func peerFiles(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	create := func(name string, write func(f *os.File) error) string {
		f := testkit.Must(os.Create(filepath.Join(dir, name)))(t)
		defer f.Close()
		testkit.NoError(t, write(f))
		return f.Name()
	}
	columns := []farmdata.Column{{DDI: 0x43, ElementID: "DET-1", Unit: "m", Scale: 0.001}}
	log := &farmdata.Log{Columns: columns, Records: func(yield func(*farmdata.Record, error) bool) {
		for i := range int64(1000) {
			if !yield(at(i, 52+float64(i)/1000, 7+float64(i)/1000, farmdata.Value{Column: &columns[0], Raw: i}), nil) {
				return
			}
		}
	}}
	square := func(kind int, from, to float64) farmdata.LineString {
		return farmdata.LineString{Type: kind, Points: []farmdata.Point{{East: from, North: from}, {East: from, North: to}, {East: to, North: to}, {East: to, North: from}}}
	}
	fields := []farmdata.Field{{ID: "PFD1", Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{square(1, 10, 20), square(2, 12, 14)}}}}}
	grid := &farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 2, Cells: func(yield func(*farmdata.Cell, error) bool) {
		_ = yield(&farmdata.Cell{}, nil) && yield(&farmdata.Cell{Col: 1}, nil)
	}}
	set := &farmdata.Set{Logs: []*farmdata.Log{log}, Tasks: []farmdata.Task{{ID: "TSK1",
		Zones: []farmdata.TreatmentZone{{Code: 1, Values: []farmdata.ZoneValue{{DDI: 6, Raw: 5}}, Polygons: fields[0].Polygons}}}}}
	return []string{
		create("points.parquet", func(f *os.File) error {
			return Write(f, set, Config{Layers: []geo.Layer{geo.Points}, Add: []geo.Attribute{geo.Field}, Columns: []geo.Column{{DDI: "0043", As: "width", Unit: "mm"}}})
		}),
		create("fields.parquet", func(f *os.File) error { return writeFields(f, fields, Config{}) }),
		create("meridian.parquet", func(f *os.File) error {
			line := farmdata.LineString{Type: 1, Points: []farmdata.Point{{East: 179, North: 1}, {East: -179, North: 1}, {East: -179, North: 2}, {East: 179.5, North: 1.5}, {East: 179, North: 2}}}
			return writeFields(f, []farmdata.Field{{ID: "PFD1", Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{line}}}}}, Config{})
		}),
		create("grid.parquet", func(f *os.File) error { return WritePrescription(f, &farmdata.Prescription{Grid: grid}, Config{}) }),
		create("zones.parquet", func(f *os.File) error { return Write(f, set, Config{Layers: []geo.Layer{geo.Zones}}) }),
		create("tracks.parquet", func(f *os.File) error { return Write(f, set, Config{Layers: []geo.Layer{geo.Tracks}}) }),
	}
}

// TestPeerOpensFiles opens files with GeoPandas and DuckDB.
func TestPeerOpensFiles(t *testing.T) {
	python := pythonOfPeers()
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import geopandas, duckdb").CombinedOutput(); err != nil {
		t.Skipf("GEOPANDAS OR DUCKDB IS ABSENT, FILES ARE NOT OPENED WITH THEM: %s (set PYTHON): %v: %s", python, err, out)
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/open.py"}, peerFiles(t)...)...)
	cmd.Stderr = os.Stderr
	out := testkit.Must(cmd.Output())(t)
	decoder := json.NewDecoder(bytes.NewReader(out))
	for _, want := range []struct {
		rows, half int
		bounds     []float64
		kind, time string
		units      map[string]string
	}{
		{1000, 500, []float64{7, 52, 7.999, 52.999}, "Point", "datetime64[us]", map[string]string{"width": "mm"}},
		{1, 1, []float64{10, 10, 20, 20}, "MultiPolygon", "", nil},
		{1, 1, []float64{-180, 1, 180, 2}, "MultiPolygon", "", nil},
		{2, 2, []float64{7, 52, 9, 53}, "Polygon", "", nil},
		{1, 1, []float64{10, 10, 20, 20}, "MultiPolygon", "", map[string]string{"0006": "mg/m²"}},
		{1, 1, []float64{7, 52, 7.999, 52.999}, "LineString", "", nil},
	} {
		var got struct {
			Rows, Half int
			CRS, Time  string
			Bounds     []float64
			Valid      bool
			Types      []string
			DuckDB     []float64
			Units      map[string]string
		}
		testkit.NoError(t, decoder.Decode(&got))
		if got.Rows != want.rows || got.Half != want.half || got.CRS != "OGC:CRS84" || !slices.Equal(got.Bounds, want.bounds) || !got.Valid ||
			!slices.Equal(got.Types, []string{want.kind}) || got.Time != want.time || !maps.Equal(got.Units, want.units) ||
			!slices.Equal(got.DuckDB, []float64{float64(want.rows), want.bounds[0], want.bounds[3]}) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestPeerValidatesFiles has files checked by two validators, geoparquet-validator and gpio of geoparquet-io, that are beside Python
// or in PATH.
func TestPeerValidatesFiles(t *testing.T) {
	for _, args := range [][]string{{"geoparquet-validator", "check"}, {"gpio", "check", "spec", "--skip-data-validation"}} {
		t.Run(args[0], func(t *testing.T) {
			python, err := exec.LookPath(pythonOfPeers())
			program := filepath.Join(filepath.Dir(python), args[0])
			if err == nil {
				_, err = exec.LookPath(program)
			}
			if err != nil {
				program, err = exec.LookPath(args[0])
			}
			if err != nil {
				t.Skipf("A VALIDATOR IS ABSENT, FILES ARE NOT CHECKED WITH IT: %v (set PYTHON)", err)
			}
			for _, file := range peerFiles(t) {
				if out, err := exec.CommandContext(t.Context(), program, append(args[1:], file)...).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", filepath.Base(file), err, out)
				}
			}
		})
	}
}
