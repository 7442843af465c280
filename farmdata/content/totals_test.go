package content_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// header is the second of a reading that a log has once for all records.
const header = -1

// reading is a value at one second of a log.
type reading struct {
	second  int
	ddi     farmdata.DDI
	element string
	raw     int64
}

// drive is a log of a machine that goes 10 m to the north each second.
func drive(devices []farmdata.Device, seconds int, readings ...reading) *farmdata.Log {
	const meter = 180 / math.Pi / 6371008.8
	descriptions := farmdata.NewDescriptions(devices)
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1"}
	places, columns := map[[2]string]int{}, map[[2]string]*farmdata.Column{}
	for _, r := range readings {
		key := [2]string{r.ddi.String(), r.element}
		if _, there := places[key]; !there {
			places[key] = len(log.Columns)
			log.Columns = append(log.Columns, farmdata.Column{DDI: r.ddi, ElementID: r.element})
		}
	}
	for key, i := range places {
		descriptions.Describe(&log.Columns[i])
		columns[key] = &log.Columns[i]
	}
	for _, r := range readings {
		if r.second == header {
			log.Constants = append(log.Constants, farmdata.Value{Column: columns[[2]string{r.ddi.String(), r.element}], Raw: r.raw})
		}
	}
	log.Records = func(yield func(*farmdata.Record, error) bool) {
		for i := range seconds + 1 {
			r := farmdata.Record{Number: int64(i), Stamp: farmdata.Stamp{Wall: time.Date(2026, 5, 1, 8, 0, i, 0, time.UTC), Local: true},
				Position: farmdata.Position{North: 52 + float64(i)*10*meter, East: 8, Has: farmdata.HasNorth | farmdata.HasEast}}
			for _, v := range readings {
				if v.second == i {
					r.Values = append(r.Values, farmdata.Value{Column: columns[[2]string{v.ddi.String(), v.element}], Raw: v.raw})
				}
			}
			if !yield(&r, nil) {
				return
			}
		}
	}
	return log
}

// sprayer has a boom of two sections, and two tanks.
func sprayer(properties ...farmdata.Property) []farmdata.Device {
	elements := []farmdata.Element{{ID: "DET1", ObjectID: 1, Type: 1}, {ID: "DET2", ObjectID: 2, Type: 4, ParentObjectID: 1}, {ID: "DET3", ObjectID: 3, Type: 4, ParentObjectID: 1},
		{ID: "DET4", ObjectID: 4, Type: 3, ParentObjectID: 1}, {ID: "DET5", ObjectID: 5, Type: 3, ParentObjectID: 1}}
	for _, p := range properties {
		elements[0].Objects = append(elements[0].Objects, p.ObjectID)
	}
	return []farmdata.Device{{ID: "DVC1", Designator: "Sprayer", Elements: elements, Properties: properties}}
}

// boom is a sprayer that describes the width of its boom and of the two sections; 0 is not described.
func boom(widths ...int64) []farmdata.Device {
	devices := sprayer()
	for i, width := range widths {
		if width > 0 {
			devices[0].Properties = append(devices[0].Properties, farmdata.Property{ObjectID: 10 + i, DDI: 0x46, Value: width})
			devices[0].Elements[i].Objects = []int{10 + i}
		}
	}
	return devices
}

// twoBooms is a seeder with two booms, each of a described width.
func twoBooms() []farmdata.Device {
	devices := boom(0, 6000, 3000)
	devices[0].Elements[1].Type, devices[0].Elements[2].Type = 2, 2
	return devices
}

// placed is the devices with how far the second and the third device element are to the right.
func placed(devices []farmdata.Device, places ...int64) []farmdata.Device {
	for i, place := range places {
		devices[0].Properties = append(devices[0].Properties, farmdata.Property{ObjectID: 90 + i, DDI: 0x87, Value: place})
		devices[0].Elements[i+1].Objects = append(devices[0].Elements[i+1].Objects, 90+i)
	}
	return devices
}

// drill has two functions, each with two sections of 3 m, the second one with a tank.
func drill() []farmdata.Device {
	devices := []farmdata.Device{{ID: "DVC1", Designator: "Drill", Properties: []farmdata.Property{{ObjectID: 50, DDI: 0x46, Value: 3000}},
		Elements: []farmdata.Element{{ID: "DET1", ObjectID: 1, Type: 1}, {ID: "DET2", ObjectID: 2, Type: 2, ParentObjectID: 1}, {ID: "DET3", ObjectID: 3, Type: 2, ParentObjectID: 1}, {ID: "DET8", ObjectID: 8, Type: 3, ParentObjectID: 3}}}}
	for i := range 4 {
		devices[0].Elements = append(devices[0].Elements, farmdata.Element{ID: fmt.Sprint("DET", 4+i), ObjectID: 4 + i, Type: 4, ParentObjectID: 2 + i/2, Objects: []int{50}})
	}
	return devices
}

// wings is a drill whose functions say that they are in the middle, and whose sections say that the functions are beside each other.
func wings() []farmdata.Device {
	devices := placed(drill(), 0, 0)
	for i := range 4 {
		devices[0].Properties = append(devices[0].Properties, farmdata.Property{ObjectID: 60 + i, DDI: 0x87, Value: int64(3000*i - 4500)})
		devices[0].Elements[4+i].Objects = append(devices[0].Elements[4+i].Objects, 60+i)
	}
	return devices
}

// inFunction is the devices with a function that the second and the third device element are in.
func inFunction(devices []farmdata.Device) []farmdata.Device {
	devices[0].Elements = append(devices[0].Elements, farmdata.Element{ID: "DET20", ObjectID: 20, Type: 2, ParentObjectID: 1})
	devices[0].Elements[1].ParentObjectID, devices[0].Elements[2].ParentObjectID = 20, 20
	return devices
}

func figure(f content.Figure) string {
	if f.From == "" {
		return "unknown"
	}
	return fmt.Sprintf("%.6g of the %s", f.Value, f.From)
}

// between is an effective time from one second to another one.
func between(from, to int64) farmdata.TaskTime {
	return farmdata.TaskTime{Type: 4, Start: farmdata.Stamp{Wall: time.Unix(from, 0)}, Stop: farmdata.Stamp{Wall: time.Unix(to, 0)}}
}

