package geo

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// TestOneColumnForOneMeaning: what means the same in other zones, grids and logs has one name; what is there twice in one
// log, or means something else, has names that differ.
func TestOneColumnForOneMeaning(t *testing.T) {
	t.Parallel()
	rate := func() *farmdata.Column { return &farmdata.Column{DDI: 6, ElementID: "DET-1", Unit: "kg/ha", Scale: 1} }
	can := func(pgn uint32, start, stop uint8) *farmdata.Column {
		return &farmdata.Column{DDI: farmdata.DDIPGN, ElementID: "DET-1", PGN: pgn, StartBit: start, StopBit: stop}
	}
	for name, tt := range map[string]struct {
		logs [][]*farmdata.Column
		want []string
	}{
		"zones":           {[][]*farmdata.Column{{rate()}, {rate()}, {rate()}}, []string{"0006_DET-1", "0006_DET-1", "0006_DET-1"}},
		"twice in a log":  {[][]*farmdata.Column{{rate(), rate()}, {rate(), rate()}}, []string{"0006_DET-1", "0006_DET-1_2", "0006_DET-1", "0006_DET-1_2"}},
		"another unit":    {[][]*farmdata.Column{{rate()}, {{DDI: 6, ElementID: "DET-1", Unit: "L/ha"}}}, []string{"0006_DET-1", "0006_DET-1_2"}},
		"another element": {[][]*farmdata.Column{{rate()}, {{DDI: 6, ElementID: "DET-2", Unit: "kg/ha"}}}, []string{"0006_DET-1", "0006_DET-2"}},
		"another device":  {[][]*farmdata.Column{{rate()}, {{DDI: 6, ElementID: "DET-1", Unit: "kg/ha", Device: "sprayer"}}}, []string{"0006_DET-1", "0006_DET-1_2"}},
		"CAN messages":    {[][]*farmdata.Column{{can(65267, 0, 31), can(65267, 32, 63), can(65256, 0, 31)}}, []string{"DFFE_65267_0-31_DET-1", "DFFE_65267_32-63_DET-1", "DFFE_65256_0-31_DET-1"}},
		"CAN of two logs": {[][]*farmdata.Column{{can(65267, 0, 31)}, {can(65267, 0, 31)}}, []string{"DFFE_65267_0-31_DET-1", "DFFE_65267_0-31_DET-1"}},
	} {
		var keys Keys
		var got []string
		for _, log := range tt.logs {
			keys.Begin()
			for _, column := range log {
				got = append(got, keys.Name(column))
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		for _, log := range tt.logs { // those of one log differ, whatever came before
			keys.Begin()
			seen := map[string]bool{}
			for _, column := range slices.Backward(log) {
				seen[keys.Name(column)] = true
			}
			if len(seen) != len(log) {
				t.Errorf("%s: got %v of %d columns", name, seen, len(log))
			}
		}
		if names := slices.Compact(slices.Sorted(slices.Values(got))); len(keys.Descriptions()) != len(names) {
			t.Errorf("%s: got %d descriptions of %q", name, len(keys.Descriptions()), names)
		}
	}
}

// TestNamesOfOnesOwn stay with what they were given to first, whatever order columns of other logs and zones come in.
func TestNamesOfOnesOwn(t *testing.T) {
	t.Parallel()
	rate := func(element, device string) *farmdata.Column {
		return &farmdata.Column{DDI: 6, ElementID: element, DeviceID: device, Unit: "kg/ha", Scale: 1}
	}
	left, right, other := rate("DET-1", "DVC-1"), rate("DET-2", "DVC-1"), rate("DET-9", "DVC-2")
	keys := Keys{Select: []Column{{DDI: "0006", As: "rate"}}}
	for _, tt := range []struct {
		columns []*farmdata.Column
		want    string
	}{
		{[]*farmdata.Column{left, right}, "rate rate_2"},
		{[]*farmdata.Column{right, left}, "rate_2 rate"},
		{[]*farmdata.Column{right}, "rate_2"},
		{[]*farmdata.Column{rate("DET-2", "DVC-1"), rate("DET-2", "DVC-1"), left}, "rate_2 rate rate_3"}, // twice, which is damage
		{[]*farmdata.Column{other}, "rate"},
		{[]*farmdata.Column{right, other, left}, "rate_2 rate rate_3"},
	} {
		keys.Begin()
		var got []string
		for _, column := range tt.columns {
			got = append(got, keys.Name(column))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("got %q, want %s", got, tt.want)
		}
	}
	log := &farmdata.Log{Columns: []farmdata.Column{*rate("DET-3", "DVC-3"), *rate("DET-4", "DVC-3")}}
	keys.BeginLog(log)
	if got := keys.Name(&log.Columns[1]); got != "rate_2" {
		t.Errorf("got %s for the second column of a log whose first one has no value yet", got)
	}
}

// TestMachinesThatStandStill are points, and those that stop on their way lines.
func TestMachinesThatStandStill(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		log  *farmdata.Log
		want []string
	}{
		"one record":          {logOf(at(0, 52, 7)), []string{"Point[7,52]"}},
		"two":                 {logOf(at(0, 52, 7), at(1, 52, 7)), []string{"Point[7,52]"}},
		"starts later":        {logOf(at(0, 52, 7), at(1, 52, 7), at(2, 52, 8)), []string{"LineString[[7,52],[8,52]]"}},
		"stops":               {logOf(at(0, 52, 7), at(1, 52, 8), at(2, 52, 8)), []string{"LineString[[7,52],[8,52],[8,52]]"}},
		"still behind a gap":  {logOf(at(0, 52, 7), at(1, 52, 8), at(900, 52, 8), at(901, 52, 8)), []string{"LineString[[7,52],[8,52]]", "Point[8,52]"}},
		"still before a line": {logOf(at(0, 52, 7), at(1, 52, 7), at(900, 52, 7), at(901, 52, 8)), []string{"Point[7,52]", "LineString[[7,52],[8,52]]"}},
	} {
		c := written(t, Config{}, func(w *Writer) error { return w.Track(tt.log) })
		var got []string
		for _, f := range c.Features {
			got = append(got, f.Geometry.Type+string(f.Geometry.Coordinates))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	c := written(t, Config{}, func(w *Writer) error { return w.Track(logOf(at(0, 52, 7), at(1, 52, 7), at(2, 52, 7))) })
	if got := c.Features[0].Properties["records"]; got != 3.0 {
		t.Errorf("got %v records, want 3", got)
	}
}

var nan = math.NaN()

// TestPlacesThatAreNone says of each part of a map what becomes of coordinates that are none: nothing of them is written, the
// rest is.
func TestPlacesThatAreNone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		grid  farmdata.Grid
		cells int
	}{
		"a grid":           {farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}, 1},
		"to the pole":      {farmdata.Grid{North: 89, East: 179, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}, 1},
		"no corner":        {farmdata.Grid{CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}, 0},
		"no size of cells": {farmdata.Grid{North: 52, East: 7, CellNorth: 1, Rows: 1, Cols: 1}, 0},
		"NaN":              {farmdata.Grid{North: nan, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}, 0},
		"cells of NaN":     {farmdata.Grid{North: 52, East: 7, CellNorth: nan, CellEast: 1, Rows: 1, Cols: 1}, 0},
		"no columns":       {farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: 1}, 0},
		"rows below zero":  {farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: -1, Cols: 1}, 0},
		"over 180°":        {farmdata.Grid{North: 52, East: 179.5, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}, 1},
		"around the world": {farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 361, Rows: 1, Cols: 1}, 0},
	} {
		tt.grid.Cells = func(yield func(*farmdata.Cell, error) bool) { yield(&farmdata.Cell{}, nil) }
		var found []*farmdata.Finding
		c := written(t, Config{Finding: func(f *farmdata.Finding) { found = append(found, f) }}, func(w *Writer) error { return w.Prescription(&farmdata.Prescription{Grid: &tt.grid}) })
		if len(c.Features) != tt.cells || len(found) != 1-tt.cells {
			t.Errorf("%s: got %d cells and findings %v, want %d, and a finding without", name, len(c.Features), found, tt.cells)
		}
	}
	good := []float64{7, 52, 8, 52, 8, 53}
	for name, bad := range map[string][2]float64{"nowhere": {0, 0}, "NaN": {nan, 52}, "beyond the pole": {7, 90.5}, "beyond 180°": {-181, 52}} {
		field := &farmdata.Field{Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{ring(1, append([]float64{bad[0], bad[1]}, good...)...)}}}}
		c := written(t, Config{}, func(w *Writer) error { return w.Field(field) })
		if got := string(c.Features[0].Geometry.Coordinates); got != "[[[[7,52],[8,52],[8,53],[7,52]]]]" || c.Features[0].Properties["area"] != nil {
			t.Errorf("%s: got %s and area %v, want the other corners, and no area", name, got, c.Features[0].Properties["area"])
		}
	}
	for name, bad := range map[string][]float64{"none": nil, "all of them bad": {0, 0, nan, 52, 7, 91}, "two are good": {7, 52, 8, 52, 0, 0}, "the same one": {7, 52, 7, 52, 7, 52}} {
		field := &farmdata.Field{ID: "PFD1", Area: 100, Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{ring(1, bad...)}}}}
		c := written(t, Config{}, func(w *Writer) error { return w.Field(field) })
		if len(c.Features) != 0 {
			t.Errorf("corners, %s: got %s, want no polygon", name, c.Features[0].Geometry.Coordinates)
		}
	}
}
