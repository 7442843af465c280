package geoparquet_test

import (
	"bytes"
	"fmt"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
)

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
