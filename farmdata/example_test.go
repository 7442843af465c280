package farmdata_test

import (
	"fmt"

	"github.com/agrimill/agrimill/farmdata"
)

func ExampleParseStamp() {
	for _, text := range []string{"2021-04-09T14:54:04.975", "2020-10-28T07:21:53+01:00"} {
		stamp, err := farmdata.ParseStamp(text)
		t, instant := stamp.Time()
		fmt.Println(stamp, t.UTC().Hour(), instant, err)
	}
	// Output:
	// 2021-04-09T14:54:04.975 14 false <nil>
	// 2020-10-28T07:21:53+01:00 6 true <nil>
}

func ExampleParseDDI() {
	ddi, err := farmdata.ParseDDI("0043")
	fmt.Println(ddi, uint16(ddi), err)
	// Output: 0043 67 <nil>
}

func ExampleDDI_Meaning() {
	for _, ddi := range []farmdata.DDI{0x0043, 0xEA60} {
		meaning, ok := ddi.Meaning()
		fmt.Printf("%s %q %q %v %t\n", ddi, meaning.Name, meaning.Unit, meaning.Scale, ok)
	}
	// Output:
	// 0043 "Actual working width" "mm" 1 true
	// EA60 "" "" 0 false
}

func ExampleDescriptions() {
	mower := farmdata.Device{
		Designator:    "Mower",
		Elements:      []farmdata.Element{{ID: "DET-1", Designator: "Body", Objects: []int{10}}},
		ProcessData:   []farmdata.ProcessData{{ObjectID: 10, DDI: 0x0043, Designator: "Width", PresentationID: 20}},
		Presentations: []farmdata.Presentation{{ObjectID: 20, Scale: 0.001, Decimals: 2, Unit: "m"}},
	}
	column := farmdata.Column{DDI: 0x0043, ElementID: "DET-1"}
	farmdata.NewDescriptions([]farmdata.Device{mower}).Describe(&column)
	fmt.Println(column.Device, column.Element, column.Name, farmdata.Value{Column: &column, Raw: 9000}.Scaled(), column.Unit)
	// Output: Mower Body Width 9 m
}

func ExampleValue_In() {
	yield := farmdata.Value{Column: &farmdata.Column{DDI: 0x0054, Scale: 1e-5, Unit: "t/ha"}, Raw: 850_000}
	fmt.Println(yield.In(farmdata.Presented))
	fmt.Println(yield.In(farmdata.SI))
	// Output:
	// 8.5 t/ha
	// 0.85 kg/m²
}

func ExampleSet_Prescriptions() {
	zones := []farmdata.TreatmentZone{{Code: 1, Values: []farmdata.ZoneValue{{DDI: 6, Raw: 150_000}}}}
	grid := farmdata.Grid{Type: 1, Name: "GRD00001", North: 52, East: 7, CellNorth: 0.1, CellEast: 0.1, Rows: 2, Cols: 2}
	again := grid
	set := &farmdata.Set{Tasks: []farmdata.Task{
		{ID: "TSK1", Zones: zones, Grids: []*farmdata.Grid{&grid}},
		{ID: "TSK2", Zones: zones, Grids: []*farmdata.Grid{&again}},
	}}
	for _, p := range set.Prescriptions() {
		fmt.Println(p.Grid.Name, p.Tasks[0].ID, p.Tasks[1].ID)
	}
	// Output: GRD00001 TSK1 TSK2
}

func ExampleSet_Mentions() {
	set := &farmdata.Set{
		Products: []farmdata.Product{{ID: "PDT1", Designator: "Seed", DDI: 0x000B}},
		Tasks:    []farmdata.Task{{ID: "TSK1", Zones: []farmdata.TreatmentZone{{Values: []farmdata.ZoneValue{{DDI: 0x000B, ProductID: "PDT1"}}}}}},
	}
	for m := range set.Mentions(0x000B) {
		fmt.Println(m.Place, m.TaskID, set.Product(m.ProductID).Designator)
	}
	// Output:
	// product  Seed
	// zone TSK1 Seed
}

func ExampleSet_Machines() {
	set := &farmdata.Set{
		Devices: []farmdata.Device{{ID: "DVC1", Designator: "Mower", Name: "A00086000DE02812"}},
		Tasks:   []farmdata.Task{{ID: "TSK1", Designator: "Mowing", FieldID: "PFD1", Devices: []farmdata.DeviceAllocation{{DeviceID: "DVC1"}}}},
		Fields:  []farmdata.Field{{ID: "PFD1", Designator: "Long Field"}},
	}
	for _, machine := range set.Machines() {
		for _, task := range machine.Tasks {
			fmt.Println(machine.Designator, task.Designator, set.Field(task.FieldID).Designator)
		}
	}
	// Output: Mower Mowing Long Field
}

func ExampleLog_WithConstants() {
	width, speed := &farmdata.Column{DDI: 0x0043, Scale: 0.001}, &farmdata.Column{DDI: 0x018D, Scale: 0.0036}
	log := &farmdata.Log{
		Constants: []farmdata.Value{{Column: width, Raw: 9000}},
		Records: func(yield func(*farmdata.Record, error) bool) {
			yield(&farmdata.Record{Values: []farmdata.Value{{Column: speed, Raw: 2500}}}, nil)
		},
	}
	for record, err := range log.WithConstants() {
		if err != nil {
			continue // a *farmdata.Finding
		}
		for _, v := range record.Values {
			fmt.Println(v.Column.DDI, v.Scaled())
		}
	}
	// Output:
	// 0043 9
	// 018D 9
}

func ExampleUnit_To() {
	dictionary, _ := farmdata.ParseUnit("mg/m²")
	shown, _ := farmdata.ParseUnit("kg/ha")
	factor, shift, ok := dictionary.To(shown)
	fmt.Println(12_000*factor+shift, ok)
	// Output: 120 true
}
