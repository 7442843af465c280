package efdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// asText returns a set without its logs, as text.
func asText(t testing.TB, set *farmdata.Set) (string, bool) {
	t.Helper()
	bare := *set
	bare.Logs, bare.Findings = nil, nil
	bare.Tasks = slices.Clone(set.Tasks)
	for i := range bare.Tasks {
		bare.Tasks[i].LogNames = nil
	}
	b, err := json.MarshalIndent(bare, "", " ")
	return string(b), err == nil
}

// What was read is written as it was.
func TestMarshalTaskData(t *testing.T) {
	t.Parallel()
	b := testkit.Must(MarshalTaskData(open(t, marshal(t, wholeTaskData()), TaskData, Config{}), EncodeConfig{}))(t)
	var message efdipb.TaskData
	original := wholeTaskData()
	for _, task := range original.Task {
		task.TimeLog = nil
	}
	if err := proto.Unmarshal(b, &message); err != nil || !proto.Equal(&message, original) {
		t.Errorf("got  %v, %v\nwant %v", &message, err, original)
	}
}

// Zero is an amount: none is written for one that is missing, and whoever writes is told what is not as it was, logs aside, which
// are messages of their own.
func TestMarshalTellsWhatItDoesNotWrite(t *testing.T) {
	t.Parallel()
	set := &farmdata.Set{
		Products: []farmdata.Product{{ID: "PDT-1", Parts: []farmdata.ProductRelation{{ProductID: "PDT-2", Raw: 3}, {ProductID: "PDT-3", Missing: true}}}},
		Devices:  []farmdata.Device{{ID: "DVC-1", Name: "mower"}},
		Tasks: []farmdata.Task{{ID: "TSK-1", Zones: []farmdata.TreatmentZone{{Code: -1, Values: []farmdata.ZoneValue{
			{DDI: 6, Missing: true}, {DDI: 7, Raw: 0}, {DDI: 8, Missing: true}, {DDI: 9, Raw: 5},
		}}}, LogNames: []string{"TLG00001"}, Grids: []*farmdata.Grid{{Name: "GRD00001", Zone: -1}, {Name: "GRD00002", Zone: -1}}}},
	}
	var told []string
	b := testkit.Must(MarshalTaskData(set, EncodeConfig{Finding: func(f *farmdata.Finding) { told = append(told, f.Error()) }}))(t)
	var message efdipb.TaskData
	testkit.NoError(t, proto.Unmarshal(b, &message))
	var rates []string
	for _, v := range message.Task[0].TreatmentZone[0].Value {
		rates = append(rates, fmt.Sprintf("%d:%d", v.GetDdi(), v.GetValue()))
	}
	if want := []string{"7:0", "9:5"}; !slices.Equal(rates, want) || len(message.Product[0].Relation) != 1 {
		t.Errorf("rates %v, want %v; parts of the product %v, want one", rates, want, message.Product[0].Relation)
	}
	want := []string{
		"value: amount of PDV: missing", "value: amount of PDV: missing", "value: amount of PRN: missing", "value: code of TZN: missing, 0 was written",
		"unsupported: 1 GRD of TSK", "unsupported: cells of GRD", "value: client_name of DVC: not hexadecimal",
	}
	slices.Sort(want)
	if slices.Sort(told); !slices.Equal(told, want) {
		t.Errorf("told %q\nwant %q", told, want)
	}
	b = testkit.Must(MarshalTaskData(set, EncodeConfig{}))(t)
	if testkit.NoError(t, proto.Unmarshal(b, &message)); len(message.Task) != 1 {
		t.Error("without a function for findings: not the same")
	}
}