// TestTotals: what is worked is the way with the width that is at work, until the next record says otherwise.
func TestTotals(t *testing.T) {
	t.Parallel()
	const width, state, rate = 0x43, 0x8D, 0x07
	on := func(element string) reading { return reading{0, state, element, 1} }
	total := func(ddi farmdata.DDI, raw int64) farmdata.Total {
		return farmdata.Total{DDI: ddi, ElementID: "DET1", Raw: raw}
	}
	of := func(element string, ddi farmdata.DDI, raw int64) farmdata.Total {
		return farmdata.Total{DDI: ddi, ElementID: element, Raw: raw}
	}
	for name, tt := range map[string]struct {
		devices  []farmdata.Device
		readings []reading
		times    []farmdata.TaskTime
		want     string // area, distance, time, rates
	}{
		"a width beyond reason":                  {sprayer(), []reading{{0, width, "DET1", 6000}, on("DET1"), {50, width, "DET1", 1 << 30}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"no width":                               {sprayer(), []reading{on("DET1"), {25, state, "DET1", 0}}, nil, "unknown, 250 of the log, 25 of the log"},
		"sections of a boom":                     {boom(6000, 0, 0), []reading{on("DET2"), on("DET3"), {50, state, "DET3", 0}}, nil, "4500 of the log, 1000 of the log, 100 of the log"},
		"sections of a width":                    {boom(6000, 2000, 4000), []reading{on("DET2"), on("DET3"), {50, state, "DET2", 0}}, nil, "5000 of the log, 1000 of the log, 100 of the log"},
		"sections that overlap":                  {boom(6000, 4000, 4000), []reading{on("DET2"), on("DET3"), {50, state, "DET2", 0}}, nil, "4500 of the log, 1000 of the log, 100 of the log"},
		"sections that are off":                  {boom(6000, 3000, 3000), []reading{on("DET1"), on("DET2"), {0, state, "DET3", 0}, {50, state, "DET2", 0}}, nil, "1500 of the log, 500 of the log, 50 of the log"},
		"a boom that is lifted":                  {boom(6000, 3000, 3000), []reading{on("DET1"), on("DET2"), {0, state, "DET3", 0}, {50, state, "DET1", 0}}, nil, "1500 of the log, 500 of the log, 50 of the log"},
		"sections that are lifted":               {boom(0, 3000, 3000), []reading{on("DET1"), on("DET2"), {0, state, "DET3", 0}, {50, state, "DET1", 0}, {60, state, "DET3", 1}}, nil, "1500 of the log, 500 of the log, 50 of the log"},
		"sections of what has no state":          {boom(0, 3000, 3000), []reading{{0, state, "DET1", 3}, on("DET2"), on("DET3")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"sections of what has no state at first": {boom(0, 3000, 3000), []reading{{0, state, "DET1", 3}, on("DET2"), on("DET3"), {50, state, "DET1", 0}}, nil, "3000 of the log, 500 of the log, 50 of the log"},
		"measured sections of a boom that is lifted": {sprayer(), []reading{on("DET1"), on("DET2"), on("DET3"), {0, width, "DET2", 3000}, {0, width, "DET3", 2000}, {50, state, "DET1", 0}, {60, state, "DET3", 0}}, nil,
			"2500 of the log, 500 of the log, 50 of the log"},
		"a state that is an error":                        {boom(6000), []reading{{0, state, "DET1", 2}, {50, state, "DET1", 0}}, nil, "3000 of the log, 500 of the log, 50 of the log"},
		"a state that is not installed, and a late width": {sprayer(), []reading{{0, state, "DET1", 3}, {0, width, "DET1", 6000}, {50, width, "DET2", 3000}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"sections of which nothing is known":              {boom(6000), []reading{{0, state, "DET2", 3}, {0, state, "DET3", 2}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"functions one behind the other": {twoBooms(), []reading{on("DET2"), on("DET3"), {0, rate, "DET2", 20_000}, {0, rate, "DET3", 10_000}, {50, state, "DET2", 0}}, nil,
			"4500 of the log, 1000 of the log, 100 of the log; 0007 DET2: 20000 of the log mg/m², 60 of the log kg; 0007 DET3: 10000 of the log mg/m², 30 of the log kg"},
		"functions beside each other": {placed(twoBooms(), -3000, 1500), []reading{on("DET2"), on("DET3"), {50, state, "DET2", 0}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"sections of functions one behind the other": {drill(), []reading{on("DET4"), on("DET5"), on("DET6"), on("DET7"), {0, rate, "DET2", 20_000}, {0, rate, "DET8", 10_000}, {50, state, "DET6", 0}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET2: 20000 of the log mg/m², 120 of the log kg; 0007 DET8: 10000 of the log mg/m², 45 of the log kg"},
		"sections of functions beside each other": {placed(drill(), -3000, 3000), []reading{on("DET4"), on("DET5"), on("DET6"), on("DET7"), {0, rate, "DET2", 20_000}, {0, rate, "DET3", 10_000}, {50, state, "DET6", 0}}, nil,
			"10500 of the log, 1000 of the log, 100 of the log; 0007 DET2: 20000 of the log mg/m², 120 of the log kg; 0007 DET3: 10000 of the log mg/m², 45 of the log kg"},
		"functions beside each other by their sections": {wings(), []reading{on("DET4"), on("DET5"), on("DET6"), on("DET7")}, nil, "12000 of the log, 1000 of the log, 100 of the log"},
		"functions of which one has no place":           {placed(twoBooms(), 5000), []reading{on("DET2"), on("DET3")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"a function within another":                     {placed(twoBooms(), 0, 2500), []reading{on("DET2"), on("DET3")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"functions that are in one":                     {inFunction(twoBooms()), []reading{on("DET2"), on("DET3")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"functions that are lifted at first": {placed(twoBooms(), 0, 100), []reading{{0, width, "DET2", 0}, {0, width, "DET3", 0}, {50, width, "DET2", 6000}, {50, width, "DET3", 6000}}, nil,
			"3000 of the log, 500 of the log, 50 of the log"},
		"a section that is not installed": {boom(0, 2000, 4000), []reading{on("DET2"), {0, state, "DET3", 3}}, nil, "2000 of the log, 1000 of the log, 100 of the log"},
		"sections of a function that is off, in a width that is described": {inFunction(boom(6000)), []reading{on("DET2"), on("DET3"), on("DET20"), {40, state, "DET20", 0}, {50, state, "DET3", 0}, {70, state, "DET20", 1}},
			nil, "3300 of the log, 700 of the log, 70 of the log"},
		"sections of a function that is off, in a width that is measured": {inFunction(boom()), []reading{{0, width, "DET1", 6000}, on("DET2"), on("DET3"), on("DET20"), {40, state, "DET20", 0}},
			nil, "2400 of the log, 400 of the log, 40 of the log"},
		"sections of a function that is off": {inFunction(boom()), []reading{on("DET2"), on("DET3"), {40, state, "DET20", 0}}, nil, "unknown, 400 of the log, 40 of the log"},
		"a rate of a section that is lifted": {boom(6000, 3000, 3000), []reading{on("DET1"), on("DET2"), {0, state, "DET3", 0}, {0, rate, "DET2", 20_000}, {50, state, "DET1", 0}}, nil,
			"1500 of the log, 500 of the log, 50 of the log; 0007 DET2: 20000 of the log mg/m², 30 of the log kg"},
		"a tank": {boom(6000), []reading{on("DET4"), {0, state, "DET5", 0}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"a rate of two sections": {boom(6000, 2000, 4000), []reading{on("DET2"), on("DET3"), {50, state, "DET2", 0}, {0, rate, "DET2", 10_000}, {0, rate, "DET3", 20_000}}, nil,
			"5000 of the log, 1000 of the log, 100 of the log; 0007 DET2: 10000 of the log mg/m², 10 of the log kg; 0007 DET3: 20000 of the log mg/m², 80 of the log kg"},
		"a described width of zero": {sprayer(farmdata.Property{ObjectID: 9, DDI: 0x44}, farmdata.Property{ObjectID: 10, DDI: 0x46, Value: 6000}), []reading{on("DET1")}, nil,
			"6000 of the log, 1000 of the log, 100 of the log"},
		"described widths of zero": {sprayer(farmdata.Property{ObjectID: 9, DDI: 0x46}), []reading{on("DET1")}, nil, "unknown, 1000 of the log, 100 of the log"},
		"a described width":        {sprayer(farmdata.Property{ObjectID: 9, DDI: width, Value: 6000}), []reading{on("DET1")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"condensed states":         {sprayer(farmdata.Property{ObjectID: 9, DDI: 0x46, Value: 6000}), []reading{{0, 0xA1, "DET1", 0xFFFFFFF1}, {50, 0xA1, "DET1", 0xFFFFFFF5}}, nil, "4500 of the log, 1000 of the log, 100 of the log"},
		"condensed states of a boom that is lifted": {boom(6000), []reading{on("DET1"), {0, 0xA1, "DET1", 0xFFFFFFF1}, {50, 0xA1, "DET1", 0xFFFFFFF5}, {80, state, "DET1", 0}}, nil,
			"3300 of the log, 800 of the log, 80 of the log"},
		"condensed states beside that of another element": {boom(6000), []reading{on("DET4"), {0, 0xA1, "DET1", 0xFFFFFFF1}, {50, state, "DET4", 0}}, nil, "1500 of the log, 500 of the log, 50 of the log"},
		"condensed states beside those of sections":       {boom(0, 2000, 4000), []reading{on("DET2"), {0, state, "DET3", 0}, {0, 0xA1, "DET1", 0xFFFFFFF1}}, nil, "2000 of the log, 1000 of the log, 100 of the log"},
		"condensed states of two booms": {twoBooms(), []reading{on("DET2"), {0, state, "DET3", 0}, {0, 0xA1, "DET2", 0xFFFFFFF5}, {0, 0xA1, "DET3", 0xFFFFFFF0}, {0, rate, "DET2", 20_000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET2: 20000 of the log mg/m², 120 of the log kg"},
		"condensed states of another boom": {twoBooms(), []reading{on("DET2"), {0, state, "DET3", 0}, {0, 0xA1, "DET3", 0xFFFFFFF0}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"a rate of a condensed boom": {boom(6000), []reading{on("DET1"), {0, 0xA1, "DET1", 0xFFFFFFF1}, {0, rate, "DET1", 20_000}}, nil,
			"3000 of the log, 1000 of the log, 100 of the log; 0007 DET1: 20000 of the log mg/m², 60 of the log kg"},
		"condensed states that are not known": {boom(6000), []reading{on("DET1"), {0, 0xA1, "DET1", 0xFFFFFFFF}, {50, state, "DET1", 0}}, nil, "3000 of the log, 500 of the log, 50 of the log"},
		"condensed states that nothing has":   {boom(6000), []reading{{0, 0xA1, "DET1", 0xFFFFFFFF}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"a width beside states of nothing":    {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0xA1, "DET1", 0xFFFFFFFF}}, nil, "6000 of the log, 1000 of the log, 100 of the log"},
		"not described":                       {nil, []reading{{0, width, "DET1", 6000}, {0, width, "DET2", 3000}, on("DET1"), on("DET2")}, nil, "6000 of the log, 1000 of the log, 100 of the log"},

		"totals": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000), total(0x75, 900_000)}}},
			"5000 of the totals, 900 of the totals, 100 of the log"},
		"totals that go on": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000)}}, {}, {Totals: []farmdata.Total{total(0x74, 7000), total(0x77, 60)}}},
			"7000 of the totals, 1000 of the log, 60 of the totals"},
		"totals that begin anew": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000)}}, {Totals: []farmdata.Total{total(0x74, 100)}}},
			"5100 of the totals, 1000 of the log, 100 of the log"},
		"totals in another order": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{
			{Start: farmdata.Stamp{Wall: time.Unix(200, 0)}, Totals: []farmdata.Total{total(0x74, 7000)}}, {Start: farmdata.Stamp{Wall: time.Unix(100, 0)}, Totals: []farmdata.Total{total(0x74, 5000)}}},
			"7000 of the totals, 1000 of the log, 100 of the log"},
		"a total twice in one time": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000), total(0x51, 60)}}, {Totals: []farmdata.Total{total(0x74, 6000), total(0x51, 66), total(0x74, 100), total(0x51, 54)}}},
			"6000 of the totals, 1000 of the log, 100 of the log; 0007 DET1: 11000 of the totals mg/m², 66 of the totals kg"},
		"totals of which one falls": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000), total(0x77, 60)}}, {Totals: []farmdata.Total{total(0x74, 6000), total(0x77, 50)}}},
			"11000 of the totals, 1000 of the log, 110 of the totals"},
		"an amount that was corrected": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 5000), total(0x51, 60)}}, {Totals: []farmdata.Total{total(0x74, 6000), total(0x51, 54)}}},
			"6000 of the totals, unknown, unknown; 0007 DET1: 9000 of the totals mg/m², 54 of the totals kg"},
		"an amount that begins anew": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x51, 60)}}, {Totals: []farmdata.Total{total(0x51, 54)}}},
			"unknown, unknown, unknown; 0007 DET1: unknown mg/m², 114 of the totals kg"},
		"a total below zero": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, -1)}}},
			"6000 of the log, 1000 of the log, 100 of the log"},
		"a total of zero": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 0)}}},
			"0 of the totals, 1000 of the log, 100 of the log"},
		"totals that were planned": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Type: 1, Totals: []farmdata.Total{total(0x74, 5000)}, Duration: time.Hour}},
			"6000 of the log, 1000 of the log, 100 of the log"},
		"times alone": {sprayer(), nil, []farmdata.TaskTime{{Type: 4, Duration: time.Minute}, {Type: 5, Duration: time.Hour},
			between(0, 40)}, "unknown, unknown, 100 of the totals"},
		"times that have something in common": {sprayer(), nil, []farmdata.TaskTime{between(100, 150), between(0, 60), between(30, 90), between(40, 50), {Type: 4, Duration: time.Minute}},
			"unknown, unknown, 200 of the totals"},
		"times and a total": {sprayer(), nil, []farmdata.TaskTime{{Type: 4, Duration: time.Minute, Totals: []farmdata.Total{total(0x74, 5000)}}}, "5000 of the totals, unknown, 60 of the totals"},
		"times and a log": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Type: 4, Duration: time.Hour}},
			"6000 of the log, 1000 of the log, 100 of the log"},
		"a lifetime": {sprayer(), []reading{{0, width, "DET1", 6000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x10F, 99)}}},
			"6000 of the log, 1000 of the log, 100 of the log"},

		"a rate": {sprayer(), []reading{{0, width, "DET1", 6000}, on("DET1"), {0, rate, "DET1", 20_000}, {50, rate, "DET1", 10_000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET1: 15000 of the log mg/m², 90 of the log kg"},
		"values of the header": {sprayer(), []reading{{header, width, "DET1", 6000}, {header, state, "DET1", 1}, {header, rate, "DET1", 20_000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET1: 20000 of the log mg/m², 120 of the log kg"},
		"values of the header and of records": {sprayer(), []reading{{header, width, "DET1", 6000}, {header, rate, "DET1", 20_000}, {50, rate, "DET1", 10_000}, {51, rate, "DET1", 10_000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET1: 19800 of the log mg/m², 118.8 of the log kg"},
		"a rate by time": {sprayer(), []reading{{0, 0x95, "DET1", 5000}}, nil,
			"unknown, 1000 of the log, 100 of the log; 0095 DET1: 5000 of the log mm³/s, 500 of the log ml"},
		"fuel by area": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x96, "DET1", 2000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0096 DET1: 2000 of the log mm³/m², 12000 of the log ml"},
		"fuel by area and its total": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x95, "DET1", 5000}, {0, 0x96, "DET1", 2000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x94, 15_000)}}},
			"6000 of the log, 1000 of the log, 100 of the log; 0095 DET1: 150000 of the totals mm³/s, 15000 of the totals ml; 0096 DET1: 2500 of the totals mm³/m², 15000 of the totals ml"},
		"exhaust fluid": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x19A, "DET1", 100}, {0, 0x19B, "DET1", 3}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 019A DET1: 100 of the log mm³/s, 10 of the log ml; 019B DET1: 3 of the log mm³/m², 18 of the log ml"},
		"crop loss": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x5C, "DET1", 10}, {0, 0x5D, "DET1", 30_000}, {0, 0x5E, "DET1", 2000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 005C DET1: 10 of the log ml/m², 60 of the log L; 005D DET1: 30000 of the log mg/m², 180 of the log kg; 005E DET1: 2 of the log /m², 12000 of the log #"},
		"crop loss by time": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x5F, "DET1", 600}, {0, 0x60, "DET1", 1_000_000}, {0, 0x61, "DET1", 5000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 005F DET1: 600 of the log ml/s, 60 of the log L; 0060 DET1: 1e+06 of the log mg/s, 100 of the log kg; 0061 DET1: 5 of the log /s, 500 of the log #"},
		"crop loss beside a yield": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x5D, "DET1", 30_000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x5A, 4000)}}},
			"6000 of the log, 1000 of the log, 100 of the log; 005D DET1: 30000 of the log mg/m², 180 of the log kg; 0054 DET1: 666667 of the totals mg/m², 4000 of the totals kg"},
		"CO2 and contamination": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x292, "DET1", 1000}, {0, 0x293, "DET1", 1000}, {0, 0xB003, "DET1", 2000}, {0, 0xB004, "DET1", 2000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0292 DET1: 1000 of the log mg/m², 6 of the log kg; 0293 DET1: 1000 of the log mg/s, 0.1 of the log kg; B003 DET1: 2000 of the log mg/m², 12 of the log kg; B004 DET1: 2000 of the log mg/s, 0.2 of the log kg"},
		"energy": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x23F, "DET1", 10_000}, {0, 0x2B4, "DET1", 100}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 023F DET1: 0.001 of the log kWh/m², 6 of the log kWh; 02B4 DET1: 0.001 of the log kWh/m², 6 of the log kWh"},
		"a rate of what has no width": {sprayer(), []reading{on("DET1"), {0, rate, "DET1", 20_000}}, nil,
			"unknown, 1000 of the log, 100 of the log; 0007 DET1: unknown mg/m², unknown kg"},
		"a rate of what has no width, and its total": {sprayer(), []reading{on("DET1"), {0, rate, "DET1", 20_000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x51, 110)}}},
			"unknown, 1000 of the log, 100 of the log; 0007 DET1: unknown mg/m², 110 of the totals kg"},
		"a rate of what is lifted": {boom(6000), []reading{{0, state, "DET1", 0}, {0, rate, "DET1", 20_000}}, nil, "0 of the log, 0 of the log, 0 of the log"},
		"a section without a width": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, rate, "DET2", 20_000}}, nil,
			"6000 of the log, 1000 of the log, 100 of the log; 0007 DET2: 20000 of the log mg/m², unknown kg"},
		"a rate and its total": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, rate, "DET1", 20_000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x51, 110), total(0x74, 5500)}}},
			"5500 of the totals, 1000 of the log, 100 of the log; 0007 DET1: 20000 of the totals mg/m², 110 of the totals kg"},
		"the finer total": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, rate, "DET1", 20_000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x160, 110_500), total(0x74, 5500)}}},
			"5500 of the totals, 1000 of the log, 100 of the log; 0007 DET1: 20090.9 of the totals mg/m², 110.5 of the totals kg"},
		"totals of sections": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{of("DET2", 0x74, 5000), of("DET3", 0x74, 6000), of("DET2", 0x51, 110), of("DET3", 0x51, 66)}}},
			"11000 of the totals, unknown, unknown; 0007 DET2: 22000 of the totals mg/m², 110 of the totals kg; 0007 DET3: 11000 of the totals mg/m², 66 of the totals kg"},
		"totals of sections and of all": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{of("DET2", 0x74, 5000), of("DET3", 0x74, 6000), total(0x74, 10_000)}}},
			"10000 of the totals, unknown, unknown"},
		"totals of tanks": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{of("DET4", 0x74, 5000), of("DET5", 0x74, 6000)}}}, "6000 of the totals, unknown, unknown"},
		"an amount of a section": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x74, 10_000), of("DET2", 0x51, 110)}}},
			"10000 of the totals, unknown, unknown; 0007 DET2: unknown mg/m², 110 of the totals kg"},
		"a total alone": {sprayer(), nil, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x5A, 4000), total(0x74, 5000)}}},
			"5000 of the totals, unknown, unknown; 0054 DET1: 800000 of the totals mg/m², 4000 of the totals kg"},
		"a rate that was planned": {sprayer(), []reading{{0, width, "DET1", 6000}, {0, 0x06, "DET1", 20_000}}, []farmdata.TaskTime{{Totals: []farmdata.Total{total(0x51, 110)}}},
			"6000 of the log, 1000 of the log, 100 of the log; 0006 DET1: 20000 of the log mg/m², 120 of the log kg; 0007 DET1: 18333.3 of the totals mg/m², 110 of the totals kg"},
	} {
		set := &farmdata.Set{Devices: tt.devices, Tasks: []farmdata.Task{{ID: "TSK1", Times: tt.times}}}
		if tt.readings != nil {
			set.Logs = []*farmdata.Log{drive(tt.devices, 100, tt.readings...)}
		}
		all, err := content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}})
		if err != nil || len(all) != 1 {
			t.Errorf("%s: got %+v, %v, want one work", name, all, err)
			continue
		}
		w := all[0]
		got := strings.Join([]string{figure(w.Area), figure(w.Distance), figure(w.Time)}, ", ")
		for _, r := range w.Rates {
			got += fmt.Sprintf("; %s %s: %s %s, %s %s", r.DDI, r.Element, figure(r.Mean), r.Unit, figure(r.Total), r.TotalUnit)
		}
		if got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
	}
}

