package farmdatatest

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/internal/testkit"
)

// TaskDataXML is the main file of Archive.
const TaskDataXML = `<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="2" ManagementSoftwareManufacturer="maker" TaskControllerManufacturer="controller" DataTransferOrigin="2">
<CTR A="CTR1" B="Miller" C="Ada"/>
<FRM A="FRM1" B="Hill farm" I="CTR1"/>
<PFD A="PFD1" C="Long acre" D="20000" E="CTR1" F="FRM1"><PLN A="1"><LSG A="1">
<PNT A="10" C="52.5" D="7.5"/><PNT A="10" C="52.5" D="7.502"/><PNT A="10" C="52.501" D="7.502"/><PNT A="10" C="52.501" D="7.5"/>
</LSG></PLN></PFD>
<TSK A="TSK1" B="Mowing" C="CTR1" D="FRM1" E="PFD1" G="4"><TLG A="TLG00001" C="1"/></TSK>
<DVC A="DVC-1" B="Mower" C="1.0" D="a00086000de02812" E="17">
<DET A="DET-1" B="1" C="1" D="Body" E="0" F="0"><DOR A="10"/></DET>
<DPD A="10" B="0043" C="1" D="8" E="Working width" F="20"/>
<DVP A="20" B="0" C="0.001" D="2" E="m"/>
</DVC>
</ISO11783_TaskData>`

// LogHeader is the header of the log of Archive: a working width and a work state.
const LogHeader = `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0043" B="" C="DET-1"/><DLV A="008D" B="" C="DET-1"/></TIM>`

// LogStart is when the first record of the logs of Archive and TimeLog was made; the others
// follow second by second, to the north east. In Archive it is a local time.
var LogStart = time.Date(2026, time.May, 4, 6, 30, 0, 0, time.UTC)

// Log is the binary log of Archive with a number of records.
func Log(records int) (b []byte) {
	for i := range records {
		b = appendRecord(b, i, int32(525_001_000+100*i), int32(75_001_000+100*i), 9000, uint32(i%2))
	}
	return b
}

// appendRecord appends a record of a log: so many seconds after LogStart, at a place in units of 1e-7 degrees, with values.
func appendRecord(b []byte, second int, north, east int32, values ...uint32) []byte {
	day := LogStart.Truncate(24 * time.Hour)
	b = binary.LittleEndian.AppendUint32(b, uint32(LogStart.Add(time.Duration(second)*time.Second).Sub(day).Milliseconds()))
	b = binary.LittleEndian.AppendUint16(b, uint16(day.Sub(time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)).Hours()/24))
	b = binary.LittleEndian.AppendUint32(b, uint32(north))
	b = binary.LittleEndian.AppendUint32(b, uint32(east))
	b = append(b, 4, byte(len(values)))
	for index, raw := range values {
		b = binary.LittleEndian.AppendUint32(append(b, byte(index)), raw)
	}
	return b
}

// Archive is TaskData: a task with a log of so many records, a mower, a field.
func Archive(t testing.TB, records int) []byte {
	t.Helper()
	return Zip(t, "TASKDATA/TASKDATA.XML", TaskDataXML, "TASKDATA/TLG00001.XML", LogHeader, "TASKDATA/TLG00001.BIN", string(Log(records)))
}

// ArchiveOfTotals is Archive with another task, a product of the first one, and totals of the terminal: 5000 m², 900 m, 60 s and 110 kg; 3000 m²,
// 600 m, 40 s and 30 kg.
func ArchiveOfTotals(t testing.TB, records int) []byte {
	t.Helper()
	const first = `<PAN A="PDT1"/><TIM A="2026-05-04T06:30:00" D="4"><DLV A="0074" B="5000" C="DET-1"/><DLV A="0075" B="900000" C="DET-1"/>` +
		`<DLV A="0077" B="60" C="DET-1"/><DLV A="0051" B="110" C="DET-1"/></TIM></TSK>`
	const rest = `<TSK A="TSK2" B="Rest" E="PFD1" G="4"><TIM A="2026-05-05T06:30:00" D="4"><DLV A="0074" B="3000" C="DET-1"/><DLV A="0075" B="600000" C="DET-1"/>` +
		`<DLV A="0077" B="40" C="DET-1"/><DLV A="0051" B="30" C="DET-1"/></TIM></TSK><PDT A="PDT1" B="Grass"/>`
	return Zip(t, "TASKDATA.XML", strings.Replace(TaskDataXML, "</TSK>", first+rest, 1), "TLG00001.XML", LogHeader, "TLG00001.BIN", string(Log(records)))
}

// Zip makes an archive of names and contents.
func Zip(t testing.TB, files ...string) []byte {
	t.Helper()
	return zipOf(t, files)
}

// repetition is a file that has a part so many times.
type repetition struct {
	name, part string
	times      int
}

