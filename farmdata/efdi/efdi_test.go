package efdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// shared is where real files and the figures of an independent reader are. They
// are no part of this repository.
const shared = "../../../shared/data"

// The parts of the figures that the model has. Google's reader writes 64-bit numbers
// as strings.
type wantPosition struct {
	North     float64   `json:"position_north"`
	East      float64   `json:"position_east"`
	Up        int64     `json:"position_up,string"`
	Status    string    `json:"position_status"`
	UTC       time.Time `json:"gps_utc_timestamp"`
	InField   string    `json:"field_status"`
	PDOP      float64
	HDOP      float64
	Satellite int `json:"number_of_satellites"`
}

type wantTime struct {
	Start    time.Time
	Position wantPosition `json:"position_start"`
	Values   []struct {
		DDI     farmdata.DDI `json:"process_data_ddi"`
		Value   int64        `json:"process_data_value,string"`
		Element struct {
			Number int64 `json:",string"`
		} `json:"device_element_id_ref"`
	} `json:"data_log_value"`
}

// TestAgreesWithIndependentReader compares every entry that Google's reader was
// asked about.
func TestAgreesWithIndependentReader(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(shared, "efdi", "expected.json"))
	if errors.Is(err, os.ErrNotExist) {
		const message = "REAL FARM FILES ARE ABSENT, WHAT IS READ IS NOT COMPARED WITH AN INDEPENDENT READER: %v"
		if os.Getenv("CI") != "" {
			t.Fatalf(message, err)
		}
		t.Skipf(message, err)
	}
	var want map[string]struct {
		Decoded struct {
			Time        []wantTime
			GPS         []wantPosition `json:"gps_entries"`
			Entries     int
			Values      int
			First, Last *wantTime
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil || len(want) != 3 {
		t.Fatalf("figures of %d files: %v", len(want), err)
	}
	for name, want := range want {
		payload := testkit.Must(os.ReadFile(filepath.Join(shared, "farm", name)))(t)
		log := open(t, payload, Unknown, Config{}).Logs[0]
		records, found := farmdatatest.Read(t, log)
		if len(found) != 0 {
			t.Errorf("%s: findings %v", name, found)
		}
		d := want.Decoded
		values := 0
		for _, record := range records {
			values += len(record.Values)
		}
		switch {
		case d.Entries > 0:
			if len(records) != d.Entries || values != d.Values {
				t.Fatalf("%s: %d records with %d values, want %d with %d", name, len(records), values, d.Entries, d.Values)
			}
			compareTime(t, records[0], *d.First)
			compareTime(t, records[len(records)-1], *d.Last)
		case len(d.GPS) > 0:
			if len(records) != len(d.GPS) {
				t.Fatalf("%s: %d records, want %d", name, len(records), len(d.GPS))
			}
			for i, record := range records {
				comparePosition(t, record, d.GPS[i])
				if record.Position.FieldStatus != 1 || d.GPS[i].InField != "FS_INFIELD" {
					t.Errorf("%s: field status %d, want %s", name, record.Position.FieldStatus, d.GPS[i].InField)
				}
			}
		default:
			if len(records) != len(d.Time) || len(records) == 0 {
				t.Fatalf("%s: %d records, want %d", name, len(records), len(d.Time))
			}
			for i, record := range records {
				compareTime(t, record, d.Time[i])
			}
		}
	}
}

func compareTime(t *testing.T, got *farmdata.Record, want wantTime) {
	t.Helper()
	if !got.Stamp.Wall.Equal(want.Start) || got.Stamp.Local {
		t.Errorf("record %d: start %v, want %v, an instant", got.Number, got.Stamp, want.Start)
	}
	comparePosition(t, got, want.Position)
	if len(got.Values) != len(want.Values) {
		t.Fatalf("record %d: %d values, want %d", got.Number, len(got.Values), len(want.Values))
	}
	for i, v := range got.Values {
		w := want.Values[i]
		if v.Column.DDI != w.DDI || v.Raw != w.Value || v.Column.ElementID != fmt.Sprint("DET", w.Element.Number) {
			t.Errorf("record %d: value %d of %s of %s, want %d of %s of %d", got.Number, v.Raw, v.Column.DDI, v.Column.ElementID, w.Value, w.DDI, w.Element.Number)
		}
	}
}

func comparePosition(t *testing.T, got *farmdata.Record, want wantPosition) {
	t.Helper()
	status := map[string]uint8{"": 0, "D_GNSS": 1, "D_NOT_AVAILABLE": 15}[want.Status]
	p := got.Position
	if p.North != want.North || p.East != want.East || p.Up != want.Up || p.Status != status || p.PDOP != want.PDOP || p.HDOP != want.HDOP ||
		p.Satellites != want.Satellite || !got.Stamp.UTC.Equal(want.UTC) {
		t.Errorf("record %d: position %+v at %v, want %+v", got.Number, p, got.Stamp.UTC, want)
	}
}

func open(t testing.TB, payload []byte, message Message, cfg Config) *farmdata.Set {
	t.Helper()
	return testkit.Must(Open(t.Context(), bytes.NewReader(payload), int64(len(payload)), message, cfg))(t)
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	return testkit.Must(proto.Marshal(m))(t)
}

// entry is an entry of a log: the working width of DET-1.
func entry(seconds, raw int64) *efdipb.Time {
	return &efdipb.Time{
		Start:         &timestamppb.Timestamp{Seconds: 1_600_000_000 + seconds},
		PositionStart: &efdipb.Position{North: 52.5, East: 7.5, Up: 100, Status: 4, Pdop: 1.5, Hdop: 1.2, Satellites: 9},
		DataLogValue:  []*efdipb.DataLogValue{{Ddi: 0x43, Value: raw, DeviceElement: &efdipb.UID{Number: -1}}},
	}
}

func sampleLog(entries int) *efdipb.TimeLog {
	log := &efdipb.TimeLog{Filename: "TLG00001.bin", Filelength: 123}
	for i := range entries {
		log.Time = append(log.Time, entry(int64(i), int64(9000+i)))
	}
	return log
}

// description is a device description: DET-1 of a mower.
func description() *efdipb.TaskData {
	return &efdipb.TaskData{VersionMajor: 4, VersionMinor: 2, Device: []*efdipb.Device{{
		Id: &efdipb.UID{Number: -1}, Designator: "mower", ClientName: []byte{0xA0, 0, 0x86, 0, 0x0D, 0xE0, 0x28, 0x12},
		Element:           []*efdipb.DeviceElement{{Id: &efdipb.UID{Number: -1}, Designator: "body", Reference: []*efdipb.DeviceObjectReference{{ObjectId: 10}}}},
		ProcessData:       []*efdipb.DeviceProcessData{{ObjectId: 10, Ddi: 0x43, Designator: "width", ValuePresentationObjectId: 20}},
		ValuePresentation: []*efdipb.DeviceValuePresentation{{ObjectId: 20, Scale: 0.001, Unit: "m", Decimals: 2}},
	}}}
}

// TestWrappers: a message may be bare, or in an Any whose type URL cannot be trusted.
func TestWrappers(t *testing.T) {
	t.Parallel()
	gps := &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 52.5, East: 7.5, GpsUtc: timestamppb.New(time.Unix(1_600_000_000, 0))}}}
	for message, sent := range map[Message]proto.Message{TimeLog: sampleLog(2), TaskData: description(), GPSList: gps} {
		bare := marshal(t, sent)
		for name, payload := range map[string][]byte{
			"bare":            bare,
			"Any":             marshal(t, &anypb.Any{TypeUrl: "type.googleapis.com/efdi.TimeLog", Value: bare}),
			"wrong URL":       marshal(t, &anypb.Any{TypeUrl: "types.agrirouter.com/efdi.Nonsense", Value: bare}),
			"empty URL":       marshal(t, &anypb.Any{Value: bare}),
			"Any in an Any":   marshal(t, &anypb.Any{TypeUrl: "x", Value: marshal(t, &anypb.Any{Value: bare})}),
			"newer extension": append(bytes.Clone(bare), protowire.AppendBytes(protowire.AppendTag(nil, 2048, protowire.BytesType), []byte("x"))...),
		} {
			for _, asked := range []Message{message, Unknown} {
				set := open(t, payload, asked, Config{})
				if len(set.Findings) != 0 {
					t.Errorf("%s, %s: findings %v", message, name, set.Findings)
				}
				switch records := 0; message {
				case TaskData:
					if len(set.Devices) != 1 || set.Major != 4 {
						t.Errorf("%s, %s: %+v", message, name, set)
					}
				default:
					all, found := farmdatatest.Read(t, set.Logs[0])
					if records = len(all); len(found) != 0 {
						t.Errorf("%s, %s: findings %v", message, name, found)
					}
					if records != len(sampleLog(2).Time) && message == TimeLog || records != 1 && message == GPSList {
						t.Errorf("%s, %s: %d records", message, name, records)
					}
				}
			}
		}
		for _, other := range []Message{TimeLog, TaskData, GPSList} {
			if other == message {
				continue
			}
			if _, err := Open(t.Context(), bytes.NewReader(bare), int64(len(bare)), other, Config{}); !errors.Is(err, ErrNotEFDI) {
				t.Errorf("%s read as %s: %v", message, other, err)
			}
		}
	}
	for name, payload := range map[string]string{"nothing": "", "text": "hello, world", "zip": "PK\x03\x04\x14\x00\x00\x00", "zeros": "\x00\x00\x00\x00"} {
		if _, err := Open(t.Context(), strings.NewReader(payload), int64(len(payload)), Unknown, Config{}); !errors.Is(err, ErrNotEFDI) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// wholeTaskData has something of everything.
func wholeTaskData() *efdipb.TaskData {
	uid := func(n int64) *efdipb.UID { return &efdipb.UID{Number: n} }
	stamp := &efdipb.AllocationStamp{Start: &timestamppb.Timestamp{Seconds: 5}, Type: 4}
	line := &efdipb.LineString{Type: 1, Point: []*efdipb.Point{{Type: 2, North: 52.1, East: 7.1, Up: 3}}}
	data := description()
	data.Software, data.Controller, data.Origin = "software", "controller", 2
	data.Customer = []*efdipb.Customer{{Id: uid(1), LastName: "Last", Street: "Weg 1", Email: "a@b"}}
	data.BaseStation = []*efdipb.BaseStation{{Id: uid(1), Designator: "Base", North: 52, East: 8, Up: -3}}
	data.Farm = []*efdipb.Farm{{Id: uid(1), Designator: "Farm", Customer: uid(1), Country: "DE"}}
	data.Worker = []*efdipb.Worker{{Id: uid(1), LastName: "Worker", License: "B"}}
	data.Product = []*efdipb.Product{{Id: uid(1), Designator: "Seed", ProductGroup: uid(1), Ddi: 6, Type: 2, Quantity: 9, MassPerVolume: 7, VolumePerCount: 5, Relation: []*efdipb.ProductRelation{{Product: uid(1), Value: 4}}}}
	data.CulturalPractice = []*efdipb.CulturalPractice{{Id: uid(1), Designator: "Mow", Reference: []*efdipb.OperationTechniqueReference{{Technique: uid(1)}}}}
	data.OperationTechnique = []*efdipb.OperationTechnique{{Id: uid(1), Designator: "Low"}}
	data.CodedCommentGroup = []*efdipb.CodedCommentGroup{{Id: uid(1), Designator: "Weather"}}
	data.CodedComment = []*efdipb.CodedComment{{Id: uid(1), Designator: "Wind", Scope: 3, Group: uid(1), Value: []*efdipb.CodedCommentListValue{{Id: uid(1), Designator: "calm"}}}}
	data.ProductGroup = []*efdipb.ProductGroup{{Id: uid(1), Designator: "Group"}}
	data.CropType = []*efdipb.CropType{{Id: uid(1), Variety: []*efdipb.CropVariety{{Id: uid(-2), Designator: "Golden"}}}}
	data.ValuePresentation = []*efdipb.ValuePresentation{{Id: uid(1), Scale: 0.01, Unit: "kg/ha"}}
	data.Partfield = []*efdipb.Partfield{{Id: uid(1), Designator: "Field", Area: 100, Farm: uid(1), Polygon: []*efdipb.Polygon{{Type: 1, Color: 9, LineString: []*efdipb.LineString{line}}},
		LineString: []*efdipb.LineString{line}, Point: line.Point, GuidanceGroup: []*efdipb.GuidanceGroup{{Id: uid(1), Pattern: []*efdipb.GuidancePattern{{Heading: 30, LineString: line}}}}}}
	data.Task = []*efdipb.Task{{
		Id: uid(-7), Designator: "Mowing", Partfield: uid(1), Status: 4, DefaultZone: 1, TimeLog: []*efdipb.TimeLog{sampleLog(2), sampleLog(1)},
		Time:             []*efdipb.Time{{Start: stamp.Start, Duration: 60, Type: 4, PositionStart: &efdipb.Position{North: 1, East: 2}, DataLogValue: []*efdipb.DataLogValue{{Ddi: 0x74, Value: 5}}}},
		TreatmentZone:    []*efdipb.TreatmentZone{{Code: 1, Value: []*efdipb.ProcessDataVariable{{Ddi: 6, Value: 1200, ValuePresentation: uid(1)}}}},
		DeviceAllocation: []*efdipb.DeviceAllocation{{ClientName: []byte{0xA0}, Device: uid(-1), Stamp: stamp}}, ProductAllocation: []*efdipb.ProductAllocation{{Product: uid(1), Value: 3}},
		Operation: &efdipb.OperTechPractice{Practice: uid(1), Technique: uid(1)}, WorkerAllocation: []*efdipb.WorkerAllocation{{Worker: uid(1), Stamp: stamp}},
		Connection:         []*efdipb.Connection{{Device_0: uid(-1), Element_0: uid(-1), Device_1: uid(-1), Element_1: uid(-1)}},
		CommentAllocation:  []*efdipb.CommentAllocation{{Comment: uid(1), Value: uid(1), Text: "none", Stamp: stamp}},
		GuidanceAllocation: []*efdipb.GuidanceAllocation{{GuidanceGroup: uid(1)}}, Grid: &efdipb.Grid{Rows: 2, Columns: 3, Type: 1, Filename: uid(1)},
	}}
	return data
}

// TestWholeTaskData: logs in tasks are streams; the rest is in memory, as testdata/whole.json has it, which UPDATE=1 writes.
func TestWholeTaskData(t *testing.T) {
	t.Parallel()
	set := open(t, marshal(t, wholeTaskData()), Unknown, Config{})
	if farmdatatest.Kinds(set.Findings) != "missing" || len(set.Tasks) != 1 || len(set.Logs) != 2 { // the cells of its grid
		t.Fatalf("%+v", set)
	}
	got, _ := asText(t, set)
	const golden = "testdata/whole.json"
	if os.Getenv("UPDATE") != "" {
		testkit.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
	}
	if want := string(testkit.Must(os.ReadFile(golden))(t)); got != want || set.Logs[0].TaskID != "TSK-7" || !slices.Equal(set.Tasks[0].LogNames, []string{"TLG00001", "TLG00001"}) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if records, found := farmdatatest.Read(t, set.Logs[0]); len(records) != 2 || len(found) != 0 || records[0].Values[0].Column.Unit != "m" {
		t.Errorf("%d records, findings %v; want those described by the device of the same message", len(records), found)
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	good := marshal(t, sampleLog(3))
	last := marshal(t, entry(2, 9002))
	broken := func(body []byte) []byte {
		return append(bytes.Clone(good), protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), body)...)
	}
	off := entry(0, 0)
	off.PositionStart.North = 95
	twice := entry(0, 1)
	twice.DataLogValue = append(twice.DataLogValue, twice.DataLogValue[0])
	many := &efdipb.Time{}
	for i := range uint32(300) {
		many.DataLogValue = append(many.DataLogValue, &efdipb.DataLogValue{Ddi: 0x100 + i})
	}
	many.DataLogValue = append(many.DataLogValue, many.DataLogValue[299])
	wide := entry(0, 1)
	wide.DataLogValue[0].Ddi = 1 << 16
	for _, tt := range []struct {
		name    string
		payload []byte
		cfg     Config
		records int
		log     string
		offset  int
	}{
		{"cut in an entry", good[:len(good)-5], Config{}, 2, "cut", len(good) - len(last) - 2},
		{"garbage behind the entries", append(bytes.Clone(good), 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF), Config{}, 3, "syntax", len(good)},
		{"a group", append(bytes.Clone(good), 0x23), Config{}, 3, "syntax", len(good)},
		{"a malformed entry", append(broken([]byte{0x0A, 0x50}), good[len(good)-len(last)-2:]...), Config{}, 4, "syntax", len(good)},
		{"a position that is not on Earth", broken(marshal(t, off)), Config{}, 4, "position", len(good)},
		{"a value there twice", append(broken(marshal(t, twice)), broken(marshal(t, twice))...), Config{}, 8, "duplicate", len(good)},
		{"a value there twice, behind many others", append(broken(marshal(t, many)), broken(marshal(t, many))...), Config{}, 8, "duplicate", len(good)},
		{"a DDI of 17 bits", broken(marshal(t, wide)), Config{}, 4, "value", len(good)},
		{"an entry that is too large", broken(bytes.Repeat([]byte{0x3A, 0}, 200)), Config{MaxEntry: 300}, 3, "limit", len(good)},
		{"too many kinds of values", broken(marshal(t, &efdipb.Time{DataLogValue: []*efdipb.DataLogValue{{Ddi: 1}, {Ddi: 0x43, DeviceElement: &efdipb.UID{Number: -1}}}})),
			Config{MaxColumns: 1}, 4, "limit", len(good)},
		{"more findings than are told", append(broken([]byte{0x0A, 0x50}), append(broken([]byte{0x0A, 0x50}), broken([]byte{0x0A, 0x50})...)...), Config{MaxFindings: 1}, 9, "syntax, limit", len(good)},
	} {
		set := open(t, tt.payload, TimeLog, tt.cfg)
		records, found := farmdatatest.Read(t, set.Logs[0])
		if len(records) != tt.records || farmdatatest.Kinds(found) != tt.log || len(set.Findings) != 0 {
			t.Errorf("%s: %d records, findings %v; want %d and %s", tt.name, len(records), found, tt.records, tt.log)
			continue
		}
		if found[0].Offset != int64(tt.offset) {
			t.Errorf("%s: %v, want byte %d", tt.name, found[0], tt.offset)
		}
	}
	whole := marshal(t, description())
	for name, tt := range map[string]struct {
		payload []byte
		cfg     Config
		kind    string
	}{
		"cut":               {whole[:len(whole)-3], Config{}, "cut"},
		"too large":         {whole, Config{MaxMessage: 20}, "limit"},
		"too many elements": {whole, Config{MaxElements: 3}, "limit"},
		"malformed device":  {append([]byte{0x08, 4, 0x8A, 1, 2, 0x0A, 0x7F}, whole...), Config{}, "syntax"},
		"malformed task":    {append([]byte{0x08, 4, 0xBA, 1, 3, 0x0A, 1, 0x08}, whole...), Config{}, "syntax"},
		"cut task":          {append([]byte{0x08, 4, 0xBA, 1, 2, 0x0A, 0x7F}, whole...), Config{}, "cut"},
	} {
		if set := open(t, tt.payload, TaskData, tt.cfg); farmdatatest.Kinds(set.Findings) != tt.kind {
			t.Errorf("%s: findings %v, want %s", name, set.Findings, tt.kind)
		}
	}
	if err := (Config{MaxEntry: -1, MaxColumns: -1}).Validate(); err == nil || !strings.Contains(err.Error(), "MaxEntry") || !strings.Contains(err.Error(), "MaxColumns") {
		t.Errorf("negative limits: %v", err)
	}
}