// TestRatesThatAreNotSummedUp: a finding names them. What is no rate, planned, a limit or an average is none, and what has no values is not there.
func TestRatesThatAreNotSummedUp(t *testing.T) {
	t.Parallel()
	devices := sprayer()
	devices[0].Elements[0].Objects = []int{1, 2}
	devices[0].ProcessData = []farmdata.ProcessData{{ObjectID: 1, DDI: 0xE001, PresentationID: 8}, {ObjectID: 2, DDI: 0xE002, PresentationID: 9}}
	devices[0].Presentations = []farmdata.Presentation{{ObjectID: 8, Scale: 1, Unit: "kg/ha"}, {ObjectID: 9, Scale: 1, Unit: "km/h"}}
	for want, ddis := range map[string][]farmdata.DDI{
		"": {0x43, 0x8D, 0x07, 0x06, 0x5D, 0x01, 0x03, 0x05, 0x24, 0x63, 0x86, 0x97, 0xD1, 0x105, 0x107, 0x116, 0x18D, 0x1E4, 0x196, 0xB003, 0xE002, 0xE003},
		"unsupported: totals of the set: rates that are not summed up: 0020 0062 0134 01C1 0213 027A E001": {0x20, 0x62, 0x134, 0x1C1, 0x213, 0x27A, 0xE001, 0x43, 0x07},
	} {
		var readings []reading
		for _, ddi := range ddis {
			readings = append(readings, reading{0, ddi, "DET1", 1})
		}
		readings = append(readings, reading{1000, 0x135, "DET1", 1}, reading{1000, 0x219, "DET1", 1}, reading{1000, 0x20, "DET2", 1}) // beyond its end
		logs := []*farmdata.Log{drive(devices, 10, readings...), drive(devices, 10, readings...)}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{{Devices: devices, Logs: logs}}}))(t)
		got := ""
		for _, f := range s.Sets[0].Findings {
			got += f.Text
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestTotalsThatDoNotCount: a finding names them.
func TestTotalsThatDoNotCount(t *testing.T) {
	t.Parallel()
	total := func(ddi farmdata.DDI, raw int64) farmdata.Total {
		return farmdata.Total{DDI: ddi, Raw: raw, ElementID: "DET1"}
	}
	for want, totals := range map[string][]farmdata.Total{
		"": {total(0x74, 5000), total(0x51, -60), total(0x77, 0)},
		"value: totals of tasks that do not count, because they are negative, the second value of one time, or from a local time to one with an offset: 0051 0074 0077": {
			total(0x74, -5000), total(0x51, 60), total(0x51, 60), total(0x77, 1), total(0x77, 2)},
	} {
		set := &farmdata.Set{Devices: sprayer(), Tasks: []farmdata.Task{{ID: "TSK1", Times: []farmdata.TaskTime{{Totals: totals}}}}}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
		got := ""
		for _, f := range s.Sets[0].Findings {
			got += f.Text
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestValuesThatNoMachineHas: such a width or rate does not count, and a finding names it.
func TestValuesThatNoMachineHas(t *testing.T) {
	t.Parallel()
	for _, none := range []int64{math.MinInt32, math.MaxInt32} {
		devices := sprayer()
		log := drive(devices, 10, reading{0, 0x43, "DET1", 3000}, reading{0, 0x07, "DET1", 10000}, reading{5, 0x07, "DET1", none}, reading{7, 0x43, "DET1", none}, reading{8, 0x07, "DET1", 10000})
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{{Devices: devices, Logs: []*farmdata.Log{log}}}}))(t)
		got := fmt.Sprint(s.Sets[0].Totals[0].Rates[0].Mean.Value)
		for _, f := range s.Sets[0].Findings {
			got += " " + f.Text
		}
		if want := "10000 value: widths and rates of logs that do not count, because no machine has such: 0007 0043"; got != want {
			t.Errorf("%d: got %q, want %q", none, got, want)
		}
	}
}

// TestTimesThatEndBeforeTheyBegin: the time of a task that lacks one, or one from a local time to one with an offset, says so, unless the terminal counted it.
func TestTimesThatEndBeforeTheyBegin(t *testing.T) {
	t.Parallel()
	at := func(hour, minute int) farmdata.Stamp {
		return farmdata.Stamp{Wall: time.Date(2026, 10, 25, hour, minute, 0, 0, time.UTC), Local: true}
	}
	const finding = " value: totals of tasks that do not count, because they are negative, the second value of one time, or from a local time to one with an offset: 0077"
	hour, backwards := farmdata.TaskTime{Type: 4, Start: at(1, 0), Stop: at(2, 0)}, farmdata.TaskTime{Type: 4, Start: at(2, 50), Stop: at(2, 10)}
	counted, long, toOffset := backwards, backwards, farmdata.TaskTime{Type: 4, Start: at(2, 0), Stop: farmdata.Stamp{Wall: at(2, 30).Wall}}
	counted.Totals, long.Duration = []farmdata.Total{{DDI: 0x77, Raw: 4800, ElementID: "DET1"}}, 80*time.Minute
	for _, c := range []struct {
		want  string
		times []farmdata.TaskTime
	}{
		{"3600 totals", []farmdata.TaskTime{hour}},
		{"4800 totals", []farmdata.TaskTime{hour, counted}},
		{"8400 totals", []farmdata.TaskTime{hour, long}},
		{"3600 totals" + finding, []farmdata.TaskTime{hour, backwards}},
		{"3600 totals" + finding, []farmdata.TaskTime{hour, toOffset}},
		{finding, []farmdata.TaskTime{backwards}},
		{finding, []farmdata.TaskTime{toOffset}},
		{"", []farmdata.TaskTime{{Type: 4, Start: at(2, 0)}, {Type: 4, Stop: at(2, 0)}}},
	} {
		set := &farmdata.Set{Devices: sprayer(), Tasks: []farmdata.Task{{ID: "TSK1", Times: c.times}}}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
		got := ""
		for _, work := range s.Sets[0].Totals {
			got += fmt.Sprint(work.Time.Value, " ", work.Time.From)
		}
		for _, f := range s.Sets[0].Findings {
			got += " " + f.Text
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestNegativeTotalsOfOneTime: an area, a distance or a time below zero, such as that of a counter of 32 bits that ran over, is left out of the
// sum, and the times before and after it count as if it were not there.
func TestNegativeTotalsOfOneTime(t *testing.T) {
	t.Parallel()
	for _, ddi := range []farmdata.DDI{0x74, 0x75, 0x77} {
		var times []farmdata.TaskTime
		for i, raw := range []int64{100, -50, 200, -30} {
			times = append(times, farmdata.TaskTime{Type: 4, Start: farmdata.Stamp{Wall: time.Date(2026, 5, 4, i, 0, 0, 0, time.UTC), Local: true},
				Totals: []farmdata.Total{{DDI: ddi, Raw: raw, ElementID: "DET1"}}})
		}
		set := &farmdata.Set{Devices: sprayer(), Tasks: []farmdata.Task{{ID: "TSK1", Times: times}}}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
		work, want := s.Sets[0].Totals[0], content.Figure{Value: 200, From: content.FromTotals}
		if ddi == 0x75 {
			want.Value = 0.2 // of millimeters
		}
		if got := map[farmdata.DDI]content.Figure{0x74: work.Area, 0x75: work.Distance, 0x77: work.Time}[ddi]; got != want || len(s.Sets[0].Findings) != 1 {
			t.Errorf("%s: got %v, findings %v, want %v and a finding", ddi, got, s.Sets[0].Findings, want)
		}
	}
}

// TestTotalsAreTheSameAgain: the same log has the same totals each time, up to the last digit, as what is made of them is named by its content.
// Of sections that go off at once little is left, so that a digit that depends on their order shows.
func TestTotalsAreTheSameAgain(t *testing.T) {
	t.Parallel()
	devices := boom(6000)
	var on, off []reading
	for i, width := range []int64{1, 137_137, 91_713, 63_391, 33_333, 199_999} {
		id := "SECTION" + strconv.Itoa(i)
		devices[0].Elements = append(devices[0].Elements, farmdata.Element{ID: id, ObjectID: 20 + i, Type: 4, ParentObjectID: 1, Objects: []int{40 + i}})
		devices[0].Properties = append(devices[0].Properties, farmdata.Property{ObjectID: 40 + i, DDI: 0x46, Value: width})
		if on = append(on, reading{0, 0x8D, id, 1}); i > 0 {
			off = append(off, reading{0, 0x8D, id, 0})
		}
	}
	seen := map[float64]bool{}
	for range 50 {
		set := &farmdata.Set{Devices: devices, Logs: []*farmdata.Log{drive(devices, 10, slices.Concat(on, off)...)}}
		seen[testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)[0].Area.Value] = true
	}
	if len(seen) != 1 {
		t.Errorf("got areas %v, want one", slices.Collect(maps.Keys(seen)))
	}
}

// TestTotalsOfTasksWithTheSameID: the first one counts, as the finding about its ID says.
func TestTotalsOfTasksWithTheSameID(t *testing.T) {
	t.Parallel()
	task := func(hour, area, seconds string) string {
		return `<TSK A="TSK1" G="4"><TIM A="2026-05-04T` + hour + `:00:00" D="4" C="` + seconds + `"><DLV A="0074" B="` + area + `" C="DET1"/></TIM></TSK>`
	}
	const device = `<DVC A="DVC1" B="Mower" D="a00086000de02810"><DET A="DET1" B="1" C="1" E="0" F="0"/></DVC>`
	data := open(t, farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">`+device+task("06", "5000", "3600")+task("08", "300", "60")+`</ISO11783_TaskData>`), content.Config{})
	works := testkit.Must(content.Totals(t.Context(), data))(t)
	if len(works) != 1 || works[0].Area.Value != 5000 || works[0].Time.Value != 3600 || len(data.Sets[0].Findings) != 1 {
		t.Errorf("got %+v, findings %v, want 5000 m² in 3600 s", works, data.Sets[0].Findings)
	}
}

// TestTotalsOfColumnsThatAreThereTwice: a header that has columns twice, and records that have both of them, or one of them in turn, make the
// same totals. Of two columns the first one counts, and of two values of a column the last one.
func TestTotalsOfColumnsThatAreThereTwice(t *testing.T) {
	t.Parallel()
	devices := sprayer()
	const want = "3600 of the log, 16750 of the log, 60.3 of the log"
	for name, second := range map[string]func(i int, v farmdata.Value) []farmdata.Value{
		"once": func(int, farmdata.Value) []farmdata.Value { return nil },
		"both": func(_ int, v farmdata.Value) []farmdata.Value {
			return []farmdata.Value{v, {Column: v.Column, Raw: 3 * v.Raw}}
		},
		"in turn": func(i int, v farmdata.Value) []farmdata.Value { return []farmdata.Value{v}[:i%2] },
	} {
		log := drive(devices, 100, reading{0, 0x43, "DET1", 6000}, reading{0, 0x8D, "DET1", 1}, reading{0, 0x07, "DET4", 20000},
			reading{40, 0x43, "DET1", 3000}, reading{41, 0x07, "DET4", 10000},
			reading{80, 0x8D, "DET1", 1}, reading{80, 0x8D, "DET1", 0})
		records, others := log.Records, map[*farmdata.Column]*farmdata.Column{}
		for i := range log.Columns {
			other := log.Columns[i]
			others[&log.Columns[i]] = &other
		}
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			for r, err := range records {
				var values []farmdata.Value
				for _, v := range r.Values {
					more := second(int(r.Number), farmdata.Value{Column: others[v.Column], Raw: v.Raw})
					if len(more) != 1 {
						values = append(values, v)
					}
					values = append(values, more...)
				}
				if r.Values = values; !yield(r, err) {
					return
				}
			}
		}
		set := &farmdata.Set{Devices: devices, Tasks: []farmdata.Task{{ID: "TSK1"}}, Logs: []*farmdata.Log{log}}
		works := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
		if len(works) != 1 || len(works[0].Rates) != 1 {
			t.Fatalf("%s: got %+v", name, works)
		}
		got := figure(works[0].Area) + ", " + figure(works[0].Rates[0].Mean) + ", " + figure(works[0].Rates[0].Total)
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// TestTotalsOfAnyLog compares random logs with a reckoning of every second by itself.
func TestTotalsOfAnyLog(t *testing.T) {
	t.Parallel()
	const width, state, rate, seconds = 0x43, 0x8D, 0x07, 30
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		var readings []reading
		for range random.IntN(25) {
			r := reading{second: random.IntN(seconds), ddi: []farmdata.DDI{width, state, rate}[random.IntN(3)], element: fmt.Sprint("DET", 1+random.IntN(4)), raw: int64(random.IntN(2))}
			if r.ddi != state {
				r.raw = int64(random.IntN(3)) * 1000
			}
			if !slices.ContainsFunc(readings, func(o reading) bool { return o.second == r.second && o.ddi == r.ddi && o.element == r.element }) {
				readings = append(readings, r)
			}
		}
		want := reckon(seconds, readings)
		all, err := content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{{Devices: sprayer(), Logs: []*farmdata.Log{drive(sprayer(), seconds, readings...)}}}})
		if err != nil || len(readings) == 0 && len(all) == 0 {
			continue
		}
		got := map[string]float64{"area": all[0].Area.Value, "distance": all[0].Distance.Value, "time": all[0].Time.Value}
		for _, r := range all[0].Rates {
			if r.Mean.From != "" {
				got[r.Element] = r.Mean.Value
			}
		}
		for what, value := range want {
			if math.Abs(got[what]-value) > 1e-6*(1+value) {
				t.Fatalf("seed %d: got %v, want %v of %+v", seed, got, want, readings)
			}
		}
		if len(got) > len(want) {
			t.Fatalf("seed %d: got %v, want %v of %+v", seed, got, want, readings)
		}
	}
}

// reckon sums up a drive second by second, from nothing but the readings up to each.
func reckon(seconds int, readings []reading) map[string]float64 {
	sums := map[string]float64{"area": 0, "distance": 0, "time": 0}
	amounts, by := map[string]float64{}, map[string]float64{}
	for second := range seconds {
		now := map[farmdata.DDI]map[string]int64{0x43: {}, 0x8D: {}, 0x07: {}}
		for at := range second + 1 {
			for _, r := range readings {
				if r.second == at {
					now[r.ddi][r.element] = r.raw
				}
			}
		}
		widths, states := now[0x43], now[0x8D]
		anyOn := float64(0)
		for _, raw := range states {
			anyOn = max(anyOn, float64(raw))
		}
		if boom, ok := states["DET1"]; ok { // what is in it is not at work without it
			anyOn = float64(boom)
		}
		on := func(element string) float64 {
			boom, lifted := states["DET1"]
			if own, ok := states[element]; ok && lifted && (element == "DET2" || element == "DET3") { // a section is as its boom is
				return float64(own * boom)
			}
			for _, e := range []string{element, "DET1"} {
				if raw, ok := states[e]; ok {
					return float64(raw)
				}
			}
			return max(anyOn, onOff(len(states) == 0))
		}
		whole := 0.0
		for element, raw := range widths {
			if _, boom := widths["DET1"]; !boom || element == "DET1" {
				whole += float64(raw) / 1000 * on(element)
			}
		}
		if whole > 0 || len(widths) == 0 && max(anyOn, onOff(len(states) == 0)) > 0 {
			sums["distance"], sums["time"] = sums["distance"]+10, sums["time"]+1
		}
		sums["area"] += whole * 10
		for element, raw := range now[0x07] {
			area := whole * 10
			if own, ok := widths[element]; ok {
				area = float64(own) / 1000 * on(element) * 10
			}
			amounts[element], by[element] = amounts[element]+float64(raw)*area, by[element]+area
		}
	}
	for element, area := range by {
		if area > 0 {
			sums[element] = amounts[element] / area
		}
	}
	return sums
}

// TestTotalsOfBrokenWays: what lies between two records that are too far from each other is no work.
func TestTotalsOfBrokenWays(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*farmdata.Record)
		want   string
	}{
		"a jump there and back":    {func(r *farmdata.Record) { r.Position.North += 2 * onOff(r.Number == 50) }, "980 of the log, 100 of the log"},
		"a pause of an hour":       {func(r *farmdata.Record) { r.Stamp.Wall = r.Stamp.Wall.Add(hour(r.Number >= 50)) }, "990 of the log, 99 of the log"},
		"a clock that is put back": {func(r *farmdata.Record) { r.Stamp.Wall = r.Stamp.Wall.Add(-hour(r.Number >= 50)) }, "990 of the log, 99 of the log"},
		"no positions for 5 s": {func(r *farmdata.Record) {
			r.Position.Has *= farmdata.PositionField(1 - onOff(r.Number > 50 && r.Number < 55))
		}, "1000 of the log, 100 of the log"},
		"a receiver without a fix that gives the last place again": {func(r *farmdata.Record) {
			r.Position.Has |= farmdata.HasStatus
			if r.Position.Status = 1; r.Number > 40 && r.Number < 60 {
				r.Position.Status, r.Position.North = uint8(14*(r.Number%2)), 52+40*10*180/math.Pi/6371008.8
			}
		}, "1000 of the log, 100 of the log"},
		"a receiver that gives the last place again and does not say why": {func(r *farmdata.Record) {
			if r.Number > 40 && r.Number < 60 {
				r.Position.North = 52 + 40*10*180/math.Pi/6371008.8
			}
		}, "1000 of the log, 100 of the log"},
		"a receiver that has no fix and is elsewhere": {func(r *farmdata.Record) {
			r.Position.Has |= farmdata.HasStatus
			if r.Position.Status = 1; r.Number > 40 && r.Number < 60 {
				r.Position.Status, r.Position.North = 0, 48
			}
		}, "1000 of the log, 100 of the log"},
		"a receiver that says only once that it has a fix": {func(r *farmdata.Record) {
			r.Position.Has |= farmdata.HasStatus
			r.Position.Status = uint8(1 - min(1, r.Number))
		}, "1000 of the log, 100 of the log"},
		"a receiver that always says that it has no fix": {func(r *farmdata.Record) { r.Position.Has |= farmdata.HasStatus }, "1000 of the log, 100 of the log"},
		"no positions at all":                            {func(r *farmdata.Record) { r.Position = farmdata.Position{} }, "unknown, 100 of the log"},
		"a record every two minutes":                     {func(r *farmdata.Record) { r.Stamp.Wall = r.Stamp.Wall.Add(time.Duration(r.Number) * 2 * time.Minute) }, "unknown, unknown"},
		"no times at all":                                {func(r *farmdata.Record) { r.Stamp = farmdata.Stamp{} }, "1000 of the log, unknown"},
	} {
		log := drive(sprayer(), 100, reading{0, 0x43, "DET1", 6000})
		records := log.Records
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			for r, err := range records {
				if tt.change(r); !yield(r, err) {
					return
				}
			}
		}
		all, err := content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{{Devices: sprayer(), Logs: []*farmdata.Log{log}}}})
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: got %+v, %v, want one work", name, all, err)
		}
		if got := figure(all[0].Distance) + ", " + figure(all[0].Time); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func onOff(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

func hour(on bool) time.Duration { return time.Duration(onOff(on)) * time.Hour }

// TestTotalsOfProducts: a rate has the products of its tank; the machine has all that it is given.
func TestTotalsOfProducts(t *testing.T) {
	t.Parallel()
	devices := append(sprayer(), farmdata.Device{ID: "DVC2", Designator: "Tractor", Elements: []farmdata.Element{{ID: "DET9", Type: 1}}})
	set := &farmdata.Set{
		Devices: devices, Products: []farmdata.Product{{ID: "PDT1", Designator: "Urea"}, {ID: "PDT2", Designator: "Water"}}, Fields: []farmdata.Field{{ID: "PFD1", Designator: "Long Field"}},
		Tasks: []farmdata.Task{{ID: "TSK1", Designator: "Spraying", FieldID: "PFD1",
			Products: []farmdata.ProductAllocation{{ProductID: "PDT1", ElementID: "DET4"}, {ProductID: "PDT2", ElementID: "DET5"}, {ProductID: "PDT1", ElementID: "DET4"}}}},
		Logs: []*farmdata.Log{drive(devices, 100, reading{0, 0x43, "DET1", 6000}, reading{0, 0x02, "DET4", 100}, reading{0, 0x02, "DET5", 200}, reading{0, 0x18D, "DET9", 7})},
	}
	all := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
	for i := range all {
		for j := range all[i].Rates {
			all[i].Rates[j].Mean, all[i].Rates[j].Total = content.Figure{}, content.Figure{}
		}
		all[i].Area, all[i].Distance, all[i].Time = content.Figure{}, content.Figure{}, content.Figure{}
	}
	got, err := json.Marshal(all)
	want := `[{"task":{"id":"TSK1","name":"Spraying"},"field":{"id":"PFD1","name":"Long Field"},"device":{"id":"DVC1","name":"Sprayer"},"products":[{"id":"PDT1","name":"Urea"},{"id":"PDT2","name":"Water"}],"rates":[` +
		`{"ddi":"0002","name":"Actual volume per area application rate","element":"DET4","products":[{"id":"PDT1","name":"Urea"}],"unit":"mm³/m²","total_unit":"L"},` +
		`{"ddi":"0002","name":"Actual volume per area application rate","element":"DET5","products":[{"id":"PDT2","name":"Water"}],"unit":"mm³/m²","total_unit":"L"}]},` +
		`{"task":{"id":"TSK1","name":"Spraying"},"field":{"id":"PFD1","name":"Long Field"},"device":{"id":"DVC2","name":"Tractor"},"products":[],"rates":[]}]`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

// TestTotalsOfTelemetry: an EFDI log has the totals of the machine that another message described.
func TestTotalsOfTelemetry(t *testing.T) {
	t.Parallel()
	open := func(b []byte, devices []farmdata.Device) *content.Data {
		return testkit.Must(content.Open(t.Context(), bytes.NewReader(b), int64(len(b)), content.Config{EFDI: efdi.Config{Devices: devices}}))(t)
	}
	described := open(farmdatatest.Description(t), nil).Sets[0].Devices
	for name, devices := range map[string][]farmdata.Device{"Mower": described, "": nil} {
		all, err := content.Totals(t.Context(), open(farmdatatest.TimeLog(t, 5), devices))
		if err != nil || len(all) != 1 || all[0].Device.Name != name || all[0].Time != (content.Figure{Value: 2, From: content.FromLog}) || all[0].Area.Value < 20 || all[0].Area.Value > 30 {
			t.Errorf("got %+v, %v, want 2 s and about 25 m² of %q", all, err, name)
		}
	}
}

// TestTotalsAreBounded: whatever the data has, there are only so many totals, and a finding says so.
func TestTotalsAreBounded(t *testing.T) {
	t.Parallel()
	many := func(n int) (totals []farmdata.Total, products []farmdata.ProductAllocation) {
		for i := range n {
			totals = append(totals, farmdata.Total{DDI: 0x51, ElementID: fmt.Sprint("DET", i), Raw: 1})
			products = append(products, farmdata.ProductAllocation{ProductID: fmt.Sprint("PDT", i)})
		}
		return totals, products
	}
	totals, products := many(20_000)
	for name, tt := range map[string]struct {
		task  farmdata.Task
		rates int
		found string
	}{
		"few":      {farmdata.Task{ID: "TSK1", Times: []farmdata.TaskTime{{Totals: totals[:99]}}, Products: products[:100]}, 99, ""},
		"totals":   {farmdata.Task{ID: "TSK1", Times: []farmdata.TaskTime{{Totals: totals}}}, 9999, "limit"},
		"products": {farmdata.Task{ID: "TSK1", Times: []farmdata.TaskTime{{Totals: totals[:9]}}, Products: products}, 9, "limit"},
	} {
		summary := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{{Tasks: []farmdata.Task{tt.task}}}}))(t)
		set, found := summary.Sets[0], ""
		for _, f := range set.Findings {
			found += string(f.Kind)
		}
		if len(set.Totals) != 1 || len(set.Totals[0].Rates) != tt.rates || found != tt.found {
			t.Errorf("%s: got %d works, %d rates, findings %q, want one, %d and %q", name, len(set.Totals), len(set.Totals[0].Rates), found, tt.rates, tt.found)
		}
	}
}

