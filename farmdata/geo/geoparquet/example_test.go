package geoparquet_test

import (
	"bytes"
	"fmt"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
)

func ExampleWritePoints() {
	width := []farmdata.Column{{DDI: 0x43, ElementID: "DET-1", Scale: 0.001, Unit: "m"}}
	log := &farmdata.Log{Name: "TLG00001", Columns: width, Records: func(yield func(*farmdata.Record, error) bool) {
		position := farmdata.Position{North: 52.5, East: 7.5, Has: farmdata.HasNorth | farmdata.HasEast}
		yield(&farmdata.Record{Position: position, Values: []farmdata.Value{{Column: &width[0], Raw: 9000}}}, nil)
	}}
	var file bytes.Buffer // or a file
	if err := geoparquet.WritePoints(&file, log, geoparquet.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	show(file.Bytes())
	// Output: 1 rows, columns 0043_DET-1 bbox geometry log record status task time up utc
}

func ExampleWriteTracks() {
	log := &farmdata.Log{Name: "TLG00001", Records: func(yield func(*farmdata.Record, error) bool) {
		position := farmdata.Position{North: 52.5, East: 7.5, Has: farmdata.HasNorth | farmdata.HasEast}
		yield(&farmdata.Record{Position: position}, nil)
	}}
	var file bytes.Buffer
	if err := geoparquet.WriteTracks(&file, []*farmdata.Log{log}, geoparquet.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	show(file.Bytes())
	// Output: 1 rows, columns bbox end geometry log part records start task
}

func ExampleWriteFields() {
	corners := []farmdata.Point{{East: 7, North: 52}, {East: 8, North: 52}, {East: 8, North: 53}}
	field := farmdata.Field{ID: "PFD1", Designator: "Meadow", Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{Type: 1, Points: corners}}}}}
	var file bytes.Buffer
	if err := geoparquet.WriteFields(&file, []farmdata.Field{field}, geoparquet.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	show(file.Bytes())
	// Output: 1 rows, columns area bbox customer farm geometry id name
}

func ExampleWriteGrid() {
	grid := farmdata.Grid{North: 52, East: 7, CellNorth: 1, CellEast: 1, Cells: func(yield func(*farmdata.Cell, error) bool) { yield(&farmdata.Cell{Zone: 3}, nil) }}
	var file bytes.Buffer
	if err := geoparquet.WriteGrid(&file, &grid, geoparquet.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	show(file.Bytes())
	// Output: 1 rows, columns bbox column geometry grid row zone
}

func show(file []byte) {
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(f.NumRows(), " rows, columns")
	for _, column := range f.Schema().Fields() {
		fmt.Print(" ", column.Name())
	}
	fmt.Println()
}

func ExampleWritePrescription() {
	set := &farmdata.Set{Tasks: []farmdata.Task{{ID: "TSK1", Zones: []farmdata.TreatmentZone{{Code: 1, Values: []farmdata.ZoneValue{{DDI: 6, Raw: 150_000}},
		Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{Type: 1, Points: []farmdata.Point{{East: 7, North: 52}, {East: 8, North: 52}, {East: 7, North: 53}}}}}}}}}}}
	for _, p := range set.Prescriptions() {
		var file bytes.Buffer
		if err := geoparquet.WritePrescription(&file, &p, geoparquet.Config{}); err != nil {
			fmt.Println(err)
			return
		}
		show(file.Bytes())
	}
	// Output: 1 rows, columns 0006 bbox field field_name geometry product product_name task task_name zone zone_name
}

func ExampleWrite() {
	set := &farmdata.Set{Fields: []farmdata.Field{{ID: "PFD1", FarmID: "FRM1"}}, Farms: []farmdata.Farm{{ID: "FRM1", Designator: "Hill farm"}}}
	var file bytes.Buffer
	if err := geoparquet.Write(&file, set, geoparquet.Config{Layers: []geo.Layer{geo.Fields}, Add: []geo.Attribute{geo.Farm}}); err != nil {
		fmt.Println(err)
		return
	}
	show(file.Bytes())
	// Output: 0 rows, columns area bbox customer farm farm_name geometry id name
}
