package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"time"

	"github.com/agrimill/agrimill/internal/farmfile"
)

// workStart is when the work in the samples began. It is fixed, so
// every run sends the same bytes.
var workStart = time.Date(2026, time.May, 4, 6, 30, 0, 0, time.UTC)

// samples generates what the program sends if it is given no folder: one job on an
// imaginary field in the formats that farm software exchanges.
func samples() ([]payload, error) {
	track := drive(600)
	taskdata, err := taskDataZip(track)
	if err != nil {
		return nil, fmt.Errorf("task data: %w", err)
	}
	picture, err := trackPNG(track)
	if err != nil {
		return nil, fmt.Errorf("picture: %w", err)
	}
	summary, err := trackJSON(track)
	if err != nil {
		return nil, fmt.Errorf("summary: %w", err)
	}
	files := []payload{
		{name: "taskdata_long_acre.zip", data: taskdata},
		{name: "timelog_long_acre.pb", data: efdiTimeLog(track)},
		{name: "coverage_long_acre.png", data: picture},
		{name: "summary_long_acre.json", data: summary},
		{name: "raw_sensor_dump.bin", data: sensorDump(3 << 20)},
	}
	for i := range files {
		files[i].messageType = farmfile.MessageType(files[i].name)
	}
	return files, nil
}

// position is one record of the drive.
type position struct {
	at          time.Time
	north, east float64 // degrees, WGS84
	rate        int32   // application rate, mm³/m² (DDI 2)
	working     bool
}

// drive is a field worked lane by lane, one record a second.
func drive(seconds int) []position {
	const lane = 60 // seconds
	track := make([]position, seconds)
	for i := range track {
		row, along := i/lane, i%lane
		if row%2 == 1 {
			along = lane - 1 - along
		}
		track[i] = position{
			at:      workStart.Add(time.Duration(i) * time.Second),
			north:   52.1000 + float64(along)*0.00003,
			east:    8.2000 + float64(row)*0.00018,
			rate:    18000 + int32(2000*math.Sin(float64(i)/40)),
			working: along > 1 && along < lane-2,
		}
	}
	return track
}

// DDIs of ISO 11783-11 that the samples use.
const (
	ddiActualRate  = 2   // actual volume per area application rate, mm³/m²
	ddiTotalArea   = 116 // total area, m²
	ddiActualState = 141 // actual work state, 0 or 1
)

// taskDataZip builds an ISO 11783-10 transfer set, version 4: TASKDATA.XML with a customer,
// farm, field, device and completed task, and the task's time log.
func taskDataZip(track []position) ([]byte, error) {
	last := track[len(track)-1].at
	bin := timeLogBinary(track)
	taskdata := fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="2" ManagementSoftwareManufacturer="agrimill" ManagementSoftwareVersion="1" TaskControllerManufacturer="agrimill" TaskControllerVersion="1" DataTransferOrigin="2">
  <CTR A="CTR1" B="Sample Customer"/>
  <FRM A="FRM1" B="Sample Farm" I="CTR1"/>
  <PFD A="PFD1" C="Long Acre" D="24000" E="CTR1" F="FRM1">
    <PLN A="1" B="Boundary" C="24000">
      <LSG A="1">
        <PNT A="2" C="52.1000" D="8.2000"/>
        <PNT A="2" C="52.1018" D="8.2000"/>
        <PNT A="2" C="52.1018" D="8.2018"/>
        <PNT A="2" C="52.1000" D="8.2018"/>
        <PNT A="2" C="52.1000" D="8.2000"/>
      </LSG>
    </PLN>
  </PFD>
  <DVC A="DVC1" B="Sample Sprayer" C="1.0" D="A000880000000001" E="1" F="31000000000000" G="FF000000006E65">
    <DET A="DET1" B="1" C="1" D="Sprayer" E="0" F="0">
      <DOR A="2"/>
      <DOR A="3"/>
      <DOR A="4"/>
    </DET>
    <DPD A="2" B="%04X" C="1" D="1" E="Actual rate"/>
    <DPD A="3" B="%04X" C="1" D="8" E="Work state"/>
    <DPD A="4" B="%04X" C="1" D="16" E="Total area"/>
  </DVC>
  <TSK A="TSK1" B="Long Acre, spring" C="CTR1" D="FRM1" E="PFD1" G="4">
    <TIM A="%s" B="%s" C="%d" D="4">
      <DLV A="%04X" B="24000" C="DET1"/>
    </TIM>
    <TLG A="TLG00001" B="%d" C="1"/>
  </TSK>
</ISO11783_TaskData>
`, ddiActualRate, ddiActualState, ddiTotalArea,
		workStart.Format(time.RFC3339), last.Format(time.RFC3339), int(last.Sub(workStart).Seconds()),
		ddiTotalArea, len(bin))
	// An empty attribute means that the value is in the binary file.
	header := fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<TIM A="" D="4">
  <PTN A="" B="" D=""/>
  <DLV A="%04X" B="" C="DET1"/>
  <DLV A="%04X" B="" C="DET1"/>
</TIM>
`, ddiActualRate, ddiActualState)

	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"TASKDATA/TASKDATA.XML", []byte(taskdata)},
		{"TASKDATA/TLG00001.xml", []byte(header)},
		{"TASKDATA/TLG00001.bin", bin},
	} {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: file.name, Method: zip.Deflate, Modified: workStart})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(file.data); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// timeLogBinary encodes the records of TLG00001.bin in the order that TLG00001.xml
