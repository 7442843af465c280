package efdi

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// with returns a message with fields behind its own that are not in its definition, or of another type than there.
func with(t *testing.T, m proto.Message, fields ...byte) []byte {
	t.Helper()
	return append(marshal(t, m), fields...)
}

// logOf is a log of encoded entries.
func logOf(entries ...[]byte) (b []byte) {
	for _, entry := range entries {
		b = protowire.AppendBytes(protowire.AppendTag(b, timeLogEntry, protowire.BytesType), entry)
	}
	return b
}

var nan, inf = math.NaN(), math.Inf(1)

// TestFiguresOfEntries says for one entry of a log of three what becomes of figures that are missing, bad or of an unknown
// kind: what is kept of it, and what is found. The others are whole.
func TestFiguresOfEntries(t *testing.T) {
	t.Parallel()
	with15 := func(t *efdipb.Time) { t.PositionStart = nil }
	for name, tt := range map[string]struct {
		change      func(*efdipb.Time)
		more        []byte // behind the fields of the entry
		kept, found string
	}{
		"whole":                 {func(*efdipb.Time) {}, nil, "true 52.5 7.5, status 4, 1 values", ""},
		"no position":           {with15, nil, "false 0 0, status 0, 1 values", ""},
		"no longitude":          {func(t *efdipb.Time) { t.PositionStart.East = 0 }, nil, "false 52.5 0, status 4, 1 values", "position"},
		"no latitude":           {func(t *efdipb.Time) { t.PositionStart.North = 0 }, nil, "false 0 7.5, status 4, 1 values", "position"},
		"neither":               {func(t *efdipb.Time) { t.PositionStart.North, t.PositionStart.East = 0, 0 }, nil, "false 0 0, status 4, 1 values", ""},
		"latitude of NaN":       {func(t *efdipb.Time) { t.PositionStart.North = nan }, nil, "false NaN 7.5, status 4, 1 values", "position"},
		"infinite longitude":    {func(t *efdipb.Time) { t.PositionStart.East = inf }, nil, "false 52.5 +Inf, status 4, 1 values", "position"},
		"beyond the pole":       {func(t *efdipb.Time) { t.PositionStart.North = -90.5 }, nil, "false -90.5 7.5, status 4, 1 values", "position"},
		"status beyond a byte":  {func(t *efdipb.Time) { t.PositionStart.Status = 260 }, nil, "true 52.5 7.5, status 15, 1 values", "value"},
		"negative status":       {func(t *efdipb.Time) { t.PositionStart.Status = -1 }, nil, "true 52.5 7.5, status 15, 1 values", "value"},
		"precision of NaN":      {func(t *efdipb.Time) { t.PositionStart.Pdop = nan }, nil, "true 52.5 7.5, status 4, 1 values, no precision", ""},
		"no time":               {func(t *efdipb.Time) { t.Start = nil }, nil, "true 52.5 7.5, status 4, 1 values, no time", ""},
		"time without fields":   {func(t *efdipb.Time) { t.Start = &timestamppb.Timestamp{} }, nil, "true 52.5 7.5, status 4, 1 values, no time", ""},
		"time beyond the years": {func(t *efdipb.Time) { t.Start = &timestamppb.Timestamp{Seconds: 1e15} }, nil, "true 52.5 7.5, status 4, 1 values, no time", "time"},
		"receiver a day off":    {func(t *efdipb.Time) { t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 1_600_086_401} }, nil, "true 52.5 7.5, status 4, 1 values", "time"},
		"receiver in 2149":      {func(t *efdipb.Time) { t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 5_662_000_000} }, nil, "true 52.5 7.5, status 4, 1 values", "time"},
		"machine in 1980": {func(t *efdipb.Time) {
			t.Start = &timestamppb.Timestamp{Seconds: 315_619_200}
			t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 1_600_000_000}
		}, nil, "true 52.5 7.5, status 4, 1 values, UTC", "time"},
		"machine in 2157": {func(t *efdipb.Time) {
			t.Start = &timestamppb.Timestamp{Seconds: 5_931_532_800}
			t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 1_600_000_000}
		}, nil, "true 52.5 7.5, status 4, 1 values, UTC", "time"},
		"machine in 1980, no receiver": {func(t *efdipb.Time) {
			t.Start = &timestamppb.Timestamp{Seconds: 315_619_200}
		}, nil, "true 52.5 7.5, status 4, 1 values", "time"},
		"no machine, receiver in 2149": {func(t *efdipb.Time) {
			t.Start, t.PositionStart.GpsUtc = nil, &timestamppb.Timestamp{Seconds: 5_662_000_000}
		}, nil, "true 52.5 7.5, status 4, 1 values, UTC", "time"},
		"both are wrong": {func(t *efdipb.Time) {
			t.Start = &timestamppb.Timestamp{Seconds: 315_619_200}
			t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 5_662_000_000}
		}, nil, "true 52.5 7.5, status 4, 1 values", "time"},
		"receiver without a time": {func(t *efdipb.Time) { t.PositionStart.GpsUtc = &timestamppb.Timestamp{} }, nil, "true 52.5 7.5, status 4, 1 values", ""},
		"receiver in local time":  {func(t *efdipb.Time) { t.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 1_600_007_200} }, nil, "true 52.5 7.5, status 4, 1 values, UTC", ""},
		"DDI of 17 bits":          {func(t *efdipb.Time) { t.DataLogValue[0].Ddi = 1<<16 + 0x43 }, nil, "true 52.5 7.5, status 4, 0 values", "value"},
		"bit 300 of a message":    {func(t *efdipb.Time) { t.DataLogValue[0].PgnStopBit = 300 }, nil, "true 52.5 7.5, status 4, 0 values", "value"},
		"PGN of 33 bits":          {func(t *efdipb.Time) { t.DataLogValue[0].Pgn = 1 << 32 }, nil, "true 52.5 7.5, status 4, 0 values", "value"},
		"unknown field":           {func(*efdipb.Time) {}, []byte{12 << 3, 1}, "true 52.5 7.5, status 4, 1 values", "unsupported"},
		"field of another type":   {func(*efdipb.Time) {}, []byte{1 << 3, 1}, "true 52.5 7.5, status 4, 1 values", "unsupported"},
		"unknown part of a place": {func(*efdipb.Time) {}, []byte{5<<3 | 2, 2, 12 << 3, 1}, "true 52.5 7.5, status 4, 1 values", "unsupported"},
	} {
		bad := entry(1, 9001)
		tt.change(bad)
		set := open(t, logOf(marshal(t, entry(0, 9000)), with(t, bad, tt.more...), marshal(t, entry(2, 9002))), TimeLog, Config{})
		records, found := farmdatatest.Read(t, set.Logs[0])
		if got := farmdatatest.Kinds(found); len(records) != 3 || got != tt.found || len(found) > 0 && found[0].Record != 1 {
			t.Errorf("%s: got %d records and findings %q, want 3 and %q: %v", name, len(records), got, tt.found, found)
			continue
		}
		r := records[1]
		got := fmt.Sprintf("%v %g %g, status %d, %d values", r.Position.Valid(), r.Position.North, r.Position.East, r.Position.Status, len(r.Values))
		if r.Position.Has&farmdata.HasPDOP == 0 && r.Position.Has != 0 {
			got += ", no precision"
		}
		if r.Stamp.IsZero() {
			got += ", no time"
		}
		if !r.Stamp.UTC.IsZero() {
			got += ", UTC"
		}
		if got != tt.kept {
			t.Errorf("%s: got %s, want %s", name, got, tt.kept)
		}
		if !records[0].Position.Valid() || !records[2].Position.Valid() || len(records[2].Values) != 1 {
			t.Errorf("%s: got %+v and %+v, want the entries around it whole", name, records[0], records[2])
		}
	}
}

