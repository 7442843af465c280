package geoparquet

import (
	"io"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// TestBoxHasTheOrderOfTheFormat: GeoParquet 1.1 asks for xmin, ymin, xmax, ymax, in every kind of file.
func TestBoxHasTheOrderOfTheFormat(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(io.Writer) error{
		"fields": func(w io.Writer) error { return writeFields(w, nil, Config{}) },
		"points": func(w io.Writer) error {
			return writePoints(w, []*farmdata.Log{{Records: func(yield func(*farmdata.Record, error) bool) { yield(at(0, 52, 7), nil) }}}, Config{})
		},
		"tracks": func(w io.Writer) error { return writeTracks(w, nil, Config{}) },
		"grid": func(w io.Writer) error {
			return WritePrescription(w, &farmdata.Prescription{Grid: gridOf(52)}, Config{})
		},
	} {
		var got []string
		for _, column := range written(t, write).Schema().Columns() {
			if column[0] == "bbox" {
				got = append(got, column[1])
			}
		}
		if want := []string{"xmin", "ymin", "xmax", "ymax"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// gridOf makes a grid of two cells in zones of their own, at a latitude.
func gridOf(north float64) *farmdata.Grid {
	return &farmdata.Grid{Type: 1, North: north, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 2, Cells: func(yield func(*farmdata.Cell, error) bool) {
		for i := range int64(2) {
			if !yield(&farmdata.Cell{Col: i, Zone: int(i), Values: []farmdata.Value{{Column: &farmdata.Column{DDI: 6, Scale: 1}, Raw: 5 + i}}}, nil) {
				return
			}
		}
		yield(nil, &farmdata.Finding{Kind: farmdata.KindCut})
	}}
}

// TestGridsOfZones: cells of type 1 have the rates of their zones, also if the grid does not say its columns, and a grid
// without a place has a finding instead of rows.
func TestGridsOfZones(t *testing.T) {
	t.Parallel()
	var found []farmdata.Kind
	cfg := Config{Finding: func(f *farmdata.Finding) { found = append(found, f.Kind) }}
	f := written(t, func(w io.Writer) error { return WritePrescription(w, &farmdata.Prescription{Grid: gridOf(52)}, cfg) })
	if len(f.rows) != 2 || f.rows[0]["0006"] != 5.0 || f.rows[1]["0006"] != 6.0 || !slices.Equal(found, []farmdata.Kind{farmdata.KindCut}) {
		t.Errorf("got %v and findings %v, want the rates 5 and 6, and one finding", f.rows, found)
	}
	found = nil
	f = written(t, func(w io.Writer) error { return WritePrescription(w, &farmdata.Prescription{Grid: gridOf(90)}, cfg) })
	if len(f.rows) != 0 || !slices.Equal(found, []farmdata.Kind{farmdata.KindPosition}) {
		t.Errorf("beyond the pole: got %v and findings %v, want none, and one", f.rows, found)
	}
}

// TestTooManyColumns: a map whose zones have ever other values is refused before it takes memory.
func TestTooManyColumns(t *testing.T) {
	t.Parallel()
	line := farmdata.LineString{Type: 1, Points: []farmdata.Point{{North: 52, East: 7}, {North: 53, East: 7}, {North: 53, East: 8}}}
	zone := farmdata.TreatmentZone{Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{line}}}}
	for i := range MaxColumns {
		zone.Values = append(zone.Values, farmdata.ZoneValue{DDI: farmdata.DDI(i)})
	}
	set := &farmdata.Set{Tasks: []farmdata.Task{{ID: "TSK1", Zones: []farmdata.TreatmentZone{zone}}}}
	for _, few := range []bool{false, true} {
		cfg := Config{Layers: []geo.Layer{geo.Zones}}
		if few {
			cfg.Columns = []geo.Column{{DDI: "0006"}}
		}
		if err := Write(io.Discard, set, cfg); (err == nil) != few {
			t.Errorf("with one column %t: got %v", few, err)
		}
	}
}
