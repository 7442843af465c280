package farmdata

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStampsStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	gps := time.Date(2021, 4, 9, 12, 54, 4, 0, time.UTC)
	for text, want := range map[string]Stamp{
		`"2021-04-09T14:54:04.5"`:     {Wall: time.Date(2021, 4, 9, 14, 54, 4, 500_000_000, time.UTC), Local: true},
		`"2021-04-09T14:54:04Z"`:      {Wall: time.Date(2021, 4, 9, 14, 54, 4, 0, time.UTC)},
		`"2021-04-09T14:54:04+02:00"`: {Wall: time.Date(2021, 4, 9, 14, 54, 4, 0, time.FixedZone("", 7200))},
		`""`:                          {},
	} {
		var got Stamp
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Wall.Equal(want.Wall) || got.Local != want.Local {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
		if again, err := json.Marshal(got); err != nil || string(again) != text {
			t.Errorf("%s comes back as %s, %v", text, again, err)
		}
	}
	if err := new(Stamp).UnmarshalText([]byte("yesterday")); err == nil {
		t.Error("yesterday is a time")
	}
	both := Stamp{Wall: gps.Add(2 * time.Hour), Local: true, UTC: gps}
	if at, instant := both.Time(); !at.Equal(gps) || !instant || both.IsZero() {
		t.Errorf("%v, %v; want the time of the receiver", at, instant)
	}
	if at, instant := (Stamp{}).Time(); instant || !at.IsZero() || !(Stamp{}).IsZero() {
		t.Error("an unknown time is an instant")
	}
}

func TestPositions(t *testing.T) {
	t.Parallel()
	place := HasNorth | HasEast
	for _, tt := range []struct {
		position        Position
		valid, offEarth bool
	}{
		{Position{North: 52, East: 7, Has: place}, true, false},
		{Position{North: -90, East: 180, Has: place}, true, false},
		{Position{North: 0, East: 7, Has: place}, true, false},
		{Position{Has: place}, false, false},
		{Position{North: 52, East: 7, Has: HasNorth}, false, false},
		{Position{North: 90.1, East: 7, Has: place}, false, true},
		{Position{North: 52, East: -214.7, Has: place}, false, true},
		{Position{North: math.NaN(), East: 7, Has: place}, false, true},
	} {
		if tt.position.Valid() != tt.valid || tt.position.OffEarth() != tt.offEarth {
			t.Errorf("%+v: valid %v, off Earth %v", tt.position, tt.position.Valid(), tt.position.OffEarth())
		}
	}
}

func TestFindingsSayWhatAndWhere(t *testing.T) {
	t.Parallel()
	f := &Finding{Kind: KindUnreadable, File: "a/TLG00001.BIN", Offset: 7, Record: 0, Detail: "rest of the log", Err: io.ErrUnexpectedEOF}
	if got := f.Error(); got != "a/TLG00001.BIN: unreadable: rest of the log, record 0, byte 7: unexpected EOF" {
		t.Error(got)
	}
	if !errors.Is(f, io.ErrUnexpectedEOF) {
		t.Error("the cause is hidden")
	}
	if got := (&Finding{Kind: KindLimit, Offset: -1, Record: -1}).Error(); got != "limit" {
		t.Error(got)
	}
}

func TestCloneOutlivesTheStream(t *testing.T) {
	t.Parallel()
	record := &Record{Number: 3, Values: []Value{{Raw: 1}}}
	clone := record.Clone()
	record.Number, record.Values[0].Raw = 4, 2
	if clone.Number != 3 || !slices.Equal(clone.Values, []Value{{Raw: 1}}) {
		t.Errorf("%+v", clone)
	}
}

