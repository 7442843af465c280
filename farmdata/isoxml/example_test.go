package isoxml_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/isoxml"
)

// files is a small TaskData: a mower that logs its working width.
var files = map[string]string{
	"TASKDATA.XML": `<ISO11783_TaskData VersionMajor="4" VersionMinor="2">
<TSK A="TSK1" B="Mowing" G="4"><TLG A="TLG00001" C="1"/></TSK>
<DVC A="DVC-1" B="Mower"><DET A="DET-1" B="1" C="1" D="Body"><DOR A="10"/></DET>
<DPD A="10" B="0043" E="Working width" F="20"/><DVP A="20" B="0" C="0.001" D="2" E="m"/></DVC>
</ISO11783_TaskData>`,
	"TLG00001.XML": `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0043" B="" C="DET-1"/></TIM>`,
	// Time and day, north and east, status, number of values; index and value.
	"TLG00001.BIN": "\x80\xee\x36\x00\x98\x3a" + "\x40\xdd\x4a\x1f\xc0\x68\x78\x04" + "\x04" + "\x01" + "\x00\x28\x23\x00\x00" +
		"\x68\xf2\x36\x00\x98\x3a" + "\x80\xdd\x4a", // cut
}

func Example() {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, content := range files {
		if f, err := w.Create("TASKDATA/" + name); err == nil {
			_, _ = f.Write([]byte(content))
		}
	}
	_ = w.Close()

	a, err := isoxml.Open(context.Background(), bytes.NewReader(archive.Bytes()), int64(archive.Len()), isoxml.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, set := range a.Sets {
		fmt.Println("task:", set.Tasks[0].Designator)
		for _, log := range set.Logs {
			for record, err := range log.Records {
				if err != nil {
					fmt.Println("damage:", err)
					continue
				}
				fmt.Println(record.Stamp, record.Position.North, record.Position.East)
				for _, v := range record.Values {
					fmt.Println(v.Column.DDI, v.Column.Device, v.Column.Name, v.Raw, v.Scaled(), v.Column.Unit)
				}
			}
		}
	}
	// Output:
	// task: Mowing
	// 2021-01-25T01:00:00 52.5 7.5
	// 0043 Mower Working width 9000 9 m
	// damage: TASKDATA/TLG00001.BIN: cut: the file ends inside of it, record 1, byte 21
}

func ExampleOpen() {
	broken := []byte("no archive")
	_, err := isoxml.Open(context.Background(), bytes.NewReader(broken), int64(len(broken)), isoxml.Config{MaxStream: 100 << 20})
	fmt.Println(err)
	// Output: isoxml: it is no archive: zip: not a valid zip file
}

func ExampleOpenFS() {
	folder := fstest.MapFS{} // or os.DirFS("/media/usb")
	for name, content := range files {
		folder["TASKDATA/"+name] = &fstest.MapFile{Data: []byte(content)}
	}
	a, err := isoxml.OpenFS(context.Background(), folder, isoxml.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Sets[0].Path, a.Sets[0].Devices[0].Designator, a.Sets[0].Logs[0].Name)
	// Output: TASKDATA Mower TLG00001
}

func ExampleConfig_Validate() {
	fmt.Println(isoxml.Config{MaxFiles: -1}.Validate())
	// Output: isoxml: MaxFiles is negative
}

func ExampleWrite() {
	set := &farmdata.Set{
		Header:   farmdata.Header{Software: "example", SoftwareVersion: "1", Origin: 1},
		Products: []farmdata.Product{{ID: "PDT1", Designator: "Urea"}},
		Tasks: []farmdata.Task{{
			ID: "TSK1", Designator: "Spread", Status: 1, DefaultZone: 1, LostZone: -1, OutsideZone: -1,
			Zones: []farmdata.TreatmentZone{
				{Code: 1, Values: []farmdata.ZoneValue{{DDI: 0x0006, Raw: 20_000, ProductID: "PDT1"}}}, // 200 kg/ha in mg/m²
			},
			Grids: []*farmdata.Grid{{
				Name: "GRD00001", Type: 1, Zone: -1, North: 52, East: 8, CellNorth: 0.0001, CellEast: 0.0001, Rows: 1, Cols: 2,
				Cells: func(yield func(*farmdata.Cell, error) bool) {
					_ = yield(&farmdata.Cell{Zone: 1}, nil) && yield(&farmdata.Cell{Col: 1, Zone: 1}, nil)
				},
			}},
		}},
	}
	var archive bytes.Buffer
	if err := isoxml.Write(context.Background(), &archive, set, isoxml.WriteConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	read, err := isoxml.Open(context.Background(), bytes.NewReader(archive.Bytes()), int64(archive.Len()), isoxml.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for cell, err := range read.Sets[0].Tasks[0].Grids[0].Cells {
		if err == nil {
			fmt.Println(cell.Row, cell.Col, cell.Values[0].Column.DDI, cell.Values[0].Raw)
		}
	}
	// Output:
	// 0 0 0006 20000
	// 0 1 0006 20000
}