// TestAllEntriesHaveIt: what usually all entries have is found once, and all are given.
func TestAllEntriesHaveIt(t *testing.T) {
	t.Parallel()
	late, unknown := entry(0, 1), []byte{12 << 3, 1}
	late.PositionStart.GpsUtc = &timestamppb.Timestamp{Seconds: 5_662_000_000}
	for name, tt := range map[string]struct {
		entry []byte
		found string
	}{
		"receivers in 2149": {marshal(t, late), "time"},
		"unknown fields":    {with(t, entry(0, 1), unknown...), "unsupported"},
		"both":              {with(t, late, unknown...), "unsupported"},
	} {
		set := open(t, logOf(tt.entry, tt.entry, tt.entry), TimeLog, Config{})
		if records, found := farmdatatest.Read(t, set.Logs[0]); len(records) != 3 || farmdatatest.Kinds(found) != tt.found {
			t.Errorf("%s: got %d records and findings %v, want 3 and %q", name, len(records), found, tt.found)
		}
	}
}

// TestFieldsBesideEntries: a field of a message that is not described is found once, and all entries are given.
func TestFieldsBesideEntries(t *testing.T) {
	t.Parallel()
	log, list := logOf(marshal(t, entry(0, 1)), marshal(t, entry(1, 2))), marshal(t, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 52, East: 7}, {North: 52, East: 8}}})
	for name, tt := range map[string]struct{ more, found string }{
		"none": {"", ""}, "an extension": {"\x82\x80\x01\x00", ""}, "new numbers": {"\x78\x01\x7a\x01x", "unsupported"},
	} {
		for message, payload := range map[Message][]byte{TimeLog: log, GPSList: list} {
			set := open(t, append(payload, tt.more...), message, Config{})
			if records, found := farmdatatest.Read(t, set.Logs[0]); len(records) != 2 || farmdatatest.Kinds(found) != tt.found {
				t.Errorf("%s of %s: got %d records and %v, want 2 and %q", name, message, len(records), found, tt.found)
			}
		}
	}
}