var errDisk = errors.New("disk error")

// failing fails beyond a number of bytes, or always.
type failing struct {
	r    io.ReaderAt
	good int64
}

// ReadAt reads until there.
func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.good {
		return 0, errDisk
	}
	return f.r.ReadAt(p, off)
}

func TestErrorsOfTheSource(t *testing.T) {
	t.Parallel()
	payload := marshal(t, sampleLog(2000))
	if _, err := Open(t.Context(), failing{bytes.NewReader(payload), 0}, int64(len(payload)), Unknown, Config{}); !errors.Is(err, errDisk) {
		t.Errorf("%v, want the error of the source", err)
	}
	source := &failing{bytes.NewReader(payload), 1 << 40}
	set := testkit.Must(Open(t.Context(), source, int64(len(payload)), TimeLog, Config{}))(t)
	source.good = 70 << 10
	records, found := farmdatatest.Read(t, set.Logs[0])
	if len(records) < 100 || len(records) == 2000 || farmdatatest.Kinds(found) != "unreadable" || !errors.Is(found[0], errDisk) || found[0].Record != int64(len(records)) {
		t.Errorf("%d records, findings %v", len(records), found)
	}
}

// TestMemoryOfALogIsIndependentOfItsLength reads a log of 256 MB without having it in
// memory, and looks at what is in use on the way.
func TestMemoryOfALogIsIndependentOfItsLength(t *testing.T) {
	one := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), marshal(t, entry(1, 9000)))
	log := &repeated{head: marshal(t, sampleLog(0)), unit: bytes.Repeat(one, 100)}
	const size = 256 << 20
	set := testkit.Must(Open(t.Context(), log, int64(len(log.head)+size/len(log.unit)*len(log.unit)), TimeLog, Config{}))(t)
	most, bytes := inUse(), 0
	for record, err := range set.Logs[0].Records {
		if err != nil {
			t.Fatal(err)
		}
		if bytes += len(one); record.Number%200_000 == 0 {
			most = max(most, inUse())
		}
	}
	if bytes < size*99/100 || most > 32<<20 {
		t.Errorf("%d bytes read with %d in use", bytes, most)
	}
}