// TestDictionary holds the table to itself, every line of it, and to entries that were looked up by hand.
func TestDictionary(t *testing.T) {
	t.Parallel()
	for ddi, want := range map[DDI]Meaning{
		0x0000: {"Internal data base DDI", "", 1}, 0x0001: {"Setpoint volume per area application rate", "mm³/m²", 0.01}, 0x0007: {"Actual mass per area application rate", "mg/m²", 1},
		0x0046: {"Maximum working width", "mm", 1}, 0x0073: {"Maximum bale size", "mm", 1}, 0x00B0: {"Actual condensed work state (241-256)", "", 1},
		0x0074: {"Total area", "m²", 1}, 0x007C: {"Auxiliary valve scaling extend", "%", 0.1}, 0x0114: {"Lifetime fuel consumption", "L", 0.5},
		0x018D: {"Actual speed", "mm/s", 1}, 0x0240: {"Maximum electrical energy per area application rate", "kWh/m²", 1e-7},
		0x02B6: {"Lifetime total unloading time", "s", 1}, 0xC005: {"Setpoint crop conditioning intensity", "%", 0.01}, DDIPGN: {"PGN based data", "", 1},
	} {
		if got, ok := ddi.Meaning(); !ok || got != want {
			t.Errorf("%s is %+v, want %+v", ddi, got, want)
		}
	}
	lines, last := 0, -1
	for line := range strings.Lines(ddiTable) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		ddi, err := ParseDDI(line[:4])
		if m, ok := ddi.Meaning(); err != nil || int(ddi) <= last || !ok || m.Name == "" || m.Scale <= 0 || ddi.Proprietary() {
			t.Errorf("%q is %s %+v, %v", line, ddi, m, err)
		}
		lines, last = lines+1, int(ddi)
	}
	if lines != 724 || len(dictionary()) != lines {
		t.Errorf("%d lines, %d entries, want 724", lines, len(dictionary()))
	}
	for _, ddi := range []DDI{0x0098, 0x4000, 0xE000, DDIUnknown} {
		if m, ok := ddi.Meaning(); ok {
			t.Errorf("%s is %+v, want a number", ddi, m)
		}
	}
	for _, text := range []string{"", "12345", "XYZ", "-1"} {
		if _, err := ParseDDI(text); err == nil {
			t.Errorf("%q is a DDI", text)
		}
	}
	if !DDI(0xEA60).Proprietary() || DDI(0x0043).Proprietary() {
		t.Error("proprietary DDIs are E000 to FFFE")
	}
}

// TestUnits: a value is in the unit of its presentation or in the SI, and every unit of the data dictionary has one there.
func TestUnits(t *testing.T) {
	t.Parallel()
	for ddi, m := range dictionary() {
		if _, ok := coherent[m.Unit]; !ok && m.Unit != "" {
			t.Errorf("%s: %s is in no unit of the SI", ddi, m.Unit)
		}
	}
	celsius := &Column{DDI: 0x00C0, Unit: "°C", Scale: 0.001, Offset: -273150}
	for name, tt := range map[string]struct {
		column          *Column
		raw             int64
		presented, want float64
		unit            string
	}{
		"rate":          {&Column{DDI: 0x0054, Unit: "t/ha", Scale: 1e-5}, 850_000, 8.5, 0.85, "kg/m²"},
		"temperature":   {celsius, 293150, 20, 293.15, "K"},
		"as it is":      {&Column{DDI: 0x0074, Unit: "m²", Scale: 1}, 7, 7, 7, "m²"},
		"resolution":    {&Column{DDI: 0x0001, Unit: "L/ha", Scale: 1e-4}, 2_000_000, 200, 2e-5, "m³/m²"},
		"speed":         {&Column{DDI: 0x01E4, Unit: "r/min", Scale: 0.0001}, 18_000_000, 1800, 30, "1/s"},
		"energy":        {&Column{DDI: 0x023D, Unit: "kWh", Scale: 0.001}, 2000, 2, 7.2e6, "J"},
		"no unit":       {&Column{DDI: 0x008D, Scale: 1}, 1, 1, 1, ""},
		"proprietary":   {&Column{DDI: 0xEA7E, Unit: "km/h", Scale: 0.1}, 95, 9.5, 9.5, "km/h"},
		"a CAN message": {&Column{DDI: DDIPGN, PGN: 65096, Unit: "km/h", Scale: 0.5}, 20, 10, 10, "km/h"},
	} {
		v := Value{Column: tt.column, Raw: tt.raw}
		got, unit := v.In(SI)
		if math.Abs(got-tt.want) > 1e-12*math.Abs(tt.want) || unit != tt.unit {
			t.Errorf("%s: got %v %s, want %v %s", name, got, unit, tt.want, tt.unit)
		}
		if got, unit := v.In(Presented); math.Abs(got-tt.presented) > 1e-9 || unit != tt.column.Unit {
			t.Errorf("%s: got %v %s, want %v %s", name, got, unit, tt.presented, tt.column.Unit)
		}
	}
}