// TestTotalsOfStrangeDevices: devices whose elements are in each other, and scales beyond numbers, make totals that can be written.
func TestTotalsOfStrangeDevices(t *testing.T) {
	t.Parallel()
	devices := []farmdata.Device{{ID: "DVC1",
		Elements:      []farmdata.Element{{ID: "DET1", ObjectID: 1, ParentObjectID: 2, Objects: []int{9}}, {ID: "DET2", ObjectID: 2, ParentObjectID: 1}, {ID: "DET3", ObjectID: 3, ParentObjectID: 3}},
		ProcessData:   []farmdata.ProcessData{{ObjectID: 9, DDI: 0x07, PresentationID: 8}},
		Presentations: []farmdata.Presentation{{ObjectID: 8, Scale: math.MaxFloat64, Offset: math.MaxInt64}}}}
	var readings []reading
	for i, element := range []string{"DET1", "DET2", "DET3", ""} {
		for _, ddi := range []farmdata.DDI{0x43, 0x8D, 0xA1, 0x07} {
			readings = append(readings, reading{i, ddi, element, 1}, reading{i + 2, ddi, element, math.MaxInt64}, reading{i + 4, ddi, element, math.MinInt64})
		}
	}
	set := &farmdata.Set{Devices: devices, Logs: []*farmdata.Log{drive(devices, 10, readings...)}, Tasks: []farmdata.Task{{ID: "TSK1",
		Times: []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x51, ElementID: "DET1", Raw: math.MaxInt64}, {DDI: 0x51, ElementID: "DET1", Raw: math.MinInt64}}, Duration: math.MaxInt64, Type: 4}}}}}
	all, err := content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}})
	if err != nil || len(all) == 0 {
		t.Fatalf("got %v, %v, want works", all, err)
	}
	testkit.Must(json.Marshal(all))(t)
}

