package farm_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
)

// taskData is what a farm computer sends: a mower, and a log of its working width.
func taskData() []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range map[string]string{
		"TASKDATA/TASKDATA.XML": `<ISO11783_TaskData VersionMajor="4" VersionMinor="2">
<TSK A="TSK1" B="Mowing" G="4"><TLG A="TLG00001" C="1"/></TSK>
<DVC A="DVC-1" B="Mower"><DET A="DET-1" B="1" C="1" D="Body"><DOR A="10"/></DET>
<DPD A="10" B="0043" E="Working width" F="20"/><DVP A="20" B="0" C="0.001" D="2" E="m"/></DVC></ISO11783_TaskData>`,
		"TASKDATA/TLG00001.XML": `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0043" B="" C="DET-1"/></TIM>`,
		"TASKDATA/TLG00001.BIN": "\x80\xee\x36\x00\x98\x3a" + "\x40\xdd\x4a\x1f\xc0\x68\x78\x04" + "\x04" + "\x01" + "\x00\x28\x23\x00\x00",
	} {
		if f, err := w.Create(name); err == nil {
			_, _ = f.Write([]byte(content))
		}
	}
	_ = w.Close()
	return b.Bytes()
}

// A route that takes what mowers did, and decodes it.
func Example() {
	filter, err := farm.NewFilter(farm.FilterConfig{Machine: []string{"mow*"}, DDI: []string{"0043"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := farm.NewRecords(farm.RecordsConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	route := router.Route{
		Name: "mower records", Filter: filter.Select, Transform: records,
		Middleware: []message.HandlerMiddleware{filter.Middleware},
		// From, To …
	}
	msg := message.NewMessage("1", taskData())
	fmt.Println(route.Filter(msg))
	out, err := route.Transform(msg)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out[0].Metadata[farm.KeyLog], out[0].Metadata[farm.KeyRecords])
	fmt.Println(strings.Split(string(out[0].Payload), "\n")[1])
	// Output:
	// true <nil>
	// TLG00001 1
	// {"record":0,"time":"2021-01-25T01:00:00","north":52.5,"east":7.5,"status":4,"values":{"0043_DET-1":9}}
}

func ExampleNewSummary() {
	summary, err := farm.NewSummary(farm.ReadConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, payload := range [][]byte{taskData(), []byte("a picture")} {
		out, err := summary(message.NewMessage("1", payload))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%.60s… readable: %q\n", out[0].Payload, out[0].Metadata[farm.KeyReadable])
	}
	// Output:
	// {"form":"TaskData","sets":[{"path":"TASKDATA","version":"4.2… readable: ""
	// a picture… readable: "no"
}

func ExampleNewTransform() {
	_, err := farm.NewTransform(farm.TransformConfig{Records: &farm.RecordsConfig{BatchRecords: -1}})
	fmt.Println(err)
	// Output: farm: invalid configuration: Records.BatchRecords must not be negative
}

// A time log of EFDI has numbers; what they are was in the device description before it.
func ExampleNewDevices() {
	store, err := farm.NewMemoryDevices(farm.MemoryDevicesConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	devices, err := farm.NewDevices(farm.DevicesConfig{Store: store})
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := farm.NewRecords(farm.RecordsConfig{ReadConfig: farm.ReadConfig{Devices: devices}})
	fmt.Println(records != nil, err, devices.Waiting()) // for router.Route.Transform
	// Output: true <nil> 0
}

func ExampleNewEFDI() {
	transform, err := farm.NewEFDI(farm.EFDIConfig{Location: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := transform(message.NewMessage("1", taskData()))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, msg := range out {
		fmt.Println(msg.Metadata[gateway.KeyMessageType], msg.Metadata[gateway.KeyFilename])
	}
	// Output:
	// iso:11783:-10:device_description:protobuf farm-devices.bin
	// iso:11783:-10:time_log:protobuf farm-TLG00001-0.bin
}

func ExampleNewTaskData() {
	transform, err := farm.NewTaskData(farm.TaskDataConfig{
		Field:   farm.NameConfig{Column: "field"},
		Columns: []farm.RateConfig{{Column: "rate", DDI: "0006", Unit: "kg/ha", Product: farm.NameConfig{Name: "Urea"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	const north = `{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"field": "North", "rate": %s},
		"geometry": {"type": "Polygon", "coordinates": [[[8, 52], [8.001, 52], [8.001, 52.001], [8, 52]]]}}]}`
	out, err := transform(message.NewMessage("1", fmt.Appendf(nil, north, "183.7")))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out[0].Metadata[gateway.KeyMessageType], out[0].Metadata[gateway.KeyFilename])
	_, err = transform(message.NewMessage("2", fmt.Appendf(nil, north, "null")))
	fmt.Println(err)
	// Output:
	// iso:11783:-10:taskdata:zip farm.zip
	// no TaskData can be made of it: feature 1: rate is no number, or is not there
}

func ExampleTaskDataConfig_Validate() {
	column := farm.RateConfig{Column: "rate", DDI: "0006", Unit: "l/ha"}
	fmt.Println(farm.TaskDataConfig{Columns: []farm.RateConfig{column}}.Validate())
	// Output: farm: invalid configuration: Columns[0].Unit does not fit: the unit "l/ha" is of another kind than mg/m², the unit of 0006
}

func ExampleNewMap() {
	transform, err := farm.NewMap(farm.MapConfig{Layers: []geo.Layer{geo.Tracks}})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := transform(message.NewMessage("1", taskData()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %.73s…\n", out[0].Metadata[gateway.KeyFilename], out[0].Payload)
	// Output: farm.geojson {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"ty…
}

func ExampleNewInspector() {
	inspector, err := farm.NewInspector(farm.ReadConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	contents, err := inspector.Contents(message.NewMessage("1", taskData()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(contents.Machines, contents.DDIs, contents.Records)
	// Output: [Mower] [0043] 1
}