func TestWriteTimeLog(t *testing.T) {
	t.Parallel()
	north := farmdata.HasNorth | farmdata.HasEast | farmdata.HasStatus
	width, state := &farmdata.Column{DDI: 0x43, ElementID: "DET-1"}, &farmdata.Column{DDI: farmdata.DDIPGN, ElementID: "elsewhere", PGN: 65096, StartBit: 1, StopBit: 8}
	wall, utc := time.Date(2026, time.July, 4, 6, 30, 0, 0, time.UTC), time.Date(2026, time.July, 4, 4, 30, 1, 0, time.UTC)
	var finding *farmdata.Finding
	log := &farmdata.Log{Name: "TLG00001\xff", Constants: []farmdata.Value{{Column: state, Raw: 1}},
		Records: func(yield func(*farmdata.Record, error) bool) {
			_ = yield(&farmdata.Record{Stamp: farmdata.Stamp{Wall: wall, Local: true, UTC: utc}, Position: farmdata.Position{North: 52.5, East: 7.5, Status: 4, Has: north},
				Values: []farmdata.Value{{Column: width, Raw: -3}}}, nil) &&
				yield(nil, &farmdata.Finding{Kind: farmdata.KindPosition, Offset: -1, Record: 1}) &&
				yield(&farmdata.Record{Number: 1}, nil)
		}}
	berlin := testkit.Must(time.LoadLocation("Europe/Berlin"))(t)
	var b bytes.Buffer
	testkit.NoError(t, WriteTimeLog(&b, log, EncodeConfig{Location: berlin, Finding: func(f *farmdata.Finding) { finding = f }}))
	set := open(t, b.Bytes(), Unknown, Config{})
	records, found := farmdatatest.Read(t, set.Logs[0])
	if len(records) != 2 || len(found) != 0 || finding == nil || set.Logs[0].Name != "TLG00001\uFFFD" {
		t.Fatalf("%d records, found %v and %v, name %q", len(records), found, finding, set.Logs[0].Name)
	}
	r := records[0]
	if !r.Stamp.Wall.Equal(wall.Add(-2*time.Hour)) || !r.Stamp.UTC.Equal(utc) || r.Stamp.Local || r.Position != (farmdata.Position{North: 52.5, East: 7.5, Status: 4, Has: north}) {
		t.Errorf("got %+v", r)
	}
	if len(r.Values) != 2 || r.Values[0].Raw != 1 || r.Values[0].Column.PGN != 65096 || r.Values[0].Column.ElementID != "elsewhere" ||
		r.Values[1].Raw != -3 || r.Values[1].Column.ElementID != "DET-1" {
		t.Errorf("got %+v", r.Values)
	}
	if r := records[1]; !r.Stamp.IsZero() || r.Position.Has != 0 || len(r.Values) != 1 {
		t.Errorf("got %+v, want nothing but the constant", r)
	}
	if err := WriteTimeLog(full{}, log, EncodeConfig{}); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

// A constant that a record has too is there once, as the record has it.
func TestWriteTimeLogConstants(t *testing.T) {
	t.Parallel()
	width := farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
	again, other, left, pgn := width, farmdata.Column{DDI: 0x44, ElementID: "DET-1"}, farmdata.Column{DDI: 0x43, ElementID: "DET-2"}, farmdata.Column{DDI: 0x43, ElementID: "DET-1", PGN: 7}
	value := func(c *farmdata.Column, raw int64) farmdata.Value { return farmdata.Value{Column: c, Raw: raw} }
	constants := []farmdata.Value{value(&width, 1), value(&other, 2)}
	for name, tt := range map[string]struct {
		values []farmdata.Value
		want   string
	}{
		"nothing":               {nil, "[1 2]"},
		"the same":              {[]farmdata.Value{value(&width, 1)}, "[2 1]"},
		"another value":         {[]farmdata.Value{value(&width, 9)}, "[2 9]"},
		"zero":                  {[]farmdata.Value{value(&width, 0)}, "[2 0]"},
		"all of them":           {[]farmdata.Value{value(&other, 8), value(&width, 9)}, "[8 9]"},
		"a column of its own":   {[]farmdata.Value{value(&again, 9)}, "[2 9]"},
		"of another element":    {[]farmdata.Value{value(&left, 9)}, "[1 2 9]"},
		"of another PGN":        {[]farmdata.Value{value(&pgn, 9)}, "[1 2 9]"},
		"twice in damaged data": {[]farmdata.Value{value(&width, 8), value(&width, 9)}, "[2 8 9]"},
	} {
		log := &farmdata.Log{Constants: constants, Records: func(yield func(*farmdata.Record, error) bool) {
			_ = yield(&farmdata.Record{Values: tt.values}, nil) && yield(&farmdata.Record{}, nil)
		}}
		var b bytes.Buffer
		testkit.NoError(t, WriteTimeLog(&b, log, EncodeConfig{}))
		var message efdipb.TimeLog
		if err := proto.Unmarshal(b.Bytes(), &message); err != nil || len(message.GetTime()) != 2 {
			t.Fatalf("%s: got %v, %v, want two records", name, &message, err)
		}
		for i, want := range []string{tt.want, "[1 2]"} {
			var got []int64
			for _, v := range message.GetTime()[i].GetDataLogValue() {
				got = append(got, v.GetValue())
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s: record %d has %v, want %s", name, i, got, want)
			}
		}
	}
}

// What a position lacks makes no other one of it.
func TestWriteTimeLogPositions(t *testing.T) {
	t.Parallel()
	const place, all = farmdata.HasNorth | farmdata.HasEast, farmdata.HasNorth | farmdata.HasEast | farmdata.HasStatus
	utc := time.Date(2026, time.July, 4, 4, 30, 1, 0, time.UTC)
	for name, test := range map[string]struct{ record, want farmdata.Record }{
		"no longitude": {farmdata.Record{Position: farmdata.Position{North: 52.5, Status: 4, Has: farmdata.HasNorth | farmdata.HasStatus}},
			farmdata.Record{Position: farmdata.Position{Status: 4, Has: all}}},
		"no latitude": {farmdata.Record{Position: farmdata.Position{East: 7.5, Status: 4, Has: farmdata.HasEast | farmdata.HasStatus}},
			farmdata.Record{Position: farmdata.Position{Status: 4, Has: all}}},
		"no status": {farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Has: place}},
			farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Status: 15, Has: all}}},
		"no GPS": {farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Has: all}},
			farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Has: all}}},
		// All bits are what a receiver writes that does not know, and the reader leaves what it made of them.
		"no dilutions, satellites and height": {farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Up: 7, PDOP: 6553.5, HDOP: 6553.5, Satellites: 255, Has: all}},
			farmdata.Record{Position: farmdata.Position{North: 52.5, East: 7.5, Has: all}}},
		"time only": {farmdata.Record{Stamp: farmdata.Stamp{Wall: utc, UTC: utc}},
			farmdata.Record{Stamp: farmdata.Stamp{Wall: utc, UTC: utc}, Position: farmdata.Position{Status: 15, Has: all}}},
	} {
		var b bytes.Buffer
		log := &farmdata.Log{Records: func(yield func(*farmdata.Record, error) bool) { yield(&test.record, nil) }}
		testkit.NoError(t, WriteTimeLog(&b, log, EncodeConfig{}))
		records, findings := farmdatatest.Read(t, open(t, b.Bytes(), TimeLog, Config{}).Logs[0])
		if len(records) != 1 || len(findings) != 0 || records[0].Position != test.want.Position || records[0].Stamp != test.want.Stamp {
			t.Errorf("%s: got %+v, %v, want %+v", name, records, findings, test.want)
		}
	}
}