// TestWidthsThatNobodyDescribes: a finding says that the area is only that of the first one.
func TestWidthsThatNobodyDescribes(t *testing.T) {
	t.Parallel()
	for want, elements := range map[string][]string{
		"": {"DET1"},
		"unsupported: areas of logs: of a machine that no device describes only the first width counts: 0043": {"DET1", "DET2"},
	} {
		var readings []reading
		for _, element := range elements {
			readings = append(readings, reading{0, 0x43, element, 3000})
		}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{{Logs: []*farmdata.Log{drive(nil, 10, readings...)}}}}))(t)
		got := ""
		for _, f := range s.Sets[0].Findings {
			got += f.Text
		}
		if got != want {
			t.Errorf("%d widths: got %q, want %q", len(elements), got, want)
		}
	}
}

// TestFunctionsWithoutAPlace: a finding says that they are taken to be one behind the other, and a sum by area counts that once.
func TestFunctionsWithoutAPlace(t *testing.T) {
	t.Parallel()
	readings := []reading{{0, 0x8D, "DET2", 1}, {0, 0x8D, "DET3", 1}, {0, 0x07, "DET2", 20_000}, {0, 0x07, "DET3", 10_000}}
	total := []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x74, ElementID: "DET1", Raw: 5990}}}}
	for _, tt := range []struct {
		devices []farmdata.Device
		times   []farmdata.TaskTime
		want    string
	}{
		{twoBooms(), nil, "25000 mg/m², 150 kg; unsupported: areas of logs: functions of a machine count as one behind the other, because they are without 0087"},
		{twoBooms(), total, "25000 mg/m², 150 kg; "}, // the area is not that of the log
		{placed(twoBooms(), 0, 0), nil, "25000 mg/m², 150 kg; "},
		{placed(twoBooms(), -3000, 1500), nil, "16666.7 mg/m², 150 kg; "},
	} {
		devices, want := tt.devices, tt.want
		set := &farmdata.Set{Devices: devices, Tasks: []farmdata.Task{{ID: "TSK1", Times: tt.times}}, Logs: []*farmdata.Log{drive(devices, 100, readings...)}}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t).Sets[0]
		r := s.Sums[content.ByTask][0].Rates[0]
		got := fmt.Sprintf("%.6g %s, %.6g %s; ", r.Mean.Value, r.Unit, r.Total.Value, r.TotalUnit)
		for _, f := range s.Findings {
			got += f.Text
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestWidthThatComesLate: an area that lacks the beginning of the way is incomplete, unless the machine did not work there, or its terminal
// knows the area.
func TestWidthThatComesLate(t *testing.T) {
	t.Parallel()
	total := []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x74, ElementID: "DET1", Raw: 6000}}}}
	for name, tt := range map[string]struct {
		devices  []farmdata.Device
		readings []reading
		times    []farmdata.TaskTime
		want     string
	}{
		"late":                 {sprayer(), []reading{{0, 0x8D, "DET1", 1}, {50, 0x43, "DET1", 6000}}, nil, "3000 of the log, incomplete true"},
		"late and lifted":      {sprayer(), []reading{{0, 0x8D, "DET1", 0}, {50, 0x43, "DET1", 6000}, {50, 0x8D, "DET1", 1}}, nil, "3000 of the log, incomplete false"},
		"late and described":   {boom(6000), []reading{{50, 0x43, "DET1", 6000}}, nil, "6000 of the log, incomplete false"},
		"with the second one":  {sprayer(), []reading{{1, 0x43, "DET1", 6000}}, nil, "5940 of the log, incomplete false"},
		"late beside a total":  {sprayer(), []reading{{50, 0x43, "DET1", 6000}}, total, "6000 of the totals, incomplete false"},
		"never":                {sprayer(), []reading{{0, 0x8D, "DET1", 1}}, nil, "unknown, incomplete false"},
		"of a part of the way": {sprayer(), []reading{{0, 0x43, "DET1", 6000}, {50, 0x43, "DET1", 3000}}, nil, "4500 of the log, incomplete false"},
	} {
		set := &farmdata.Set{Devices: tt.devices, Tasks: []farmdata.Task{{ID: "TSK1", Times: tt.times}}, Logs: []*farmdata.Log{drive(tt.devices, 100, tt.readings...)}}
		w := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)[0]
		if got := fmt.Sprintf("%s, incomplete %v", figure(w.Area), w.Incomplete); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// TestPositionsThatLack: what a machine did for longer than a step without a position is in no area and no distance, so they are incomplete,
