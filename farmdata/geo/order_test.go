package geo_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
	"github.com/agrimill/agrimill/internal/testkit"
)

// feature is a feature of a map: its properties, without what is null, and the names of all of them.
type feature struct {
	properties map[string]any
	names      []string
}

// written returns the features of a set, and what the columns are, in both formats.
func written(t *testing.T, set *farmdata.Set, cfg geo.Config) map[string][]feature {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, geo.Write(&b, set, cfg))
	var c struct {
		Features []struct{ Properties map[string]any }
	}
	testkit.NoError(t, json.Unmarshal(b.Bytes(), &c))
	var all []feature
	for _, f := range c.Features {
		delete(f.Properties, "kind")
		all = append(all, feature{names: slices.Sorted(maps.Keys(f.Properties)), properties: known(f.Properties)})
	}
	out := map[string][]feature{"GeoJSON": all}
	b.Reset()
	testkit.NoError(t, geoparquet.Write(&b, set, cfg))
	reader := parquet.NewReader(bytes.NewReader(b.Bytes()))
	for {
		row := map[string]any{}
		if err := reader.Read(&row); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(row))
		for _, other := range []string{"geometry", "bbox", "utc"} { // which GeoJSON has not, or elsewhere
			delete(row, other)
		}
		for key, value := range row {
			switch v := value.(type) {
			case int64:
				row[key] = float64(v)
			case int32:
				row[key] = float64(v)
			}
		}
		out["GeoParquet"] = append(out["GeoParquet"], feature{known(row), names})
	}
}

// harvest is a set of two logs of two combines, each with a yield in a unit of its own, and everything that they refer to.
func harvest() *farmdata.Set {
	columns := [][]farmdata.Column{
		{{DDI: 0x54, ElementID: "DET1", Element: "Header", DeviceID: "DVC1", Device: "Combine", Name: "Yield", Unit: "t/ha", Scale: 1e-5},
			{DDI: 0x54, ElementID: "DET2", Element: "Left", DeviceID: "DVC1", Device: "Combine", Name: "Yield", Unit: "t/ha", Scale: 1e-5},
			{DDI: farmdata.DDIPGN, ElementID: "DET1", DeviceID: "DVC1", PGN: 65267, StopBit: 31, Scale: 1}},
		{{DDI: 0x54, ElementID: "DET7", Element: "Header", DeviceID: "DVC2", Device: "Other", Name: "Masse", Unit: "mg/m²", Scale: 1},
			{DDI: 0xBF, ElementID: "DET7", DeviceID: "DVC2", Device: "Other", Name: "Temperature", Unit: "mK", Scale: 1},
			{DDI: 0xE000, ElementID: "DET7", DeviceID: "DVC2", Device: "Other", Name: "Secret", Unit: "bushel", Scale: 1}},
	}
	set := &farmdata.Set{
		Fields:    []farmdata.Field{{ID: "PFD1", Designator: "Long acre", FarmID: "FRM1", Area: 7, Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{Type: 1, Points: []farmdata.Point{{North: 52, East: 7}, {North: 52, East: 8}, {North: 53, East: 7}}}}}}}},
		Farms:     []farmdata.Farm{{ID: "FRM1", Designator: "Hill farm", CustomerID: "CTR1"}},
		Customers: []farmdata.Customer{{ID: "CTR1", FirstName: "Ada", LastName: "Miller"}},
		Products:  []farmdata.Product{{ID: "PDT1", Designator: "Wheat"}, {ID: "PDT2", Designator: "Straw"}},
		Devices:   []farmdata.Device{{ID: "DVC1", Designator: "Combine"}, {ID: "DVC2", Designator: "Other"}, {ID: "DVC3", Designator: "Cart"}},
		Workers:   []farmdata.Worker{{ID: "WKR1", LastName: "Smith"}},
		Tasks: []farmdata.Task{
			{ID: "TSK1", Designator: "Harvest", FieldID: "PFD1", WorkerID: "WKR1", Products: []farmdata.ProductAllocation{{ProductID: "PDT1"}, {ProductID: "PDT2"}, {ProductID: "PDT1"}},
				Devices: []farmdata.DeviceAllocation{{DeviceID: "DVC1"}, {DeviceID: "DVC3"}}},
			{ID: "TSK2", CustomerID: "CTR9"},
		},
	}
	at := func(number int64, values ...farmdata.Value) *farmdata.Record {
		return &farmdata.Record{Number: number, Stamp: farmdata.Stamp{Wall: time.Date(2026, 8, 1, 12, 0, int(number), 0, time.UTC), Local: true}, Values: values,
			Position: farmdata.Position{North: 52, East: 7, Has: farmdata.HasNorth | farmdata.HasEast}}
	}
	log := func(name, task string, columns []farmdata.Column, records ...*farmdata.Record) {
		set.Logs = append(set.Logs, &farmdata.Log{Name: name, TaskID: task, Columns: columns, Records: func(yield func(*farmdata.Record, error) bool) {
			for _, record := range records {
				if !yield(record, nil) {
					return
				}
			}
		}})
	}
	value := func(log, column int, raw int64) farmdata.Value {
		return farmdata.Value{Column: &columns[log][column], Raw: raw}
	}
	log("TLG00001", "TSK1", columns[0], at(0, value(0, 0, 850_000), value(0, 1, 400_000), value(0, 2, 5)), at(1, value(0, 2, 6)))
	log("TLG00002", "TSK2", columns[1], at(0, value(1, 0, 700_000), value(1, 1, 293_150)))
	log("TLG00003", "", nil, at(0, value(1, 0, 100_000))) // whose columns are known once it is read
	// What a log has once is of each record, unless that has its own.
	set.Logs[0].Constants, set.Logs[1].Constants = []farmdata.Value{value(0, 2, 9)}, []farmdata.Value{value(1, 2, 3)}
	return set
}