// A local time is the instant at which clocks show it, of which there are two when they are put back, and none when they are
// put forward.
func TestLocalTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ zone, wall, utc, want string }{
		{"Europe/Berlin", "2026-10-25T01:59:59", "", "2026-10-24T23:59:59Z"},
		{"Europe/Berlin", "2026-10-25T02:30:00", "", "2026-10-25T00:30:00Z"},
		{"Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25T00:30:02Z", "2026-10-25T00:30:00Z"},
		{"Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25T01:30:02Z", "2026-10-25T01:30:00Z"},
		{"Europe/Berlin", "2026-10-25T03:00:00", "", "2026-10-25T02:00:00Z"},
		{"Europe/Berlin", "2026-03-29T01:59:59", "", "2026-03-29T00:59:59Z"},
		{"Europe/Berlin", "2026-03-29T02:30:00", "", "2026-03-29T01:30:00Z"},
		{"Europe/Berlin", "2026-03-29T03:00:00", "", "2026-03-29T01:00:00Z"},
		{"America/New_York", "2026-11-01T01:30:00", "", "2026-11-01T05:30:00Z"},
		{"America/New_York", "2026-11-01T01:30:00", "2026-11-01T06:29:00Z", "2026-11-01T06:30:00Z"},
		{"America/New_York", "2026-03-08T02:30:00", "", "2026-03-08T07:30:00Z"},
		{"Asia/Kolkata", "2026-07-01T12:00:00", "", "2026-07-01T06:30:00Z"},
		{"", "2026-07-01T12:00:00", "", "2026-07-01T12:00:00Z"},
	} {
		location := testkit.Must(time.LoadLocation(test.zone))(t)
		stamp := testkit.Must(farmdata.ParseStamp(test.wall))(t)
		if test.utc != "" {
			utc := testkit.Must(farmdata.ParseStamp(test.utc))(t)
			stamp.UTC = utc.Wall
		}
		if got := (EncodeConfig{Location: location}).instant(stamp).AsTime().Format(time.RFC3339); got != test.want {
			t.Errorf("%s in %s with %q: got %s, want %s", test.wall, test.zone, test.utc, got, test.want)
		}
	}
}

