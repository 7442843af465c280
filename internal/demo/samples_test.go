package demo

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/farmfile"
)

func sampleFiles(t *testing.T) map[string]File {
	t.Helper()
	list, err := LongAcre()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]File{}
	for _, p := range list {
		byName[p.Name] = p
	}
	if len(byName) != len(list) || len(list) != 5 {
		t.Fatalf("got %d samples with %d names, want 5 and 5", len(list), len(byName))
	}
	return byName
}

func TestSamplesAreTheSameInEveryRun(t *testing.T) {
	first, second := sampleFiles(t), sampleFiles(t)
	for name, p := range first {
		if !bytes.Equal(p.Data, second[name].Data) {
			t.Errorf("%s differs between two runs", name)
		}
		if p.MessageType != farmfile.MessageType(name) {
			t.Errorf("%s: message type %q, want %q", name, p.MessageType, farmfile.MessageType(name))
		}
	}
}

func TestSampleTaskData(t *testing.T) {
	data := sampleFiles(t)["taskdata_long_acre.zip"].Data
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		files[f.Name] = content
	}

	var taskdata struct {
		XMLName      xml.Name `xml:"ISO11783_TaskData"`
		VersionMajor int      `xml:",attr"`
		Customer     struct {
			A string `xml:",attr"`
		} `xml:"CTR"`
		Farm struct {
			A string `xml:",attr"`
			I string `xml:",attr"`
		} `xml:"FRM"`
		Field struct {
			A string `xml:",attr"`
			E string `xml:",attr"`
			F string `xml:",attr"`
		} `xml:"PFD"`
		Device struct {
			Elements []struct {
				A string `xml:",attr"`
			} `xml:"DET"`
		} `xml:"DVC"`
		Task struct {
			C, D, E string `xml:",attr"`
			Time    struct {
				A, B time.Time `xml:",attr"`
				C    int       `xml:",attr"`
			} `xml:"TIM"`
			Log struct {
				A string `xml:",attr"`
				B int    `xml:",attr"`
			} `xml:"TLG"`
		} `xml:"TSK"`
	}
	if err := xml.Unmarshal(files["TASKDATA/TASKDATA.XML"], &taskdata); err != nil {
		t.Fatalf("TASKDATA.XML: %v", err)
	}
	if taskdata.VersionMajor != 4 {
		t.Errorf("version %d, want 4", taskdata.VersionMajor)
	}
	task := taskdata.Task
	if task.C != taskdata.Customer.A || task.D != taskdata.Farm.A || task.E != taskdata.Field.A ||
		taskdata.Farm.I != taskdata.Customer.A || taskdata.Field.E != taskdata.Customer.A || taskdata.Field.F != taskdata.Farm.A {
		t.Errorf("references between customer, farm, field and task do not meet: %+v", taskdata)
	}
	if got := int(task.Time.B.Sub(task.Time.A).Seconds()); got != task.Time.C {
		t.Errorf("duration %d s, but the times are %d s apart", task.Time.C, got)
	}

	bin := files["TASKDATA/"+task.Log.A+".bin"]
	if len(bin) != task.Log.B {
		t.Errorf("time log of %d bytes, TASKDATA.XML says %d", len(bin), task.Log.B)
	}
	var header struct {
		XMLName xml.Name `xml:"TIM"`
		Values  []struct {
			A string `xml:",attr"`
			C string `xml:",attr"`
		} `xml:"DLV"`
	}
	if err := xml.Unmarshal(files["TASKDATA/"+task.Log.A+".xml"], &header); err != nil {
		t.Fatalf("time log header: %v", err)
	}
	if len(taskdata.Device.Elements) != 1 || len(header.Values) != 2 || header.Values[0].C != taskdata.Device.Elements[0].A {
		t.Errorf("time log header names other elements than the device has: %+v, %+v", header, taskdata.Device)
	}

	// One record: time (6 bytes), position (9), count (1), values (5 each).
	const size = 6 + 9 + 1 + 2*5
	track := longAcre.drive(600)
	if len(bin) != size*len(track) {
		t.Fatalf("time log of %d bytes, want %d records of %d", len(bin), len(track), size)
	}
	epoch := time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)
	for i, want := range track {
		record := bin[i*size : (i+1)*size]
		at := epoch.AddDate(0, 0, int(binary.LittleEndian.Uint16(record[4:]))).
			Add(time.Duration(binary.LittleEndian.Uint32(record)) * time.Millisecond)
		if !at.Equal(want.at) {
			t.Fatalf("record %d: time %s, want %s", i, at, want.at)
		}
		north := float64(int32(binary.LittleEndian.Uint32(record[6:]))) / 1e7
		if math.Abs(north-want.north) > 1e-7 {
			t.Fatalf("record %d: north %f, want %f", i, north, want.north)
		}
	}
}

func TestSamplePictureAndSummary(t *testing.T) {
	files := sampleFiles(t)
	picture, err := png.Decode(bytes.NewReader(files["coverage_long_acre.png"].Data))
	if err != nil {
		t.Fatal(err)
	}
	// A blank picture would decode too.
	colours := map[any]bool{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			colours[picture.At(x, y)] = true
		}
	}
	if len(colours) < 3 {
		t.Errorf("picture of %d colours, want the field, the turns and the work", len(colours))
	}
	if !json.Valid(files["summary_long_acre.json"].Data) {
		t.Error("summary is no JSON")
	}
}

func TestSampleTimeLogIsProtobuf(t *testing.T) {
	// The wire format is walked, not the schema: every field must end where
	// its record ends.
	var records int
	for data := sampleFiles(t)["timelog_long_acre.pb"].Data; len(data) > 0; records++ {
		field, value, rest, err := wireField(data)
		if err != nil {
			t.Fatalf("record %d: %v", records, err)
		}
		if field != 4 {
			t.Fatalf("record %d: field %d, want 4", records, field)
		}
		for inner := value; len(inner) > 0; {
			if _, _, inner, err = wireField(inner); err != nil {
				t.Fatalf("record %d: %v", records, err)
			}
		}
		data = rest
	}
	if records != 600 {
		t.Errorf("%d records, want 600", records)
	}
}

func wireField(data []byte) (field uint64, value, rest []byte, err error) {
	tag, n := binary.Uvarint(data)
	if n <= 0 {
		return 0, nil, nil, errors.New("bad tag")
	}
	data = data[n:]
	switch tag & 7 {
	case 0:
		_, n = binary.Uvarint(data)
		if n <= 0 {
			return 0, nil, nil, errors.New("bad varint")
		}
	case 1:
		n = 8
	case 2:
		length, m := binary.Uvarint(data)
		if m <= 0 || length > uint64(len(data)-m) {
			return 0, nil, nil, errors.New("bad length")
		}
		return tag >> 3, data[m : m+int(length)], data[m+int(length):], nil
	default:
		return 0, nil, nil, errors.New("unexpected wire type")
	}
	if n > len(data) {
		return 0, nil, nil, errors.New("cut off")
	}
	return tag >> 3, data[:n], data[n:], nil
}

func TestSampleDumpNeedsChunks(t *testing.T) {
	dump := sampleFiles(t)["raw_sensor_dump.bin"].Data
	if len(dump) != 3<<20 {
		t.Errorf("%d bytes, want 3 MiB", len(dump))
	}
}