// TestElementOfNoDevice: a value of a device element that no device has is told once for a log, whatever else is wrong with the
// entry, and given. Without any device nothing can be described, and nobody expects it.
func TestElementOfNoDevice(t *testing.T) {
	t.Parallel()
	devices := open(t, marshal(t, description()), TaskData, Config{}).Devices
	of := func(element *efdipb.UID) []byte {
		e := entry(0, 1)
		e.DataLogValue[0].DeviceElement = element
		return marshal(t, e)
	}
	known, other, uri := of(&efdipb.UID{Number: -1}), of(&efdipb.UID{Number: -9}), of(&efdipb.UID{Uri: []string{"x"}})
	late := entry(0, 1)
	late.PositionStart.GpsUtc, late.DataLogValue[0].DeviceElement = &timestamppb.Timestamp{Seconds: 5_662_000_000}, &efdipb.UID{Number: -9}
	for name, tt := range map[string]struct {
		log     []byte
		devices []farmdata.Device
		found   string
	}{
		"all known":         {logOf(known, known, known), devices, ""},
		"one of another":    {logOf(known, other, known), devices, "reference"},
		"all of another":    {logOf(other, other, other), devices, "reference"},
		"two others":        {logOf(known, other, uri), devices, "reference"},
		"element by URI":    {logOf(uri, known, uri), devices, "reference"},
		"no element":        {logOf(of(nil), of(nil), of(nil)), devices, ""},
		"bad time, too":     {logOf(marshal(t, late), marshal(t, late), marshal(t, late)), devices, "reference, time"},
		"no device":         {logOf(other, other, other), nil, ""},
		"device of nothing": {logOf(known, known, known), []farmdata.Device{{ID: "DVC-2"}}, "reference"},
	} {
		set := open(t, tt.log, TimeLog, Config{Devices: tt.devices})
		records, found := farmdatatest.Read(t, set.Logs[0])
		if len(records) != 3 || farmdatatest.Kinds(found) != tt.found {
			t.Errorf("%s: got %d records and findings %v, want 3 and %q", name, len(records), found, tt.found)
		}
		for _, record := range records {
			if len(record.Values) != 1 {
				t.Errorf("%s: got %d values, want the one", name, len(record.Values))
			}
		}
	}
}