// TestColumnsToOrder: what is selected by DDI, element, PGN and name has names and units of one's own, in each feature, null where
// there is none.
func TestColumnsToOrder(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		columns []geo.Column
		want    string // the properties of each point, without those that are the same in all tests
		found   string
	}{
		"all": {nil, "0054_DET1=8.5 0054_DET2=4 DFFE_65267_0-31_DET1=5, DFFE_65267_0-31_DET1=6, 0054_DET7=700000 00BF_DET7=293150 E000_DET7=3, 0054_DET7=100000", ""},
		"a yield map": {[]geo.Column{{DDI: "0054", Element: "Header", As: "yield", Unit: "t/ha"}},
			"yield=8.5, yield=null, yield=7, yield=1", ""},
		"one unit": {[]geo.Column{{DDI: "54", As: "yield", Unit: "kg/ha"}},
			"yield=8500 yield_2=4000, yield=null, yield=7000, yield=1000", ""},
		"the unit of each": {[]geo.Column{{DDI: "0054", As: "yield"}}, "yield=8.5 yield_2=4, yield=null, yield=null yield_3=700000, yield=null yield_3=100000", ""},
		"name":             {[]geo.Column{{Name: "Yield"}}, "0054_DET1=8.5 0054_DET2=4, , , ", ""},
		"PGN":              {[]geo.Column{{PGN: 65267, As: "Speed"}}, "Speed=5, Speed=6, Speed=null, Speed=null", ""},
		"the first counts": {[]geo.Column{{Element: "DET2", As: "left"}, {DDI: "0054"}}, "left=4 0054_DET1=8.5, left=null, left=null 0054_DET7=700000, left=null 0054_DET7=100000", ""},
		"a shifted unit":   {[]geo.Column{{DDI: "00BF", As: "warmth", Unit: "°C"}}, "warmth=null, warmth=null, warmth=20, warmth=null", ""},
		"not to convert": {[]geo.Column{{Name: "Secret", As: "x", Unit: "t/ha"}, {DDI: "0054", Element: "DET1", As: "yield"}},
			"x=null yield=8.5, x=null yield=null, x=null yield=null, x=null yield=null",
			`unsupported: values of E000_DET7 that are in "bushel" cannot be converted to "t/ha" and are left out`},
		"a name that looks like a second one": {[]geo.Column{{DDI: "54", As: "yield", Unit: "kg/ha"}, {DDI: "00BF", As: "yield_2"}, {PGN: 65267, As: "00BF_DET7"}},
			"yield=8500 yield_3=4000 yield_2=null 00BF_DET7=5, yield=null yield_2=null 00BF_DET7=6, yield=7000 yield_2=293150 00BF_DET7=null, yield=1000 yield_2=null 00BF_DET7=null", ""},
		"nothing": {[]geo.Column{{DDI: "0001"}}, ", , , ", ""},
	} {
		var found []string
		cfg := geo.Config{Layers: []geo.Layer{geo.Points}, Columns: tt.columns, Finding: func(f *farmdata.Finding) { found = append(found, f.Error()) }}
		for format, features := range written(t, harvest(), cfg) {
			var want, got []string
			for point := range strings.SplitSeq(tt.want, ", ") {
				texts := strings.Fields(point)
				if format == "GeoParquet" { // which has every column in every row
					texts = slices.DeleteFunc(texts, func(s string) bool { return strings.HasSuffix(s, "=null") })
				}
				slices.Sort(texts)
				want = append(want, strings.Join(texts, " "))
			}
			for _, f := range features {
				var texts []string
				for _, name := range f.names {
					if slices.Contains([]string{"log", "task", "record", "time", "utc", "up", "status", "pdop", "hdop", "satellites", "field_status", "geometry", "bbox"}, name) {
						continue
					}
					v, there := f.properties[name]
					if number, ok := v.(float64); ok {
						v = math.Round(number*1e6) / 1e6
					}
					switch {
					case there:
						texts = append(texts, fmt.Sprintf("%s=%v", name, v))
					case format == "GeoJSON":
						texts = append(texts, name+"=null")
					}
				}
				slices.Sort(texts)
				got = append(got, strings.Join(texts, " "))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s: got %q, want %q", name, format, got, want)
			}
		}
		if got := strings.Join(slices.Compact(found), " "); got != tt.found {
			t.Errorf("%s: got findings %q, want %q", name, got, tt.found)
		}
	}
}