// repeated is a source without an end: a head and then one unit again and again.
type repeated struct{ head, unit []byte }

// ReadAt reads from it.
func (r *repeated) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		if at := off + int64(n); at < int64(len(r.head)) {
			n += copy(p[n:], r.head[at:])
		} else {
			n += copy(p[n:], r.unit[(at-int64(len(r.head)))%int64(len(r.unit)):])
		}
	}
	return len(p), nil
}

// FuzzOpen: no payload makes Open or a log panic, and what they give keeps to the limits.
func FuzzOpen(f *testing.F) {
	bare := marshal(f, sampleLog(2))
	data := description()
	data.Task = []*efdipb.Task{{Designator: "x", TimeLog: []*efdipb.TimeLog{sampleLog(1)}}}
	f.Add(bare, 0)
	f.Add(marshal(f, &anypb.Any{TypeUrl: "x", Value: bare}), 1)
	f.Add(marshal(f, data), 2)
	f.Add(marshal(f, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 1, East: 2}}}), 3)
	limits := Config{MaxMessage: 1 << 16, MaxElements: 1000, MaxEntry: 1 << 12, MaxColumns: 20, MaxFindings: 10}
	f.Fuzz(func(t *testing.T, payload []byte, message int) {
		set, err := Open(t.Context(), bytes.NewReader(payload), int64(len(payload)), Message(message&3), limits)
		if err != nil {
			if !errors.Is(err, ErrNotEFDI) {
				t.Errorf("bytes in memory cannot be read: %v", err)
			}
			return
		}
		if len(set.Findings) > limits.MaxFindings+1 {
			t.Errorf("%d findings", len(set.Findings))
		}
		for _, log := range set.Logs {
			columns := map[*farmdata.Column]bool{}
			records, findings := int64(0), 0
			for record, err := range log.Records {
				var finding *farmdata.Finding
				if err != nil {
					if findings++; record != nil || !errors.As(err, &finding) || finding.Kind == "" || finding.Offset > int64(len(payload)) {
						t.Fatalf("record %v with error %v", record, err)
					}
					continue
				}
				if record.Number < records {
					t.Fatalf("record %d has the number %d", records, record.Number)
				}
				records++
				for _, v := range record.Values {
					_ = v.Scaled()
					columns[v.Column] = true
				}
			}
			if len(columns) > limits.MaxColumns || findings > limits.MaxFindings+2 || 2*records > int64(len(payload)) {
				t.Errorf("%d columns, %d findings, %d records of %d bytes", len(columns), findings, records, len(payload))
			}
		}
	})
}