// TestDevicesThatAreTwice: a log whose devices were described with an ID twice, or without one, says so: its values may be of either.
func TestDevicesThatAreTwice(t *testing.T) {
	t.Parallel()
	device := func(id string, elements ...string) (d farmdata.Device) {
		d.ID = id
		for _, element := range elements {
			d.Elements = append(d.Elements, farmdata.Element{ID: element})
		}
		return d
	}
	log := logOf(marshal(t, entry(0, 1)))
	for name, tt := range map[string]struct {
		devices []farmdata.Device
		found   string
	}{
		"two":                   {[]farmdata.Device{device("DVC1", "DET-1", ""), device("DVC2", "DET2", "")}, ""},
		"one without an ID":     {[]farmdata.Device{device("DVC1", "DET-1", ""), device("", "DET2")}, ""},
		"two without an ID":     {[]farmdata.Device{device("", "DET-1"), device("", "DET2")}, "duplicate"},
		"a device twice":        {[]farmdata.Device{device("DVC1", "DET-1"), device("DVC1")}, "duplicate"},
		"an element in another": {[]farmdata.Device{device("DVC1", "DET-1"), device("DVC2", "DET-1")}, "duplicate"},
	} {
		if found := open(t, log, TimeLog, Config{Devices: tt.devices}).Findings; farmdatatest.Kinds(found) != tt.found {
			t.Errorf("%s: got %v, want %q", name, found, tt.found)
		}
	}
}

// TestFiguresOfPositions does so for lists of positions.
func TestFiguresOfPositions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entry       *efdipb.GPSEntry
		kept, found string
	}{
		"whole":        {&efdipb.GPSEntry{North: 52, East: 7, GpsUtc: &timestamppb.Timestamp{Seconds: 1e9}}, "true, time", ""},
		"no longitude": {&efdipb.GPSEntry{North: 52, GpsUtc: &timestamppb.Timestamp{Seconds: 1e9}}, "false, time", "position"},
		"NaN":          {&efdipb.GPSEntry{North: 52, East: nan, GpsUtc: &timestamppb.Timestamp{Seconds: 1e9}}, "false, time", "position"},
		"no time":      {&efdipb.GPSEntry{North: 52, East: 7}, "true", ""},
		"1970":         {&efdipb.GPSEntry{North: 52, East: 7, GpsUtc: &timestamppb.Timestamp{Seconds: 1}}, "true, time", "time"},
		"2149":         {&efdipb.GPSEntry{North: 52, East: 7, GpsUtc: &timestamppb.Timestamp{Seconds: 5_662_000_000}}, "true, time", "time"},
		"bad time":     {&efdipb.GPSEntry{North: 52, East: 7, GpsUtc: &timestamppb.Timestamp{Seconds: 1, Nanos: -1}}, "true", "time"},
		"status":       {&efdipb.GPSEntry{North: 52, East: 7, Status: 999}, "true", "value"},
	} {
		whole := &efdipb.GPSEntry{North: 52, East: 7, GpsUtc: &timestamppb.Timestamp{Seconds: 1e9}}
		set := open(t, marshal(t, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{whole, tt.entry, whole}}), GPSList, Config{})
		records, found := farmdatatest.Read(t, set.Logs[0])
		if got := farmdatatest.Kinds(found); len(records) != 3 || got != tt.found {
			t.Errorf("%s: got %d records and findings %q, want 3 and %q", name, len(records), got, tt.found)
			continue
		}
		got := fmt.Sprint(records[1].Position.Valid())
		if !records[1].Stamp.IsZero() {
			got += ", time"
		}
		if got != tt.kept {
			t.Errorf("%s: got %s, want %s", name, got, tt.kept)
		}
	}
}

