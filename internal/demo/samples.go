package demo

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/isoxml"
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
	data := j.data(track)
	var taskdata, telemetry bytes.Buffer
	if err := isoxml.Write(context.Background(), &taskdata, data, isoxml.WriteConfig{}); err != nil {
		return nil, fmt.Errorf("task data: %w", err)
	}
	if err := efdi.WriteTimeLog(&telemetry, data.Logs[0], efdi.EncodeConfig{}); err != nil {
		return nil, fmt.Errorf("time log: %w", err)
	}
	picture, err := j.trackPNG(track)
	if err != nil {
		return nil, fmt.Errorf("picture: %w", err)
	}
	name := nameOf(j.field)
	return []File{
		newFile("taskdata_"+name+".zip", taskdata.Bytes()),
		newFile("timelog_"+name+".pb", telemetry.Bytes()),
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

// degrees rounds to what a time log has: 10⁻⁷ degrees.
func degrees(x float64) float64 { return math.Round(x*1e7) / 1e7 }

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
			north:   degrees(j.north + float64(along)*0.00003),
			east:    degrees(j.east + float64(row)*0.00018),
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

// data is a completed task with its time log, and the customer, farm, field and device that it refers to.
func (j job) data(track []position) *farmdata.Set {
	outline := farmdata.LineString{Type: 1}
	for _, p := range j.corners() {
		outline.Points = append(outline.Points, farmdata.Point{Type: 2, North: p.north, East: p.east})
	}
	const area = 24000
	last := track[len(track)-1].at
	set := &farmdata.Set{
		Header:    farmdata.Header{Software: "agrimill", SoftwareVersion: "1", Controller: "agrimill", ControllerVersion: "1", Origin: 2},
		Customers: []farmdata.Customer{{ID: "CTR1", LastName: j.customer}},
		Farms:     []farmdata.Farm{{ID: "FRM1", Designator: j.farm, CustomerID: "CTR1"}},
		Fields: []farmdata.Field{{
			ID: "PFD1", Designator: j.field, Area: area, CustomerID: "CTR1", FarmID: "FRM1",
			Polygons: []farmdata.Polygon{{Type: 1, Designator: "Boundary", Area: area, Rings: []farmdata.LineString{outline}}},
		}},
		Devices: []farmdata.Device{{
			ID: "DVC1", Designator: j.machine, SoftwareVersion: "1.0", Name: "A000880000000001", SerialNumber: "1",
			StructureLabel: "31000000000000", LocalizationLabel: "FF000000006E65",
			Elements: []farmdata.Element{{ID: "DET1", ObjectID: 1, Type: 1, Designator: "Sprayer", Objects: []int{2, 3, 4}}},
			ProcessData: []farmdata.ProcessData{
				{ObjectID: 2, DDI: ddiActualRate, Property: 1, Triggers: 1, Designator: "Actual rate"},
				{ObjectID: 3, DDI: ddiActualState, Property: 1, Triggers: 8, Designator: "Work state"},
				{ObjectID: 4, DDI: ddiTotalArea, Property: 1, Triggers: 16, Designator: "Total area"},
			},
		}},
		Tasks: []farmdata.Task{{
			ID: "TSK1", Designator: j.field + ", spring", CustomerID: "CTR1", FarmID: "FRM1", FieldID: "PFD1", Status: 4,
			DefaultZone: -1, LostZone: -1, OutsideZone: -1, LogNames: []string{"TLG00001"},
			Times: []farmdata.TaskTime{{
				Start: farmdata.Stamp{Wall: j.start}, Stop: farmdata.Stamp{Wall: last}, Duration: last.Sub(j.start), Type: 4,
				Totals: []farmdata.Total{{DDI: ddiTotalArea, ElementID: "DET1", Raw: area}},
			}},
		}},
	}
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Columns: []farmdata.Column{{DDI: ddiActualRate, ElementID: "DET1"}, {DDI: ddiActualState, ElementID: "DET1"}}}
	descriptions := set.Descriptions()
	for i := range log.Columns {
		descriptions.Describe(&log.Columns[i])
	}
	log.Records = func(yield func(*farmdata.Record, error) bool) {
		const known = farmdata.HasNorth | farmdata.HasEast | farmdata.HasStatus
		for i, p := range track {
			record := &farmdata.Record{
				Number: int64(i), Stamp: farmdata.Stamp{Wall: p.at, Local: true},
				Position: farmdata.Position{North: p.north, East: p.east, Status: 4, Has: known}, // RTK fixed
				Values:   []farmdata.Value{{Column: &log.Columns[0], Raw: int64(p.rate)}, {Column: &log.Columns[1], Raw: state(p)}},
			}
			if !yield(record, nil) {
				return
			}
		}
	}
	set.Logs = []*farmdata.Log{log}
	return set
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

func state(p position) int64 {
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
