package efdi_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
)

// timeLog is a message as a sender makes it.
func timeLog() []byte {
	log, _ := proto.Marshal(&efdipb.TimeLog{Filename: "TLG00001", Time: []*efdipb.Time{{
		Start:         &timestamppb.Timestamp{Seconds: 1_600_000_000},
		PositionStart: &efdipb.Position{North: 52.5, East: 7.5},
		DataLogValue:  []*efdipb.DataLogValue{{Ddi: 0x43, Value: 9000, DeviceElement: &efdipb.UID{Number: -1}}},
	}}})
	wrapped, _ := proto.Marshal(&anypb.Any{TypeUrl: "wrong", Value: log})
	return wrapped
}

func ExampleOpen() {
	// From the device description that came before.
	devices := []farmdata.Device{{
		Designator:    "Mower",
		Elements:      []farmdata.Element{{ID: "DET-1", Objects: []int{10}}},
		ProcessData:   []farmdata.ProcessData{{ObjectID: 10, DDI: 0x43, Designator: "Working width", PresentationID: 20}},
		Presentations: []farmdata.Presentation{{ObjectID: 20, Scale: 0.001, Unit: "m"}},
	}}
	payload := timeLog()
	set, err := efdi.Open(context.Background(), bytes.NewReader(payload), int64(len(payload)), efdi.TimeLog, efdi.Config{Devices: devices})
	if err != nil {
		fmt.Println(err)
		return
	}
	for record, err := range set.Logs[0].Records {
		if err != nil {
			fmt.Println("damage:", err)
			continue
		}
		for _, v := range record.Values {
			fmt.Println(record.Stamp, record.Position.North, record.Position.East, v.Column.Device, v.Column.Name, v.Scaled(), v.Column.Unit)
		}
	}
	// Output: 2020-09-13T12:26:40Z 52.5 7.5 Mower Working width 9 m
}

func ExampleConfig_Validate() {
	fmt.Println(efdi.Config{MaxEntry: -1}.Validate())
	// Output: efdi: MaxEntry is negative
}

func ExampleDetect() {
	message := []byte{0x22, 0x00} // an entry of a log with nothing in it
	found, err := efdi.Detect(context.Background(), bytes.NewReader(message), int64(len(message)))
	fmt.Println(found, err)
	_, err = efdi.Detect(context.Background(), strings.NewReader("no protobuf"), 11)
	fmt.Println(err)
	// Output:
	// TimeLog <nil>
	// efdi: no such message
}

func ExampleWriteTimeLog() {
	width := &farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
	log := &farmdata.Log{Name: "TLG00001", Records: func(yield func(*farmdata.Record, error) bool) { // or one that was read
		at := farmdata.Stamp{Wall: time.Date(2026, time.May, 4, 8, 30, 0, 0, time.UTC), Local: true}
		yield(&farmdata.Record{Stamp: at, Values: []farmdata.Value{{Column: width, Raw: 9000}}}, nil)
	}}
	var message bytes.Buffer
	if err := efdi.WriteTimeLog(&message, log, efdi.EncodeConfig{Location: time.FixedZone("", 2*60*60)}); err != nil {
		fmt.Println(err)
		return
	}
	set, err := efdi.Open(context.Background(), bytes.NewReader(message.Bytes()), int64(message.Len()), efdi.TimeLog, efdi.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for record, err := range set.Logs[0].Records {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(record.Stamp, record.Values[0].Column.ElementID, record.Values[0].Raw)
	}
	// Output: 2026-05-04T06:30:00Z DET-1 9000
}

// Messages of a service that takes a megabyte at a time.
func ExampleTimeLogs() {
	width := &farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
	log := &farmdata.Log{Name: "TLG00001", Records: func(yield func(*farmdata.Record, error) bool) { // or one that was read
		for i := range int64(100_000) {
			if !yield(&farmdata.Record{Number: i, Values: []farmdata.Value{{Column: width, Raw: i}}}, nil) {
				return
			}
		}
	}}
	for message, err := range efdi.TimeLogs(log, 1_000_000, efdi.EncodeConfig{}) {
		fmt.Println(len(message) <= 1_000_000, err)
	}
	// Output:
	// true <nil>
	// true <nil>
}

func ExampleMarshalTaskData() {
	set := &farmdata.Set{Header: farmdata.Header{Major: 4}, Devices: []farmdata.Device{{ID: "DVC-1", Designator: "Mower"}}}
	message, err := efdi.MarshalTaskData(set, efdi.EncodeConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := efdi.Open(context.Background(), bytes.NewReader(message), int64(len(message)), efdi.TaskData, efdi.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(again.Devices[0].ID, again.Devices[0].Designator)
	// Output: DVC-1 Mower
}