// TestFiguresOfTaskData does so for what is in memory.
func TestFiguresOfTaskData(t *testing.T) {
	t.Parallel()
	point := func(p *efdipb.Point) *efdipb.TaskData {
		return &efdipb.TaskData{Partfield: []*efdipb.Partfield{{Point: []*efdipb.Point{p}}}}
	}
	valid := func(s *farmdata.Set) string { return fmt.Sprint(s.Fields[0].Points[0].Valid()) }
	presented := func(p *efdipb.DeviceValuePresentation) *efdipb.TaskData {
		d := description()
		p.ObjectId, p.Unit = 20, "m"
		d.Device[0].ValuePresentation[0] = p
		return d
	}
	unit := func(s *farmdata.Set) string {
		c := farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
		farmdata.NewDescriptions(s.Devices).Describe(&c)
		return fmt.Sprintf("%g %s", c.Scale, c.Unit)
	}
	task := func(change func(*efdipb.Task)) *efdipb.TaskData {
		t := &efdipb.Task{Id: &efdipb.UID{Number: 1}}
		change(t)
		return &efdipb.TaskData{Task: []*efdipb.Task{t}}
	}
	times := func(s *farmdata.Set) string {
		at := s.Tasks[0].Times[0]
		return fmt.Sprint(at.Start.IsZero(), " ", at.Duration)
	}
	for name, tt := range map[string]struct {
		data        *efdipb.TaskData
		got         func(*farmdata.Set) string
		kept, found string
	}{
		"point":                   {point(&efdipb.Point{North: 52, East: 7}), valid, "true", ""},
		"point without a place":   {point(&efdipb.Point{}), valid, "false", "position"},
		"point without longitude": {point(&efdipb.Point{North: 52}), valid, "false", "position"},
		"point of NaN":            {point(&efdipb.Point{North: 52, East: nan}), valid, "false", "value, position"},
		"point beyond the pole":   {point(&efdipb.Point{North: 91, East: 7}), valid, "false", "position"},
		"presentation":            {presented(&efdipb.DeviceValuePresentation{Scale: 0.01}), unit, "0.01 m", ""},
		"presentation, no scale":  {presented(&efdipb.DeviceValuePresentation{}), unit, "1 mm", "value"},
		"presentation of NaN":     {presented(&efdipb.DeviceValuePresentation{Scale: nan}), unit, "1 mm", "value, value"},
		"huge area": {&efdipb.TaskData{Partfield: []*efdipb.Partfield{{Area: 1 << 63}}},
			func(s *farmdata.Set) string { return fmt.Sprint(s.Fields[0].Area) }, "0", "value"},
		"color of 300": {&efdipb.TaskData{Partfield: []*efdipb.Partfield{{Polygon: []*efdipb.Polygon{{Color: 255}, {Color: 300}}}}},
			func(s *farmdata.Set) string {
				return fmt.Sprint(s.Fields[0].Polygons[0].Color, s.Fields[0].Polygons[1].Color)
			}, "255 0", "value"},
		"DDI of 17 bits": {&efdipb.TaskData{Product: []*efdipb.Product{{Ddi: 1 << 16}}},
			func(s *farmdata.Set) string { return s.Products[0].DDI.String() }, "FFFF", "value"},
		"huge duration": {task(func(t *efdipb.Task) { t.Time = []*efdipb.Time{{Duration: 1 << 62}} }), times, "true 0s", "value"},
		"time beyond the years": {task(func(t *efdipb.Task) {
			t.Time = []*efdipb.Time{{Start: &timestamppb.Timestamp{Seconds: 1e15}, Duration: 1}}
		}), times, "true 1s", "time"},
		"status of 260": {task(func(t *efdipb.Task) {
			t.Time = []*efdipb.Time{{PositionStart: &efdipb.Position{North: 52, East: 7, Status: 260}}}
		}), func(s *farmdata.Set) string { return fmt.Sprint(s.Tasks[0].Times[0].Positions[0].Status) }, "15", "value"},
		"half a grid": {task(func(t *efdipb.Task) { t.Grid = &efdipb.Grid{North: 52, CellNorth: 1, CellEast: 1, Rows: 1, Columns: 1} }),
			func(s *farmdata.Set) string { return fmt.Sprint(s.Tasks[0].Grids[0].Valid()) }, "false", "position, missing"},
		"zone as a polygon": {task(func(t *efdipb.Task) { t.TreatmentZone = []*efdipb.TreatmentZone{{Polygon: []*efdipb.Polygon{{}}}} }),
			func(s *farmdata.Set) string { return fmt.Sprint(len(s.Tasks[0].Zones[0].Polygons)) }, "1", ""},
	} {
		set := open(t, marshal(t, tt.data), TaskData, Config{})
		if got := tt.got(set); got != tt.kept {
			t.Errorf("%s: got %s, want %s", name, got, tt.kept)
		}
		if got := farmdatatest.Kinds(set.Findings); got != tt.found {
			t.Errorf("%s: got findings %q, want %q: %v", name, got, tt.found, set.Findings)
		}
	}
}