// TestColumnsInAnyOrder: of several columns with one name, the order of the header counts, not that of the values.
func TestColumnsInAnyOrder(t *testing.T) {
	t.Parallel()
	set := harvest()
	records := set.Logs[0].Records
	set.Logs[0].Records = func(yield func(*farmdata.Record, error) bool) {
		for record, err := range records {
			slices.Reverse(record.Values)
			if !yield(record, err) {
				return
			}
		}
	}
	cfg := geo.Config{Layers: []geo.Layer{geo.Points}, Columns: []geo.Column{{DDI: "0054", As: "yield", Unit: "t/ha"}}}
	for format, features := range written(t, set, cfg) {
		if got := features[0].properties; got["yield"] != 8.5 || got["yield_2"] != 4. {
			t.Errorf("%s: got %v and %v, want that of the header as the first", format, got["yield"], got["yield_2"])
		}
	}
}

// TestColumnsAreDescribed: the metadata of both formats has the names and units that the map has.
func TestColumnsAreDescribed(t *testing.T) {
	t.Parallel()
	cfg := geo.Config{Layers: []geo.Layer{geo.Points}, Columns: []geo.Column{{DDI: "0054", Element: "DET1", As: "yield", Unit: "dt/ha"}, {As: "rest", DDI: "0001"}}}
	var file, text bytes.Buffer
	testkit.NoError(t, errors.Join(geoparquet.Write(&file, harvest(), cfg), geo.Write(&text, harvest(), cfg)))
	f := testkit.Must(parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len())))(t)
	metadata, _ := f.Lookup(geoparquet.ColumnsKey)
	const want = `{"yield":{"ddi":"0054","name":"Yield","unit":"dt/ha","element":"Header","device":"Combine"}}`
	if metadata != want || !strings.HasSuffix(strings.TrimSpace(text.String()), `"columns":`+want+`}`) {
		t.Errorf("got %s and %.200s…, want %s", metadata, text.String(), want)
	}
	if _, there := f.Schema().Lookup("rest"); !there {
		t.Error("no column for what was asked for and is in no record")
	}
}

// TestAddedColumns: what a feature refers to, by ID and name, in every layer.
func TestAddedColumns(t *testing.T) {
	t.Parallel()
	add := []geo.Attribute{geo.Task, geo.Field, geo.Farm, geo.Customer, geo.Product, geo.Machine, geo.Operator}
	first := map[string]string{"task": "TSK1", "task_name": "Harvest", "field": "PFD1", "field_name": "Long acre", "farm": "FRM1", "farm_name": "Hill farm", "customer": "CTR1",
		"customer_name": "Ada Miller", "product": "PDT1; PDT2", "product_name": "Wheat; Straw", "machine": "DVC1", "machine_name": "Combine", "operator": "WKR1", "operator_name": "Smith"}
	second := map[string]string{"task": "TSK2", "customer": "CTR9", "machine": "DVC2", "machine_name": "Other"}
	third := map[string]string{"machine": "DVC2", "machine_name": "Other"}
	zone := map[string]string{"task": "TSK1", "task_name": "Harvest", "field": "PFD1", "field_name": "Long acre", "farm": "FRM1", "farm_name": "Hill farm", "customer": "CTR1",
		"customer_name": "Ada Miller", "machine": "DVC1; DVC3", "machine_name": "Combine; Cart", "operator": "WKR1", "operator_name": "Smith", "product": "PDT2", "product_name": "Straw"}
	for layer, want := range map[geo.Layer][]map[string]string{
		geo.Points: {first, first, second, third}, geo.Tracks: {first, second, third}, geo.Grids: {zone}, geo.Zones: {zone},
		geo.Fields: {{"field": "PFD1", "field_name": "Long acre", "farm": "FRM1", "farm_name": "Hill farm", "customer": "CTR1", "customer_name": "Ada Miller"}},
	} {
		set := harvest()
		set.Tasks[0].Zones = []farmdata.TreatmentZone{{Code: 1, Values: []farmdata.ZoneValue{{DDI: 6, Raw: 1, ProductID: "PDT2"}}, Polygons: set.Fields[0].Polygons}}
		grid := &farmdata.Grid{Type: 1, North: 52, East: 7, CellNorth: 1, CellEast: 1, Rows: 1, Cols: 1}
		grid.Cells = func(yield func(*farmdata.Cell, error) bool) {
			yield(&farmdata.Cell{Zone: 1, Products: []string{"PDT2"}, Values: []farmdata.Value{{Column: &farmdata.Column{DDI: 6, Scale: 1}, Raw: 1}}}, nil)
		}
		set.Tasks[0].Grids = []*farmdata.Grid{grid}
		for format, features := range written(t, set, geo.Config{Layers: []geo.Layer{layer}, Add: add}) {
			if len(features) != len(want) {
				t.Errorf("%s, %s: got %d features, want %d", layer, format, len(features), len(want))
				continue
			}
			for i, f := range features {
				got := map[string]string{}
				for _, attribute := range add {
					for _, name := range []string{string(attribute), string(attribute) + "_name"} {
						if !slices.Contains(f.names, name) {
							t.Errorf("%s, %s: no %s", layer, format, name)
						}
						if text, ok := f.properties[name].(string); ok {
							got[name] = text
						}
					}
				}
				if !maps.Equal(got, want[i]) {
					t.Errorf("%s, %s, feature %d: got\n%v, want\n%v", layer, format, i, got, want[i])
				}
			}
		}
	}
}

