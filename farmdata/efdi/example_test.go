package efdi_test

import (
	"bytes"
	"fmt"
	"strings"

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
	set, err := efdi.Open(bytes.NewReader(payload), int64(len(payload)), efdi.TimeLog, efdi.Config{Devices: devices})
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
	found, err := efdi.Detect(bytes.NewReader(message), int64(len(message)))
	fmt.Println(found, err)
	_, err = efdi.Detect(strings.NewReader("no protobuf"), 11)
	fmt.Println(err)
	// Output:
	// TimeLog <nil>
	// efdi: no such message
}