// TestOneBadPartOfATaskData costs that part: a text with a byte that is not UTF-8, a field that is not described, an object
// that is malformed.
func TestOneBadPartOfATaskData(t *testing.T) {
	t.Parallel()
	customer := func(body string) string { return "\x82\x01" + string(rune(len(body))) + body }
	whole := customer("\x0a\x02\x08\x02\x12\x03Ada") // CTR1
	for name, tt := range map[string]struct{ bad, kept, found string }{
		"no UTF-8":           {customer("\x0a\x02\x08\x04\x12\x03B\xfcb"), "Ada B?b Ada", "text"},
		"field that is new":  {customer("\x0a\x02\x08\x04\x12\x03Bob\x78\x01"), "Ada Bob Ada", "unsupported"},
		"another type":       {customer("\x0a\x02\x08\x04\x10\x01"), "Ada  Ada", "unsupported"},
		"malformed object":   {customer("\x0a\x02\x08\x04\x12\x09Bob"), "Ada Ada", "syntax"},
		"all of it no UTF-8": {customer("\x12\x03\xff\xfe\xfd"), "Ada ??? Ada", "text"},
	} {
		payload := "\x08\x04" + whole + tt.bad + customer("\x0a\x02\x08\x06\x12\x03Ada")
		set := open(t, []byte(payload), TaskData, Config{})
		var names []string
		for _, c := range set.Customers {
			names = append(names, c.LastName)
		}
		if got := strings.Join(names, " "); got != tt.kept || farmdatatest.Kinds(set.Findings) != tt.found {
			t.Errorf("%s: got %q and findings %v, want %q and %q", name, got, set.Findings, tt.kept, tt.found)
		}
	}
}

// TestIDsOfATaskData: IDs that are there twice, and references to nothing, are counted; devices that were described before are there.
func TestIDsOfATaskData(t *testing.T) {
	t.Parallel()
	id := func(n int64) *efdipb.UID { return &efdipb.UID{Number: n} }
	known := []farmdata.Device{{ID: "DVC1", Elements: []farmdata.Element{{ID: "DET1"}}}}
	task := &efdipb.Task{Id: id(1), DeviceAllocation: []*efdipb.DeviceAllocation{{Device: id(1)}},
		ProductAllocation: []*efdipb.ProductAllocation{{DeviceElement: id(1)}}}
	for name, tt := range map[string]struct {
		data  *efdipb.TaskData
		known []farmdata.Device
		found string
	}{
		"no IDs":          {&efdipb.TaskData{Customer: []*efdipb.Customer{{}, {}}, Farm: []*efdipb.Farm{{}}}, nil, ""},
		"nothing":         {&efdipb.TaskData{Farm: []*efdipb.Farm{{Id: id(1), Customer: id(2)}}}, nil, "reference: customer of FRM is a CTR that is not there: 1, the first at FRM 1"},
		"a known device":  {&efdipb.TaskData{Task: []*efdipb.Task{task}}, known, ""},
		"unknown devices": {&efdipb.TaskData{Task: []*efdipb.Task{task}}, nil, "reference: device of DAN is a DVC that is not there: 1, the first at DAN 1, reference: device element of PAN is a DET that is not there: 1, the first at PAN 1"},
		"a device":        {&efdipb.TaskData{Device: []*efdipb.Device{{}, {Id: id(1)}}}, nil, ""},
		"two devices":     {&efdipb.TaskData{Device: []*efdipb.Device{{}, {}}}, nil, "duplicate: DVC without an ID, as an earlier one: 1, the first at DVC 2"},
		"zone 0":          {&efdipb.TaskData{Task: []*efdipb.Task{{Id: id(1), TreatmentZone: []*efdipb.TreatmentZone{{Code: 0}}}}}, nil, ""},
	} {
		set := open(t, marshal(t, tt.data), TaskData, Config{Devices: tt.known})
		var texts []string
		for _, f := range set.Findings {
			texts = append(texts, string(f.Kind)+": "+f.Detail)
		}
		if got := strings.Join(texts, ", "); got != tt.found {
			t.Errorf("%s: got %q, want %q", name, got, tt.found)
		}
	}
}