// declares: time of day (ms), days since 1980-01-01, north and east (10⁻⁷ degrees),
// position status, and the values that are present, each after its index in the header.
func timeLogBinary(track []position) []byte {
	epoch := time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)
	var out []byte
	for _, p := range track {
		midnight := p.at.Truncate(24 * time.Hour)
		out = binary.LittleEndian.AppendUint32(out, uint32(p.at.Sub(midnight).Milliseconds()))
		out = binary.LittleEndian.AppendUint16(out, uint16(midnight.Sub(epoch)/(24*time.Hour)))
		out = binary.LittleEndian.AppendUint32(out, uint32(int32(math.Round(p.north*1e7))))
		out = binary.LittleEndian.AppendUint32(out, uint32(int32(math.Round(p.east*1e7))))
		out = append(out, 4) // RTK fixed
		out = append(out, 2) // values that follow
		out = append(out, 0)
		out = binary.LittleEndian.AppendUint32(out, uint32(p.rate))
		out = append(out, 1)
		out = binary.LittleEndian.AppendUint32(out, uint32(state(p)))
	}
	return out
}

// efdiTimeLog encodes the same log as telemetry: an EFDI TimeLog in protobuf's wire format.
func efdiTimeLog(track []position) []byte {
	var out []byte
	for _, p := range track {
		var stamp, pos, record []byte
		stamp = appendVarint(stamp, 1, uint64(p.at.Unix()))
		pos = appendDouble(pos, 1, p.north)
		pos = appendDouble(pos, 2, p.east)
		pos = appendVarint(pos, 4, 4)
		pos = appendBytes(pos, 8, stamp)
		record = appendBytes(record, 1, stamp)
		record = appendVarint(record, 4, 4) // effective
		record = appendBytes(record, 5, pos)
		record = appendBytes(record, 7, logValue(ddiActualRate, p.rate))
		record = appendBytes(record, 7, logValue(ddiActualState, state(p)))
		out = appendBytes(out, 4, record)
	}
	return out
}

func logValue(ddi uint64, value int32) []byte {
	out := appendVarint(nil, 1, ddi)
	out = appendVarint(out, 2, uint64(value))
	return appendBytes(out, 3, appendVarint(nil, 1, 2)) // device element 1, zigzag
}

func state(p position) int32 {
	if p.working {
		return 1
	}
	return 0
}

// The three forms of protobuf's wire format that the time log needs.

func appendVarint(out []byte, field, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(out, field<<3), value)
}

func appendDouble(out []byte, field uint64, value float64) []byte {
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(out, field<<3|1), math.Float64bits(value))
}

func appendBytes(out []byte, field uint64, value []byte) []byte {
	out = binary.AppendUvarint(out, field<<3|2)
	return append(binary.AppendUvarint(out, uint64(len(value))), value...)
}

// trackPNG draws where the machine worked.
func trackPNG(track []position) ([]byte, error) {
	picture := image.NewNRGBA(image.Rect(0, 0, 320, 320))
	for i := 0; i < len(picture.Pix); i += 4 {
		copy(picture.Pix[i:], []byte{0xe8, 0xe4, 0xd8, 0xff})
	}
	for _, p := range track {
		c := color.NRGBA{R: 0x9a, G: 0x8f, B: 0x7a, A: 0xff}
		if p.working {
			c = color.NRGBA{R: 0x2f, G: uint8(0x70 + (p.rate-16000)/64), B: 0x3a, A: 0xff}
		}
		x := 16 + int((p.east-8.2000)*160_000)
		y := 304 - int((p.north-52.1000)*160_000)
		for dx := range 24 {
			for dy := range 5 {
				picture.SetNRGBA(x+dx, y-dy, c)
			}
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, picture); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// trackJSON summarizes the job. No message type is assigned to JSON, so it shows what
// happens to a file of an unknown kind.
func trackJSON(track []position) ([]byte, error) {
	var working int
	for _, p := range track {
		if p.working {
			working++
		}
	}
	return json.MarshalIndent(struct {
		Field          string    `json:"field"`
		Start          time.Time `json:"start"`
		Records        int       `json:"records"`
		WorkingSeconds int       `json:"working_seconds"`
		AreaM2         int       `json:"area_m2"`
	}{"Long Acre", workStart, len(track), working, 24000}, "", "  ")
}

// sensorDump returns size incompressible bytes; the seed is fixed.
func sensorDump(size int) []byte {
	out := make([]byte, size)
	var seed [32]byte
	copy(seed[:], "agrimill quickstart")
	// ChaCha8.Read never fails.
	_, _ = rand.NewChaCha8(seed).Read(out)
	return out
}