// TestAddedColumnsOfNothing: what has no ID is nobody's task, farm or product.
func TestAddedColumnsOfNothing(t *testing.T) {
	t.Parallel()
	set := harvest()
	set.Tasks = append(set.Tasks, farmdata.Task{FieldID: "PFD1"})
	set.Farms = append(set.Farms, farmdata.Farm{CustomerID: "CTR1"})
	set.Products = append(set.Products, farmdata.Product{Designator: "Urea"})
	set.Tasks[1].CustomerID = ""
	set.Tasks[1].Zones = []farmdata.TreatmentZone{{Code: 1, Values: []farmdata.ZoneValue{{DDI: 6, Raw: 1, ProductID: "PDT2"}, {DDI: 7, Raw: 1}}, Polygons: set.Fields[0].Polygons}}
	add := []geo.Attribute{geo.Field, geo.Customer, geo.Product}
	for format, features := range written(t, set, geo.Config{Layers: []geo.Layer{geo.Tracks}, Add: add}) {
		for _, f := range features[1:] { // of a task without a farm, and of none
			if f.properties["customer"] != nil || f.properties["field"] != nil {
				t.Errorf("%s: got %v, want nobody's", format, f.properties)
			}
		}
	}
	for format, features := range written(t, set, geo.Config{Layers: []geo.Layer{geo.Zones}}) {
		if got := features[0].properties["product_name"]; got != "Straw; " {
			t.Errorf("%s: got the products %q", format, got)
		}
	}
}

// TestOrdersThatAreWrong are refused before anything is written.
func TestOrdersThatAreWrong(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]geo.Config{
		"layer": {Layers: []geo.Layer{"roads"}}, "attribute": {Add: []geo.Attribute{"weather"}}, "DDI": {Columns: []geo.Column{{DDI: "yield"}}},
		"unit": {Columns: []geo.Column{{Unit: "bushel/ac"}}}, "name": {Columns: []geo.Column{{As: "Zone"}}}, "attribute's name": {Columns: []geo.Column{{As: "field_name"}}},
		"letter case": {Columns: []geo.Column{{DDI: "0001", As: "Rate"}, {DDI: "0006", As: "rate"}}},
	} {
		for format, write := range map[string]func(io.Writer, *farmdata.Set, geo.Config) error{"GeoJSON": geo.Write, "GeoParquet": geoparquet.Write} {
			if format == "GeoParquet" && cfg.Layers == nil {
				cfg.Layers = []geo.Layer{geo.Tracks}
			}
			var b bytes.Buffer
			if err := write(&b, harvest(), cfg); err == nil || b.Len() > 0 {
				t.Errorf("%s, %s: got %v and %d bytes", name, format, err, b.Len())
			}
		}
	}
	for _, list := range [][]geo.Layer{nil, {geo.Tracks, geo.Fields}} {
		if err := geoparquet.Write(io.Discard, harvest(), geo.Config{Layers: list}); err == nil {
			t.Errorf("GeoParquet takes %d layers", len(list))
		}
	}
}