// unless its terminal knows them, or it did not work there.
func TestPositionsThatLack(t *testing.T) {
	t.Parallel()
	total := []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x74, ElementID: "DET1", Raw: 6000}, {DDI: 0x75, ElementID: "DET1", Raw: 1_000_000}}}}
	work := []reading{{0, 0x8D, "DET1", 1}, {0, 0x43, "DET1", 6000}}
	for name, tt := range map[string]struct {
		from, to int
		readings []reading
		times    []farmdata.TaskTime
		want     string
	}{
		"in the middle": {100, 400, work, nil, "11940 of the log, 1990 of the log, incomplete true"},
		"to the end":    {100, 501, work, nil, "5940 of the log, 990 of the log, incomplete true"},
		"at first":      {0, 300, work, nil, "12000 of the log, 2000 of the log, incomplete true"},
		"for a minute":  {100, 159, work, nil, "30000 of the log, 5000 of the log, incomplete false"},
		"while lifted":  {100, 400, append(work[:2:2], reading{90, 0x8D, "DET1", 0}, reading{400, 0x8D, "DET1", 1}), nil, "11400 of the log, 1900 of the log, incomplete false"},
		"with totals":   {100, 400, work, total, "6000 of the totals, 1000 of the totals, incomplete false"},
		"with the area": {100, 400, work, []farmdata.TaskTime{{Totals: total[0].Totals[:1]}}, "6000 of the totals, 1990 of the log, incomplete true"},
	} {
		log := drive(sprayer(), 500, tt.readings...)
		records := log.Records
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			for r, err := range records {
				if int(r.Number) >= tt.from && int(r.Number) < tt.to {
					r.Position = farmdata.Position{}
				}
				if !yield(r, err) {
					return
				}
			}
		}
		set := &farmdata.Set{Devices: sprayer(), Tasks: []farmdata.Task{{ID: "TSK1", Times: tt.times}}, Logs: []*farmdata.Log{log}}
		w := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)[0]
		if got := fmt.Sprintf("%s, %s, incomplete %v", figure(w.Area), figure(w.Distance), w.Incomplete); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// TestMachineInTwoLogs: a finding says that a machine is in two logs at the same time, since nobody knows whether what it did there is the same.