// The parts of a log are as large as they may be, and together the whole log.
func TestTimeLogs(t *testing.T) {
	t.Parallel()
	column := &farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
	broken := errors.New("broken")
	log := func(records, fails int) *farmdata.Log {
		return &farmdata.Log{Name: "TLG00001", Records: func(yield func(*farmdata.Record, error) bool) {
			for i := range records {
				if i == fails {
					yield(nil, broken)
					return
				}
				values := make([]farmdata.Value, 1+i%7)
				for j := range values {
					values[j] = farmdata.Value{Column: column, Raw: int64(i)}
				}
				if !yield(&farmdata.Record{Number: int64(i), Values: values}, nil) {
					return
				}
			}
		}}
	}
	var whole bytes.Buffer
	testkit.NoError(t, WriteTimeLog(&whole, log(500, -1), EncodeConfig{}))
	head := filename(log(0, -1))
	for _, size := range []int{0, 50, 100, 1000, whole.Len() - 1, whole.Len(), 1 << 20} {
		together := bytes.Clone(head)
		var parts [][]byte
		for part, err := range TimeLogs(log(500, -1), size, EncodeConfig{}) {
			if err != nil {
				t.Fatal(err)
			}
			entries, ok := bytes.CutPrefix(part, head)
			if !ok || len(part) > size && countRecords(t, part) != 1 {
				t.Fatalf("a part of %d bytes, %d records, want at most %d", len(part), countRecords(t, part), size)
			}
			if n := len(parts); n > 0 && len(parts[n-1])+len(firstEntry(entries)) <= size {
				t.Errorf("the part before has room for what comes then: %d of %d bytes", len(parts[n-1]), size)
			}
			parts = append(parts, part)
			together = append(together, entries...)
		}
		if !bytes.Equal(together, whole.Bytes()) {
			t.Errorf("in parts of %d bytes it is another log", size)
		}
	}
	n := 0
	for _, err := range TimeLogs(log(500, -1), 0, EncodeConfig{}) {
		if n++; err != nil || n == 3 {
			break
		}
	}
	var errs []error
	for _, err := range TimeLogs(log(5, 3), 0, EncodeConfig{}) {
		errs = append(errs, err)
	}
	if len(errs) != 3 || errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], broken) {
		t.Errorf("of a log that breaks off: %v", errs)
	}
	for part, err := range TimeLogs(log(0, -1), 100, EncodeConfig{}) {
		t.Errorf("of a log without records: %q, %v", part, err)
	}
}

func countRecords(t *testing.T, message []byte) int {
	t.Helper()
	records, _ := farmdatatest.Read(t, open(t, message, TimeLog, Config{}).Logs[0])
	return len(records)
}

// firstEntry returns the first field of a message.
func firstEntry(message []byte) []byte {
	return message[:max(0, protowire.ConsumeFieldValue(timeLogEntry, protowire.BytesType, message[1:])+1)]
}