// TestTimesAsTheyAreWritten: what programs write for times is read, with its offset or as local time; anything else is an error.
func TestTimesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2026-03-01T10:15:30Z": "2026-03-01T10:15:30Z", "2026-03-01T10:15:30.25+01:00": "2026-03-01T10:15:30.25+01:00", "2026-03-01T10:15:30": "2026-03-01T10:15:30",
		"2026-03-01T10:15Z": "2026-03-01T10:15:00Z", "2026-03-01T10:15": "2026-03-01T10:15:00", "2026-03-01t10:15:30z": "2026-03-01T10:15:30Z",
		"2026-03-01 10:15:30": "2026-03-01T10:15:30", "2026-03-01T10:15:30+0100": "2026-03-01T10:15:30+01:00", "2026-02-28T24:00:00": "2026-03-01T00:00:00", "": "",
	} {
		if got, err := ParseStamp(text); err != nil || got.String() != want {
			t.Errorf("%q: got %s and %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "2026-03-01", "2026-02-30T10:15:30", "2026-03-01T24:30:00", "2026-03-01T24:00:01", "2026-03-01T10:15:30 CET", "T24"} {
		if got, err := ParseStamp(text); err == nil || !got.IsZero() {
			t.Errorf("%q: got %s, want an error", text, got)
		}
	}
}

// TestUnitsAreConverted: units of the same quantity, however they are spelled, and no others.
func TestUnitsAreConverted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from, to string
		want     float64 // of 1; NaN: refused
	}{
		{"mg/m²", "kg/ha", 0.01}, {"kg/ha", "mg/m²", 100}, {"mm³/m²", "l/ha", 0.01}, {"ml/m2", "L/ha", 10}, {"mm³/m²", "mm", 1e-6}, {"t/ha", "lb/ac", 892.179121669}, {"/m²", "seeds/ha", 1e4},
		{"mm/s", "km/h", 0.0036}, {"ppm", "%", 1e-4}, {"mK", "°C", -273.149}, {"°C", "K", 274.15}, {"kWh", "J", 3.6e6}, {"W", "J/s", 1}, {"N*m", "J", math.NaN()}, {"r/min", "Hz", 1.0 / 60},
		{"kg", "l", math.NaN()}, {"kg/ha", "kg", math.NaN()}, {"", "1", math.NaN()}, {"kg/", "kg", math.NaN()}, {"°C/h", "K/h", math.NaN()}, {"kg/°", "kg/rad", math.NaN()}, {"²", "m²", math.NaN()}, {"stones", "kg", math.NaN()}, {"kg/13", "kg", math.NaN()},
	} {
		from, ok1 := ParseUnit(tt.from)
		to, ok2 := ParseUnit(tt.to)
		factor, shift, ok := from.To(to)
		if got := factor + shift; (ok1 && ok2 && ok) == math.IsNaN(tt.want) || ok && math.Abs(got-tt.want) > 1e-9*math.Abs(tt.want) {
			t.Errorf("%s in %s: got %v, %t %t %t, want %v", tt.from, tt.to, got, ok1, ok2, ok, tt.want)
		}
	}
}

// TestConstantsThatAreThereTwice: a record with a value of its own has none of the constants of the same kind.
func TestConstantsThatAreThereTwice(t *testing.T) {
	t.Parallel()
	columns := []Column{{DDI: 0x43}, {DDI: 0x43}, {DDI: 0x44}}
	for own, want := range map[int][]int64{0: {3, 9}, 1: {3, 9}, 2: {1, 2, 9}} {
		log := &Log{Columns: columns, Constants: []Value{{&columns[0], 1}, {&columns[1], 2}, {&columns[2], 3}}}
		log.Records = func(yield func(*Record, error) bool) { yield(&Record{Values: []Value{{&columns[own], 9}}}, nil) }
		var got []int64
		for record, err := range log.WithConstants() {
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range record.Values {
				got = append(got, v.Raw)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("a record with a value of column %d: got %v, want %v", own, got, want)
		}
	}
}
