package demo

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/internal/farmfile"
)

// job is a field that a machine of a farm has worked.
type job struct {
	customer, farm, field, machine string
	start                          time.Time
	north, east                    float64 // of the field's corner in the southwest, in degrees, WGS84
}

// newFile is a file of the message type that its name says.
func newFile(name string, data []byte) File { return File{name, farmfile.MessageType(name), data} }

// nameOf is a name as a part of a file name.
func nameOf(text string) string { return strings.ReplaceAll(strings.ToLower(text), " ", "_") }

// files returns what machine and terminal make of the job.
func (j job) files() ([]File, error) {
	track := j.drive(600)
	taskdata, err := j.taskDataZip(track)
	if err != nil {
		return nil, fmt.Errorf("task data: %w", err)
	}
	telemetry, err := efdiTimeLog(track)
	if err != nil {
		return nil, fmt.Errorf("time log: %w", err)
	}
	picture, err := j.trackPNG(track)
	if err != nil {
		return nil, fmt.Errorf("picture: %w", err)
	}
	name := nameOf(j.field)
	return []File{
		newFile("taskdata_"+name+".zip", taskdata),
		newFile("timelog_"+name+".pb", telemetry),
		newFile("coverage_"+name+".png", picture),
	}, nil
}

// position is one record of the drive.
type position struct {
	at          time.Time
	north, east float64 // degrees, WGS84
	rate        int32   // application rate, mm³/m² (DDI 2)
	working     bool
}

// edge is the length of a field, in degrees.
const edge = 0.0018

// corners are those of the field, clockwise, the first one again at the end.
func (j job) corners() []position {
	north, east := j.north+edge, j.east+edge
	return []position{{north: j.north, east: j.east}, {north: north, east: j.east}, {north: north, east: east}, {north: j.north, east: east}, {north: j.north, east: j.east}}
}

// drive is a field worked lane by lane, one record a second.
func (j job) drive(seconds int) []position {
	const lane = 60 // seconds
	track := make([]position, seconds)
	for i := range track {
		row, along := i/lane, i%lane
		if row%2 == 1 {
			along = lane - 1 - along
		}
		track[i] = position{
			at:      j.start.Add(time.Duration(i) * time.Second),
			north:   j.north + float64(along)*0.00003,
			east:    j.east + float64(row)*0.00018,
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
func (j job) taskDataZip(track []position) ([]byte, error) {
	var boundary strings.Builder
	for _, p := range j.corners() {
		fmt.Fprintf(&boundary, "        <PNT A=\"2\" C=\"%.4f\" D=\"%.4f\"/>\n", p.north, p.east)
	}
	last := track[len(track)-1].at
	bin := timeLogBinary(track)
	taskdata := fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="2" ManagementSoftwareManufacturer="agrimill" ManagementSoftwareVersion="1" TaskControllerManufacturer="agrimill" TaskControllerVersion="1" DataTransferOrigin="2">
  <CTR A="CTR1" B="%s"/>
  <FRM A="FRM1" B="%s" I="CTR1"/>
  <PFD A="PFD1" C="%s" D="24000" E="CTR1" F="FRM1">
    <PLN A="1" B="Boundary" C="24000">
      <LSG A="1">
%s      </LSG>
    </PLN>
  </PFD>
  <DVC A="DVC1" B="%s" C="1.0" D="A000880000000001" E="1" F="31000000000000" G="FF000000006E65">
    <DET A="DET1" B="1" C="1" D="Sprayer" E="0" F="0">
      <DOR A="2"/>
      <DOR A="3"/>
      <DOR A="4"/>
    </DET>
    <DPD A="2" B="%04X" C="1" D="1" E="Actual rate"/>
    <DPD A="3" B="%04X" C="1" D="8" E="Work state"/>
    <DPD A="4" B="%04X" C="1" D="16" E="Total area"/>
  </DVC>
  <TSK A="TSK1" B="%s, spring" C="CTR1" D="FRM1" E="PFD1" G="4">
    <TIM A="%s" B="%s" C="%d" D="4">
      <DLV A="%04X" B="24000" C="DET1"/>
    </TIM>
    <TLG A="TLG00001" B="%d" C="1"/>
  </TSK>
</ISO11783_TaskData>
`, escape(j.customer), escape(j.farm), escape(j.field),
		boundary.String(), escape(j.machine), ddiActualRate, ddiActualState, ddiTotalArea,
		escape(j.field), j.start.Format(time.RFC3339), last.Format(time.RFC3339), int(last.Sub(j.start).Seconds()),
		ddiTotalArea, len(bin))
	// An empty attribute means that the value is in the binary file.
	header := fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<TIM A="" D="4">
  <PTN A="" B="" D=""/>
  <DLV A="%04X" B="" C="DET1"/>
  <DLV A="%04X" B="" C="DET1"/>
</TIM>
`, ddiActualRate, ddiActualState)

	return zipped(j.start,
		entry{"TASKDATA/TASKDATA.XML", []byte(taskdata)},
		entry{"TASKDATA/TLG00001.xml", []byte(header)},
		entry{"TASKDATA/TLG00001.bin", bin})
}

// entry is a file in an archive.
type entry struct {
	name string
	data []byte
}

func zipped(modified time.Time, entries ...entry) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, e := range entries {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: modified})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// escape makes a text fit for XML.
func escape(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // a Builder takes everything
	return out.String()
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

// efdiTimeLog encodes the same log as telemetry: an EFDI TimeLog.
func efdiTimeLog(track []position) ([]byte, error) {
	const effective, rtkFixed = 4, 4
	log, element := &efdipb.TimeLog{}, &efdipb.UID{Number: 1}
	for _, p := range track {
		at := timestamppb.New(p.at)
		log.Time = append(log.Time, &efdipb.Time{
			Start: at, Type: effective, PositionStart: &efdipb.Position{North: p.north, East: p.east, Status: rtkFixed, GpsUtc: at},
			DataLogValue: []*efdipb.DataLogValue{
				{Ddi: ddiActualRate, Value: int64(p.rate), DeviceElement: element}, {Ddi: ddiActualState, Value: int64(state(p)), DeviceElement: element},
			},
		})
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(log)
}

func state(p position) int32 {
	if p.working {
		return 1
	}
	return 0
}

// trackPNG draws where the machine worked.
func (j job) trackPNG(track []position) ([]byte, error) {
	const shades = 64 // of the rate
	palette := color.Palette{color.NRGBA{R: 0xe8, G: 0xe4, B: 0xd8, A: 0xff}, color.NRGBA{R: 0x9a, G: 0x8f, B: 0x7a, A: 0xff}}
	for shade := range uint8(shades) {
		palette = append(palette, color.NRGBA{R: 0x2f, G: 0x70 + shade, B: 0x3a, A: 0xff})
	}
	picture := image.NewPaletted(image.Rect(0, 0, 320, 320), palette)
	for _, p := range track {
		c := uint8(1)
		if p.working {
			c = 2 + uint8((p.rate-16000)/64)
		}
		x := 16 + int((p.east-j.east)*160_000)
		y := 304 - int((p.north-j.north)*160_000)
		for dx := range 24 {
			for dy := range 5 {
				picture.SetColorIndex(x+dx, y-dy, c)
			}
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, picture); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// sensorDump returns size incompressible bytes; the seed is fixed.
func sensorDump(size int) []byte {
	out := make([]byte, size)
	var seed [32]byte
	copy(seed[:], "agrimill demo")
	// ChaCha8.Read never fails.
	_, _ = rand.NewChaCha8(seed).Read(out)
	return out
}
