package geo_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// twice returns the first key that an object of some JSON has twice; empty if there is none.
func twice(b []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	type object struct {
		keys map[string]bool // nil: a list
		key  bool            // next comes one
	}
	var open []*object
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		if text, ok := token.(string); ok && len(open) > 0 && open[len(open)-1].key {
			at := open[len(open)-1]
			if at.keys[text] {
				return text, nil
			}
			at.keys[text], at.key = true, false
			continue
		}
		switch token {
		case json.Delim('{'):
			open = append(open, &object{map[string]bool{}, true})
			continue
		case json.Delim('['):
			open = append(open, &object{})
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			open[len(open)-1].key = open[len(open)-1].keys != nil
		}
	}
}

// TestKeysOfAnyMap: no feature has a property twice, whatever the columns are called.
func TestKeysOfAnyMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		one := func(list ...string) string { return list[random.IntN(len(list))] }
		ddi := func() farmdata.DDI { return farmdata.DDI(6 + random.IntN(3)) }
		element := func() string { return one("", "DET1", "DET-1", "DET_1", "det1", "DET1_2", "Ä") }
		zone := farmdata.TreatmentZone{Code: 1, Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{around(1, -5, 1, -4, 1, -4, 2)}}}}
		for range random.IntN(5) {
			zone.Values = append(zone.Values, farmdata.ZoneValue{DDI: ddi(), ElementID: element(), ProductID: one("", "PDT1", "PDT2")})
		}
		log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1"}
		for range random.IntN(6) {
			log.Columns = append(log.Columns, farmdata.Column{DDI: ddi(), ElementID: element(), Device: one("", "a"), Unit: one("", "kg/ha", "t/ha", "l"), Scale: 1, PGN: uint32(random.IntN(2))})
		}
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			r := &farmdata.Record{Position: farmdata.Position{North: 1, East: 1, Has: farmdata.HasNorth | farmdata.HasEast}}
			for range random.IntN(8) * min(len(log.Columns), 1) { // damaged data has a column twice
				r.Values = append(r.Values, farmdata.Value{Column: &log.Columns[random.IntN(len(log.Columns))], Raw: 1})
			}
			yield(r, nil)
		}
		if len(log.Columns) > 0 && random.IntN(2) == 0 {
			log.Constants = []farmdata.Value{{Column: &log.Columns[0]}, {Column: &log.Columns[len(log.Columns)-1]}}
		}
		grid := &farmdata.Grid{Type: 1, North: 1, East: 1, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1, Name: "GRD00001", Columns: log.Columns, Cells: func(yield func(*farmdata.Cell, error) bool) {
			cell := &farmdata.Cell{Zone: 1}
			for range random.IntN(5) * min(len(log.Columns), 1) {
				cell.Values = append(cell.Values, farmdata.Value{Column: &log.Columns[random.IntN(len(log.Columns))]})
			}
			yield(cell, nil)
		}}
		set := &farmdata.Set{Logs: []*farmdata.Log{log, log}, Tasks: []farmdata.Task{{ID: "TSK1", FieldID: "PFD1", Zones: []farmdata.TreatmentZone{zone, zone}, Grids: []*farmdata.Grid{grid}}},
			Fields: []farmdata.Field{{ID: "PFD1", Polygons: zone.Polygons}}}
		cfg := geo.Config{Layers: []geo.Layer{geo.Fields, geo.Zones, geo.Grids, geo.Tracks, geo.Points}}
		for range random.IntN(4) {
			cfg.Columns = append(cfg.Columns, geo.Column{DDI: one("", "0006", "7"), Element: one("", "DET1"), As: one("", "a", "A", "a_2", "0006", "0006_DET1", "0007_DET1_2", "b\"c"), Unit: one("", "kg/ha", "t/ha")})
		}
		for range random.IntN(4) {
			cfg.Add = append(cfg.Add, []geo.Attribute{geo.Task, geo.Field, geo.Product, geo.Machine}[random.IntN(4)])
		}
		if cfg.Validate() != nil {
			continue
		}
		var b bytes.Buffer
		if err := geo.Write(&b, set, cfg); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if key, err := twice(b.Bytes()); key != "" || err != nil {
			t.Fatalf("seed %d: %q is there twice, or %v: %s of %+v", seed, key, err, strings.ReplaceAll(b.String(), "\n", " "), fmt.Sprintf("%+v", cfg))
		}
	}
}