// decoded is what a decoder makes of an entry, columns by what they say.
func decoded(d *decoder, body []byte) string {
	var record farmdata.Record
	finding, whole := d.decode(body, &record)
	if !whole {
		return fmt.Sprint(finding)
	}
	text := fmt.Sprint(finding, record.Stamp, record.Position)
	for _, v := range record.Values {
		text += fmt.Sprintf(" %+v %d", *v.Column, v.Raw)
	}
	return text
}

// What an entry says does not depend on the ones before it, whatever its encoder does differently from theirs, and
// however it is damaged.
func TestEntriesDoNotDependOnOthers(t *testing.T) {
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 0))
		few := func() uint64 {
			return []uint64{0, 1, 2, 127, 128, 300, 0xFFFF, 0x10000, 1<<32 + 1, 1 << 63}[random.IntN(10)]
		}
		number := func(b []byte, field protowire.Number, v uint64) []byte {
			return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
		}
		value := func() (b []byte) {
			parts := []int{1, 2, 3}
			switch random.IntN(8) {
			case 0: // another order, or not all of them
				random.Shuffle(3, func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
				parts = parts[:random.IntN(4)]
			case 1: // more
				parts = append(parts, 1+random.IntN(7))
			}
			for _, part := range parts {
				if part != 3 {
					b = number(b, protowire.Number(part), few())
					continue
				}
				var id []byte
				if random.IntN(8) > 0 {
					id = number(id, 1, few())
				}
				if random.IntN(8) == 0 {
					id = protowire.AppendString(protowire.AppendTag(id, 2, protowire.BytesType), "uri")
				}
				b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), id)
			}
			return b
		}
		values := [][]byte{value(), value(), value()}
		entry := func() (b []byte) {
			for i := range values {
				if random.IntN(4) == 0 {
					values[i] = value()
				}
				b = protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), values[i])
			}
			if random.IntN(4) == 0 {
				b[random.IntN(len(b))] = byte(random.Uint32())
			}
			return b[:len(b)-random.IntN(2)*random.IntN(3)]
		}
		d := newDecoder(farmdata.NewDescriptions(nil), 1000)
		for range 4 {
			body := entry()
			if got, want := decoded(d, body), decoded(newDecoder(farmdata.NewDescriptions(nil), 1000), body); got != want {
				t.Fatalf("seed %d, %x:\n%s\nwant\n%s", seed, body, got, want)
			}
		}
	}
}

