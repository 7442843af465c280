package geo_test

import (
	"fmt"
	"os"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// sample is a log of two records, as isoxml.Open or efdi.Open give it.
func sample() *farmdata.Log {
	width := &farmdata.Column{DDI: 0x43, ElementID: "DET-1", Name: "Width", Unit: "m", Scale: 0.001}
	place := farmdata.HasNorth | farmdata.HasEast
	return &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Records: func(yield func(*farmdata.Record, error) bool) {
		_ = yield(&farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Has: place}, Values: []farmdata.Value{{Column: width, Raw: 9000}}}, nil) &&
			yield(&farmdata.Record{Number: 1, Position: farmdata.Position{North: 52.6, East: 7.5, Has: place}}, nil)
	}}
}

func ExampleWriter_Track() {
	w, err := geo.NewWriter(os.Stdout, geo.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Track(sample()); err != nil {
		fmt.Println(err)
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"LineString","coordinates":[[7.5,52.5],[7.5,52.6]]},"properties":{"kind":"track","log":"TLG00001","task":"TSK1","part":1,"records":2,"start":null,"end":null}}]}
}

func ExampleWriter_Points() {
	w, err := geo.NewWriter(os.Stdout, geo.Config{Finding: func(f *farmdata.Finding) { fmt.Println("damage:", f) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Points(sample()); err != nil {
		fmt.Println(err)
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"Point","coordinates":[7.5,52.5]},"properties":{"kind":"record","log":"TLG00001","task":"TSK1","record":0,"time":null,"0043_DET-1":9}},
	// {"type":"Feature","geometry":{"type":"Point","coordinates":[7.5,52.6]},"properties":{"kind":"record","log":"TLG00001","task":"TSK1","record":1,"time":null}}],"columns":{"0043_DET-1":{"ddi":"0043","name":"Width","unit":"m","element":"","device":""}}}
}

func ExampleWriter_Field() {
	field := farmdata.Field{ID: "PFD1", Designator: "Meadow", Area: 5000, Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{
		Type: 1, Points: []farmdata.Point{{East: 7, North: 52}, {East: 7, North: 53}, {East: 8, North: 52}},
	}}}}}
	w, err := geo.NewWriter(os.Stdout, geo.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Field(&field); err != nil {
		fmt.Println(err)
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"MultiPolygon","coordinates":[[[[7,52],[8,52],[7,53],[7,52]]]]},"properties":{"kind":"field","id":"PFD1","name":"Meadow","area":5000}}]}
}

func ExampleWriter_Prescription() {
	set := &farmdata.Set{Tasks: []farmdata.Task{{ID: "TSK1", Designator: "Liming", Zones: []farmdata.TreatmentZone{{
		Code: 1, Designator: "west", Values: []farmdata.ZoneValue{{DDI: 6, Raw: 150_000}},
		Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{Type: 1, Points: []farmdata.Point{{East: 7, North: 52}, {East: 8, North: 52}, {East: 7, North: 53}}}}}},
	}}}}}
	w, err := geo.NewWriter(os.Stdout, geo.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range set.Prescriptions() {
		if err := w.Prescription(&p); err != nil {
			fmt.Println(err)
		}
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"MultiPolygon","coordinates":[[[[7,52],[8,52],[7,53],[7,52]]]]},"properties":{"kind":"zone","task":"TSK1","task_name":"Liming","field":null,"field_name":null,"zone":1,"zone_name":"west","product":null,"product_name":null,"0006":150000}}],"columns":{"0006":{"ddi":"0006","name":"Setpoint mass per area application rate","unit":"mg/m²","element":"","device":""}}}
}

func ExampleMultiPolygon() {
	open := farmdata.LineString{Type: 1, Points: []farmdata.Point{{East: 7, North: 52}, {East: 7, North: 53}, {East: 8, North: 52}}}
	multi, _ := geo.MultiPolygon([]farmdata.Polygon{{Rings: []farmdata.LineString{open}}})
	fmt.Println(multi)
	// Output: [[[[7 52] [8 52] [7 53] [7 52]]]]
}

func ExampleRectangle() {
	grid := &farmdata.Grid{North: 52, East: 7, CellNorth: 0.5, CellEast: 0.5}
	ring, _ := geo.Rectangle(grid, &farmdata.Cell{Row: 1}) // all of it is west of the 180th meridian
	fmt.Println(ring)
	// Output: [[7 52.5] [7.5 52.5] [7.5 53] [7 53] [7 52.5]]
}

func ExampleKeys() {
	var keys geo.Keys
	left, right := &farmdata.Column{DDI: 0x43, ElementID: "DET-1"}, &farmdata.Column{DDI: 0x43, ElementID: "DET-2"}
	fmt.Println(keys.Name(left), keys.Name(right), keys.Name(left), len(keys.Descriptions()))
	// Output: 0043_DET-1 0043_DET-2 0043_DET-1 2
}
