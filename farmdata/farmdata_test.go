package farmdata

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
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

// TestDictionary holds the table to itself: what comes in fives and sixteens is
// where it belongs, and every entry can be used.
func TestDictionary(t *testing.T) {
	t.Parallel()
	for ddi, name := range map[DDI]string{
		0x0001: "Setpoint volume per area application rate", 0x0007: "Actual mass per area application rate",
		0x0046: "Maximum working width", 0x0073: "Maximum bale size", 0x00B0: "Actual condensed work state, sections 241 to 256",
		0x0122: "Setpoint condensed work state, sections 1 to 16", 0x018D: "Actual speed",
	} {
		if meaning, ok := ddi.Meaning(); !ok || meaning.Name != name {
			t.Errorf("%s is %q, want %q", ddi, meaning.Name, name)
		}
	}
	for ddi, meaning := range dictionary {
		if meaning.Name == "" || meaning.Scale <= 0 || ddi.Proprietary() && ddi < 0xDFFE {
			t.Errorf("%s: %+v", ddi, meaning)
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