// FuzzEntry: an entry decoded by hand is what the generated message has.
func FuzzEntry(f *testing.F) {
	f.Add(marshal(f, entry(1, 9000)))
	f.Add(marshal(f, &efdipb.Time{Start: &timestamppb.Timestamp{Seconds: -1, Nanos: 5}, Stop: &timestamppb.Timestamp{}, PositionStop: &efdipb.Position{},
		PositionStart: &efdipb.Position{GpsUtc: &timestamppb.Timestamp{Seconds: 1e15}},
		DataLogValue:  []*efdipb.DataLogValue{{Ddi: 0xDFFE, Pgn: 1 << 40, PgnStartBit: 1, PgnStopBit: 300, DeviceElement: &efdipb.UID{Uri: []string{"a", "b"}}}, {}}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		var want efdipb.Time
		err := unmarshal.Unmarshal(body, &want)
		var got farmdata.Record
		d := newDecoder(farmdata.NewDescriptions(nil), 1000)
		finding, whole := d.decode(body, &got)
		if again, fresh := decoded(d, body), decoded(newDecoder(farmdata.NewDescriptions(nil), 1000), body); again != fresh {
			t.Fatalf("decoded again: %s, want %s", again, fresh)
		}
		if whole != (err == nil) {
			t.Fatalf("whole %v, %v; the generated message: %v", whole, finding, err)
		}
		if !whole {
			return
		}
		p := want.GetPositionStart()
		start, utc := instant(want.GetStart()), instant(p.GetGpsUtc())
		set := func(t time.Time) bool { return t.Year() > 1980 && t.Year() <= 2100 }
		switch tooFar := !start.IsZero() && !utc.IsZero() && start.Sub(utc).Abs() > 15*time.Hour; {
		case tooFar && set(utc) && !set(start): // a clock that was never set
			start = time.Time{}
		case tooFar:
			utc = time.Time{}
		}
		if !got.Stamp.Wall.Equal(start) || !got.Stamp.UTC.Equal(utc) {
			t.Errorf("times %+v, want those of %v", got.Stamp, &want)
		}
		same := func(a, b float64) bool { return a == b || a != a && b != b }
		status := p.GetStatus()
		if status < 0 || status > 255 {
			status = statusUnknown
		}
		if g := got.Position; !same(g.North, p.GetNorth()) || !same(g.East, p.GetEast()) || !same(g.PDOP, p.GetPdop()) || !same(g.HDOP, p.GetHdop()) ||
			g.Up != p.GetUp() || g.Status != uint8(status) || g.Satellites != int(p.GetSatellites()) || (p != nil) != (g.Has != 0) {
			t.Errorf("position %+v, want that of %v", g, &want)
		}
		values := want.GetDataLogValue()
		values = slices.DeleteFunc(values, func(v *efdipb.DataLogValue) bool {
			return v.GetDdi() > 0xFFFF || v.GetPgn() > 1<<32-1 || v.GetPgnStartBit() > 255 || v.GetPgnStopBit() > 255
		})
		if len(got.Values) != len(values) && finding.Kind != farmdata.KindLimit {
			t.Fatalf("%d values, want %d", len(got.Values), len(values))
		}
		for i, v := range got.Values {
			w, c := values[i], v.Column
			if v.Raw != w.GetValue() || uint32(c.DDI) != w.GetDdi() || c.ElementID != id("DET", w.GetDeviceElement()) || c.PGN != uint32(w.GetPgn()) ||
				c.StartBit != uint8(w.GetPgnStartBit()) || c.StopBit != uint8(w.GetPgnStopBit()) {
				t.Errorf("value %d of %+v, want %v", v.Raw, c, w)
			}
		}
	})
}

// BenchmarkRecords decodes a log of sixteen values an entry from memory.
func BenchmarkRecords(b *testing.B) {
	log := sampleLog(0)
	for i := range 10_000 {
		e := entry(int64(i), int64(i))
		for n := range 15 {
			e.DataLogValue = append(e.DataLogValue, &efdipb.DataLogValue{Ddi: uint32(n), Value: int64(i), DeviceElement: &efdipb.UID{Number: -1}})
		}
		log.Time = append(log.Time, e)
	}
	payload := marshal(b, log)
	set := open(b, payload, TimeLog, Config{})
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	values := 0
	start := time.Now()
	for b.Loop() {
		for record, err := range set.Logs[0].Records {
			if err != nil {
				b.Fatal(err)
			}
			values += len(record.Values)
		}
	}
	b.ReportMetric(float64(values)/time.Since(start).Seconds()/1e6, "Mvalues/s")
}

// instant is the time of a generated message; the zero time if it says none.
func instant(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() || t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return time.Time{}
	}
	return t.AsTime()
}