// Logs one after the other may have a second in common.
func TestMachineInTwoLogs(t *testing.T) {
	t.Parallel()
	devices := append(sprayer(), farmdata.Device{ID: "DVC2", Elements: []farmdata.Element{{ID: "DET9", Type: 1}}})
	for name, tt := range map[string]struct {
		element string
		later   time.Duration
		want    bool
	}{
		"the same":          {"DET1", 0, true},
		"another element":   {"DET4", 50 * time.Second, true},
		"earlier":           {"DET1", -98 * time.Second, true},
		"after it":          {"DET1", 99 * time.Second, false},
		"before it":         {"DET1", -99 * time.Second, false},
		"another machine":   {"DET9", 0, false},
		"nobody knows what": {"DET77", 0, false},
	} {
		second := drive(devices, 100, reading{0, 0x43, tt.element, 6000})
		records := second.Records
		second.Records = func(yield func(*farmdata.Record, error) bool) {
			for r, err := range records {
				if r.Stamp.Wall = r.Stamp.Wall.Add(tt.later); !yield(r, err) {
					return
				}
			}
		}
		set := &farmdata.Set{Devices: devices, Logs: []*farmdata.Log{drive(devices, 100, reading{0, 0x43, "DET1", 6000}), second}}
		logs := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t).Sets[0].Logs
		if got := len(logs[1].Findings) == 1 && strings.Contains(logs[1].Findings[0].Text, "same seconds"); got != tt.want || len(logs[0].Findings) > 0 {
			t.Errorf("%s: got %v and %v, want one in the second log: %v", name, logs[0].Findings, logs[1].Findings, tt.want)
		}
	}
}