// zipOf is Zip with files behind the others that are too large to be compressed in each run of the tests: a megabyte of
// one is compressed, and what that became is repeated.
func zipOf(t testing.TB, files []string, large ...repetition) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		f, err := w.Create(files[i])
		if err == nil {
			_, err = io.WriteString(f, files[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range large {
		header, compressed := r.compress(t)
		f, err := w.CreateRaw(header)
		if err == nil {
			_, err = f.Write(compressed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.NoError(t, w.Close())
	return b.Bytes()
}

// compress returns the file as an archive has it. A block that was flushed refers to nothing before it, so it may come
// again.
func (r repetition) compress(t testing.TB) (*zip.FileHeader, []byte) {
	t.Helper()
	inBlock := 1 << 20 / len(r.part)
	block, rest := []byte(strings.Repeat(r.part, inBlock)), []byte(strings.Repeat(r.part, r.times%inBlock))
	header := &zip.FileHeader{Name: r.name, Method: zip.Deflate, UncompressedSize64: uint64(len(r.part) * r.times)}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write(block)
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	compressed := bytes.Repeat(b.Bytes(), r.times/inBlock)
	for range r.times / inBlock {
		header.CRC32 = crc32.Update(header.CRC32, crc32.IEEETable, block)
	}
	header.CRC32 = crc32.Update(header.CRC32, crc32.IEEETable, rest)
	b.Reset()
	w.Reset(&b)
	_, err = w.Write(rest)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	compressed = append(compressed, b.Bytes()...)
	header.CompressedSize64 = uint64(len(compressed))
	return header, compressed
}

// Packed is an archive of TASKDATA.XML alone, as it stands there, with a header that change changes.
func Packed(t testing.TB, change func(*zip.FileHeader)) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	const size = uint64(len(TaskDataXML))
	header := &zip.FileHeader{Name: "TASKDATA.XML", CRC32: crc32.ChecksumIEEE([]byte(TaskDataXML)), CompressedSize64: size, UncompressedSize64: size}
	change(header)
	f, err := w.CreateRaw(header)
	if err == nil {
		_, err = io.WriteString(f, TaskDataXML)
	}
	testkit.NoError(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// TimeLog is the log of Archive as EFDI.
func TimeLog(t testing.TB, records int) []byte {
	t.Helper()
	log := &efdipb.TimeLog{}
	for i := range records {
		entry := &efdipb.Time{
			Start:         timestamppb.New(LogStart.Add(time.Duration(i) * time.Second)),
			PositionStart: &efdipb.Position{North: 52.5001 + 0.00001*float64(i), East: 7.5001 + 0.00001*float64(i)},
		}
		entry.DataLogValue = []*efdipb.DataLogValue{
			{Ddi: 0x43, Value: 9000, DeviceElement: &efdipb.UID{Number: -1}},
			{Ddi: 0x8D, Value: int64(i % 2), DeviceElement: &efdipb.UID{Number: -1}},
		}
		log.Time = append(log.Time, entry)
	}
	return Marshal(t, log)
}

// Marshal returns the bytes of a message.
func Marshal(t testing.TB, message proto.Message) []byte {
	t.Helper()
	return testkit.Must(proto.MarshalOptions{Deterministic: true}.Marshal(message))(t)
}

// Description is the device description of TimeLog.
func Description(t testing.TB) []byte {
	t.Helper()
	return Marshal(t, &efdipb.TaskData{VersionMajor: 4, VersionMinor: 2, Device: []*efdipb.Device{{
		Id: &efdipb.UID{Number: -1}, Designator: "Mower", ClientName: []byte{0xA0, 0x00, 0x86, 0x00, 0x0D, 0xE0, 0x28, 0x12},
		Element: []*efdipb.DeviceElement{{Id: &efdipb.UID{Number: -1}, ObjectId: 1, Type: 1, Designator: "Body",
			Reference: []*efdipb.DeviceObjectReference{{ObjectId: 10}}}},
		ProcessData:       []*efdipb.DeviceProcessData{{ObjectId: 10, Ddi: 0x43, Designator: "Working width", ValuePresentationObjectId: 20}},
		ValuePresentation: []*efdipb.DeviceValuePresentation{{ObjectId: 20, Scale: 0.001, Decimals: 2, Unit: "m"}},
	}}})
}

// Files returns the real farm files in folders of ../shared/data beside the clone, which are no
// part of this repository; root is the way from the package of the test to its top. Where they are
// absent, the test ends: loudly, and in CI as a failure.
func Files(t testing.TB, root string, patterns ...string) (files []string) {
	t.Helper()
	for _, pattern := range patterns {
		found := testkit.Must(filepath.Glob(filepath.Join(root, "..", "shared", "data", pattern)))(t)
		if len(found) == 0 {
			const message = "REAL FARM FILES ARE ABSENT: nothing at ../shared/data/%s"
			if os.Getenv("CI") != "" {
				t.Fatalf(message, pattern)
			}
			t.Skipf(message, pattern)
		}
		files = append(files, found...)
	}
	return files
}

// Large is TaskData of more than 256 MB unpacked, within the limits of the readers: a log of so many records, and a grid of so many
// cells. Other values come again each megabyte.
func Large(t testing.TB) (archive []byte, records, cells int64) {
	t.Helper()
	const inLog, logs, grids = 36_000, 140, 120
	var values []byte
	for i := range uint32(1 << 18) {
		values = binary.LittleEndian.AppendUint32(values, i%5000)
	}
	grid := fmt.Sprintf(`<TZN A="0"><PDV A="0006" B="0" C="PDT1"/></TZN><GRD A="52.5" B="7.5" C="0.00001" D="0.00001" E="4096" F="%d" G="GRD00001" I="2" J="0"/></TSK>`, 64*grids)
	xml := strings.Replace(TaskDataXML, "</TSK>", grid+`<PDT A="PDT1" B="Urea"/>`, 1)
	part := string(Log(inLog))
	if size := len(part)*logs + len(values)*grids; size < 256_000_000 {
		t.Fatalf("%d bytes", size)
	}
	return zipOf(t, []string{"TASKDATA.XML", xml, "TLG00001.XML", LogHeader},
		repetition{"TLG00001.BIN", part, logs}, repetition{"GRD00001.BIN", string(values), grids}), inLog * logs, grids << 18
}