// TestZonesThatAreAbsent: zero is absent, unless there is a zone 0.
func TestZonesThatAreAbsent(t *testing.T) {
	t.Parallel()
	for zone, want := range map[uint32]int{0: 0, 1: -1} {
		task := &efdipb.Task{TreatmentZone: []*efdipb.TreatmentZone{{Code: zone}}, Grid: &efdipb.Grid{Type: 2}}
		got := open(t, marshal(t, &efdipb.TaskData{Task: []*efdipb.Task{task}}), TaskData, Config{}).Tasks[0]
		if got.DefaultZone != want || got.LostZone != want || got.OutsideZone != want || got.Grids[0].Zone != want {
			t.Errorf("with a zone %d: got %d, %d, %d and %d, want %d", zone, got.DefaultZone, got.LostZone, got.OutsideZone, got.Grids[0].Zone, want)
		}
	}
}

// TestHeadings: zero is absent, which is told of a line that is nothing without its heading; north is 360.
func TestHeadings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern *efdipb.GuidancePattern
		found   string
	}{{&efdipb.GuidancePattern{Type: 1}, ""}, {&efdipb.GuidancePattern{Type: 2}, "value"}, {&efdipb.GuidancePattern{Type: 2, Heading: 360}, ""}} {
		group := &efdipb.GuidanceGroup{Pattern: []*efdipb.GuidancePattern{tt.pattern}}
		set := open(t, marshal(t, &efdipb.TaskData{Partfield: []*efdipb.Partfield{{GuidanceGroup: []*efdipb.GuidanceGroup{group}}}}), TaskData, Config{})
		if got := set.Fields[0].Guidance[0].Patterns[0].Heading; got != tt.pattern.Heading || farmdatatest.Kinds(set.Findings) != tt.found {
			t.Errorf("%v: got %g, %v, want found %q", tt.pattern, got, set.Findings, tt.found)
		}
	}
}

// TestFieldsThatAreNotDescribed are counted by message and number, of which few are told apart.
func TestFieldsThatAreNotDescribed(t *testing.T) {
	t.Parallel()
	many := []byte{8, 4}
	for range 5000 {
		many = append(many, 0x4A, 0) // field 9
	}
	for i := range protowire.Number(5000) {
		many = protowire.AppendVarint(protowire.AppendTag(many, 3000+i, protowire.VarintType), 1)
	}
	found := open(t, many, TaskData, Config{}).Findings
	if len(found) != mostFields+1 || found[len(found)-2].Detail != "fields that are not described, 9 of TaskData: 5000" ||
		found[len(found)-1].Detail != fmt.Sprintf("fields that are not described, of other numbers: %d", 5000-mostFields+1) {
		t.Errorf("got %d findings: %v", len(found), found)
	}
}

// TestDurationsOfAllocations are not in the model, which a finding says.
func TestDurationsOfAllocations(t *testing.T) {
	t.Parallel()
	stamp := &efdipb.AllocationStamp{Type: 4}
	stamp.ProtoReflect().SetUnknown([]byte{3 << 3, 60})
	task := &efdipb.Task{Id: &efdipb.UID{Number: 1}, DeviceAllocation: []*efdipb.DeviceAllocation{{Stamp: stamp}}}
	found := open(t, marshal(t, &efdipb.TaskData{Task: []*efdipb.Task{task}}), TaskData, Config{}).Findings
	if len(found) != 1 || found[0].Detail != "fields that are not described, 3 of AllocationStamp: 1" {
		t.Errorf("got %v", found)
	}
}