// TestMachineInALogWithGaps: what of a log comes first in the time of another one may be too short to say anything.
func TestMachineInALogWithGaps(t *testing.T) {
	t.Parallel()
	first, second := drive(sprayer(), 200, reading{0, 0x43, "DET1", 6000}), drive(sprayer(), 200, reading{0, 0x43, "DET1", 6000})
	records := first.Records
	first.Records = func(yield func(*farmdata.Record, error) bool) {
		for r, err := range records {
			if s := r.Number; (s == 10 || s == 11 || s > 100) && !yield(r, err) {
				return
			}
		}
	}
	set := &farmdata.Set{Devices: sprayer(), Logs: []*farmdata.Log{first, second}}
	logs := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t).Sets[0].Logs
	if len(logs[0].Findings) > 0 || len(logs[1].Findings) != 1 {
		t.Errorf("got %v and %v, want one in the second log", logs[0].Findings, logs[1].Findings)
	}
}

// TestSumOfARateThatIsNotKnown: of a rate that one of two machines gave to an area that is not known, nobody knows the total.
func TestSumOfARateThatIsNotKnown(t *testing.T) {
	t.Parallel()
	devices := append(boom(6000), farmdata.Device{ID: "DVC2", Elements: []farmdata.Element{{ID: "DET9", Type: 1}}})
	set := &farmdata.Set{Devices: devices, Tasks: []farmdata.Task{{ID: "TSK1"}}, Logs: []*farmdata.Log{
		drive(devices, 100, reading{0, 0x07, "DET1", 20_000}), drive(devices, 100, reading{0, 0x07, "DET9", 10_000})}}
	r := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t).Sets[0].Sums[content.ByTask][0].Rates[0]
	if got := figure(r.Mean) + ", " + figure(r.Total); got != "20000 of the log, unknown" {
		t.Errorf("got %s, want a mean of what is known, and no total", got)
	}
}

// TestRecordsThatAreThereAgain: a finding says that a log has the same seconds twice.
func TestRecordsThatAreThereAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before time.Duration // between the records and those again
		want   bool
	}{
		"the same": {0, true}, "a clock that was set back": {10 * time.Second, true}, "those that follow": {101 * time.Second, false}, "after a gap": {time.Hour, false},
	} {
		log := drive(sprayer(), 100, reading{0, 0x43, "DET1", 6000})
		records := log.Records
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			for _, later := range []time.Duration{0, tt.before} {
				for r, err := range records {
					if r.Stamp.Wall = r.Stamp.Wall.Add(later); !yield(r, err) {
						return
					}
				}
			}
		}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{{Devices: sprayer(), Logs: []*farmdata.Log{log}}}}))(t)
		if found := s.Sets[0].Logs[0].Findings; tt.want != (len(found) == 1 && strings.Contains(found[0].Text, "there twice")) || len(found) > 1 {
			t.Errorf("%s: got %v, want one: %v", name, found, tt.want)
		}
	}
}