var errFull = errors.New("the disk is full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// Real logs of EFDI are written as they were read, and those of TaskData have the same records in EFDI.
func TestRealFilesAgain(t *testing.T) {
	t.Parallel()
	for _, file := range farmdatatest.Files(t, "../..", "farm/efdi_timelog_*.pb") {
		b := testkit.Must(os.ReadFile(file))(t)
		var out bytes.Buffer
		testkit.NoError(t, WriteTimeLog(&out, open(t, b, TimeLog, Config{}).Logs[0], EncodeConfig{}))
		var got, want efdipb.TimeLog
		testkit.NoError(t, errors.Join(proto.Unmarshal(out.Bytes(), &got), proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, &want)))
		if len(got.Time) != len(want.Time) || len(want.Time) == 0 {
			t.Fatalf("%s: %d entries, want %d", filepath.Base(file), len(got.Time), len(want.Time))
		}
		for i := range want.Time {
			if !proto.Equal(got.Time[i], want.Time[i]) {
				t.Fatalf("%s: entry %d: got %v, want %v", filepath.Base(file), i, got.Time[i], want.Time[i])
			}
		}
	}
	for _, file := range farmdatatest.Files(t, "../..", "farm/taskdata_small.zip", "farm/taskdata_2021-04-09.zip", "farm/taskdata_tiny_full_task.zip", "isoxml/*.zip") {
		t.Run(filepath.Base(file), func(t *testing.T) { compareTaskData(t, file) })
	}
}

func compareTaskData(t *testing.T, file string) {
	t.Helper()
	b := testkit.Must(os.ReadFile(file))(t)
	archive := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(b), int64(len(b)), isoxml.Config{}))(t)
	for _, set := range archive.Sets {
		described := open(t, testkit.Must(MarshalTaskData(set, EncodeConfig{}))(t), TaskData, Config{})
		if len(described.Tasks) != len(set.Tasks) || len(described.Devices) != len(set.Devices) || len(described.Fields) != len(set.Fields) {
			t.Errorf("%d tasks, %d devices, %d fields; want %d, %d, %d", len(described.Tasks), len(described.Devices), len(described.Fields),
				len(set.Tasks), len(set.Devices), len(set.Fields))
		}
		for _, log := range set.Logs {
			var out bytes.Buffer
			testkit.NoError(t, WriteTimeLog(&out, log, EncodeConfig{}))
			if out.Len() == 0 {
				continue // neither a name nor a record
			}
			got, _ := farmdatatest.Read(t, open(t, out.Bytes(), TimeLog, Config{Devices: described.Devices}).Logs[0])
			want, _ := farmdatatest.Read(t, log)
			if len(got) != len(want) {
				t.Fatalf("%s: %d records, want %d", log.Name, len(got), len(want))
			}
			for i, w := range want {
				g := got[i]
				same := g.Stamp.Wall.Equal(w.Stamp.Wall) && g.Stamp.UTC.Equal(w.Stamp.UTC) && g.Position == w.Position &&
					len(g.Values) == len(w.Values)+len(log.Constants)
				for j, v := range w.Values {
					u := g.Values[len(log.Constants)+j]
					same = same && u.Raw == v.Raw && *u.Column == *v.Column
				}
				if !same {
					t.Fatalf("%s, record %d: got %+v, want %+v", log.Name, i, g, w)
				}
			}
		}
	}
}

// FuzzMarshal: what can be read can be written, and is read the same again.
func FuzzMarshal(f *testing.F) {
	b := testkit.Must(proto.Marshal(wholeTaskData()))(f)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := Open(t.Context(), bytes.NewReader(b), int64(len(b)), TaskData, Config{})
		if err != nil {
			return
		}
		want, ok := asText(t, set)
		if !ok { // numbers that are none
			return
		}
		out := testkit.Must(MarshalTaskData(set, EncodeConfig{}))(t)
		if len(out) == 0 {
			return
		}
		if got, _ := asText(t, open(t, out, TaskData, Config{})); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		for _, log := range set.Logs {
			if err := WriteTimeLog(&bytes.Buffer{}, log, EncodeConfig{}); err != nil {
				t.Error(err)
			}
		}
	})
}
