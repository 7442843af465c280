package content_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

func open(t testing.TB, b []byte, cfg content.Config) *content.Data {
	t.Helper()
	return testkit.Must(content.Open(t.Context(), bytes.NewReader(b), int64(len(b)), cfg))(t)
}

func summarize(t testing.TB, data *content.Data) *content.Summary {
	t.Helper()
	return testkit.Must(content.Summarize(t.Context(), data))(t)
}

// picture returns the SVG of a summary, which is well formed and needs nothing from elsewhere.
func picture(t testing.TB, s *content.Summary) string {
	t.Helper()
	var b strings.Builder
	testkit.NoError(t, s.WriteSVG(&b))
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		if element, ok := token.(xml.StartElement); ok {
			for _, a := range element.Attr {
				if a.Name.Local == "href" || a.Name.Local != "xmlns" && strings.Contains(a.Value, "://") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s has %s=%q", element.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
	return b.String()
}

func TestSummary(t *testing.T) {
	positions := farmdatatest.Marshal(t, &efdipb.GPSList{Entry: []*efdipb.GPSEntry{{North: 52.5, East: 7.5}, {North: 52.6, East: 7.5}}})
	wrapped := append([]byte{0x12, 0x80 | byte(len(positions)&0x7F), byte(len(positions) >> 7)}, positions...)
	for _, tt := range []struct {
		name string
		data []byte
		line string
	}{
		{"TaskData", farmdatatest.Archive(t, 5), "TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 5 records, 10 values, 2026-05-04T06:30:00 to 2026-05-04T06:30:04"},
		{"TaskData behind something", append([]byte("#!/bin/sh\n"), farmdatatest.Archive(t, 1)...), "TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 1 record, 2 values, 2026-05-04T06:30:00 to 2026-05-04T06:30:00"},
		{"time log", farmdatatest.TimeLog(t, 5), "EFDI time log: 1 log, 5 records, 10 values, 2026-05-04T06:30:00Z to 2026-05-04T06:30:04Z"},
		{"description", farmdatatest.Description(t), "EFDI TaskData 4.2: 1 device"},
		{"positions in an Any", wrapped, "EFDI positions: 1 log, 2 records"},
		{"a cut log", farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(3)[:50])),
			"TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 1 record, 2 values, 2026-05-04T06:30:00 to 2026-05-04T06:30:00, 1 finding"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := summarize(t, open(t, tt.data, content.Config{}))
			if got := s.Line(); got != tt.line {
				t.Errorf("got  %s\nwant %s", got, tt.line)
			}
			picture(t, s)
		})
	}
}

func TestSummaryOfTaskData(t *testing.T) {
	s := summarize(t, open(t, farmdatatest.Archive(t, 5), content.Config{}))
	b := testkit.Must(json.Marshal(s))(t)
	for _, want := range []string{
		`{"form":"TaskData","sets":[{"path":"TASKDATA","version":"4.2","software":"maker","controller":"controller",`,
		`"tasks":[{"id":"TSK1","name":"Mowing","status":"completed","customer":"CTR1","farm":"FRM1","field":"PFD1","logs":["TLG00001"]}]`,
		`"devices":[{"id":"DVC-1","name":"Mower","iso_name":"A00086000DE02812","software":"1.0","serial":"17","elements":1}]`,
		`"customers":[{"id":"CTR1","name":"Ada Miller"}],"farms":[{"id":"FRM1","name":"Hill farm"}]`,
		`"fields":[{"id":"PFD1","name":"Long acre","area":20000,"customer":"CTR1","farm":"FRM1","box":{"south":52.5,"west":7.5,"north":52.501,"east":7.502}}]`,
		`"records":5,"values":10,"positions":5,"start":"2026-05-04T06:30:00","end":"2026-05-04T06:30:04","box":{"south":52.5001,"west":7.5001,"north":52.50014,"east":7.50014}`,
		`{"ddi":"0043","name":"Working width","element":"DET-1","device":"Mower","unit":"m","count":5,"min":9,"max":9}`,
		`"grids":[],"zones":[],"findings":[]`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
	svg := picture(t, s)
	for _, want := range []string{`fill-rule="evenodd"`, "<polyline ", "<title>TLG00001</title>", " m</text>"} {
		if strings.Count(svg, want) != 1 {
			t.Errorf("%d times %s in\n%s", strings.Count(svg, want), want, svg)
		}
	}
}

// What a damaged log has on the other side of the world does not hide where the work was.
func TestPictureShowsWhereMostIs(t *testing.T) {
	far := farmdatatest.Log(2)
	copy(far[6:], "\x00\x00\x00\x10\x00\x00\x00\x10")
	s := summarize(t, open(t, farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader,
		"TLG00001.BIN", string(far)+string(farmdatatest.Log(100))), content.Config{}))
	svg := picture(t, s)
	if !strings.Contains(svg, "not shown: 1 places farther away") || !strings.Contains(svg, ">20 m<") {
		t.Errorf("got\n%s", svg)
	}
}

// A long track becomes a picture of bounded size, and around the 180th meridian one that shows it.
func TestPictureOfLongTrack(t *testing.T) {
	list := &efdipb.GPSList{}
	for i := range 100_000 {
		east := 179.9 + float64(i)/500_000
		if east > 180 {
			east -= 360
		}
		list.Entry = append(list.Entry, &efdipb.GPSEntry{North: 10 + float64(i%100)/1000, East: east})
	}
	svg := picture(t, summarize(t, open(t, farmdatatest.Marshal(t, list), content.Config{})))
	if len(svg) > 100_000 || strings.Contains(svg, "not shown") {
		t.Errorf("%d bytes:\n%.500s", len(svg), svg)
	}
}

func TestNoFarmData(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing": nil, "text": []byte("no farm data"), "archive without TaskData": farmdatatest.Zip(t, "readme", "text"),
		"archive that is cut": farmdatatest.Archive(t, 1)[:100], "EFDI by chance": []byte("BMm"),
		"a RAR archive": []byte("Rar!\x1a\x07\x00" + strings.Repeat("\x00", 600)), "packed with bzip2": []byte("BZh91AY&SY" + strings.Repeat("x", 600)),
		"XML without an archive": []byte("\n<html/>"),
	} {
		if data, err := content.Open(t.Context(), bytes.NewReader(b), int64(len(b)), content.Config{}); !errors.Is(err, content.ErrNotFarmData) {
			t.Errorf("%s: got %+v, %v, want ErrNotFarmData", name, data, err)
		} else if len(b) > 500 && !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	if _, err := content.OpenEFDI(t.Context(), strings.NewReader("no"), 2, efdi.TimeLog, content.Config{}); !errors.Is(err, content.ErrNotFarmData) {
		t.Errorf("got %v, want ErrNotFarmData", err)
	}
	if _, err := content.OpenFS(t.Context(), fstest.MapFS{"readme": {}}, content.Config{}); !errors.Is(err, content.ErrNotFarmData) {
		t.Errorf("got %v, want ErrNotFarmData", err)
	}
}

// failing is a source that breaks.
type failing struct{ after int64 }

var errDisk = errors.New("the disk is gone")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.after {
		return 0, errDisk
	}
	return copy(p, bytes.Repeat([]byte("PK"), len(p))), nil
}

// An error of the source is not one of the data: trying again may help.
func TestErrorOfTheSource(t *testing.T) {
	for _, after := range []int64{0, 10} {
		_, err := content.Open(t.Context(), failing{after}, 1000, content.Config{})
		if !errors.Is(err, errDisk) || errors.Is(err, content.ErrNotFarmData) {
			t.Errorf("after %d bytes: %v", after, err)
		}
	}
	if _, err := content.OpenFS(t.Context(), os.DirFS(filepath.Join(t.TempDir(), "absent")), content.Config{}); !errors.Is(err, os.ErrNotExist) || errors.Is(err, content.ErrNotFarmData) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
	if _, err := content.Open(t.Context(), strings.NewReader(""), 0, content.Config{ISOXML: isoxml.Config{MaxXML: -1}}); err == nil || errors.Is(err, content.ErrNotFarmData) {
		t.Errorf("got %v, want an error of the configuration", err)
	}
}

// A summary ends with its context, and has what was read until then.
func TestSummarizeEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	data := open(t, farmdatatest.TimeLog(t, 1000), content.Config{})
	records := data.Sets[0].Logs[0].Records
	data.Sets[0].Logs[0].Records = func(yield func(*farmdata.Record, error) bool) {
		n := 0
		for record, err := range records {
			if n++; n == 10 {
				cancel()
			}
			if !yield(record, err) {
				return
			}
		}
	}
	s, err := content.Summarize(ctx, data)
	if !errors.Is(err, context.Canceled) || s.Sets[0].Logs[0].Records == 0 || s.Sets[0].Logs[0].Records == 1000 {
		t.Errorf("got %v after %d records, want %v in between", err, s.Sets[0].Logs[0].Records, context.Canceled)
	}
}

// Every real file of farm data is recognized as what its message type says, the others as none.
func TestRealFiles(t *testing.T) {
	forms := map[string]content.Form{
		"iso:11783:-10:taskdata:zip": content.TaskData, "iso:11783:-10:time_log:protobuf": content.EFDITimeLog, "gps:info": content.EFDIPositions,
	}
	for _, file := range farmdatatest.Files(t, "../..", "farm/*", "isoxml/*.zip") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b := testkit.Must(os.ReadFile(file))(t)
			want := forms[farmfile.MessageType(file)]
			data, err := content.Open(t.Context(), bytes.NewReader(b), int64(len(b)), content.Config{})
			if want == "" {
				if !errors.Is(err, content.ErrNotFarmData) {
					t.Errorf("got %v, want ErrNotFarmData", err)
				}
				return
			}
			if err != nil || data.Form != want {
				t.Fatalf("got %v, %v, want %v", data, err, want)
			}
			s := summarize(t, data)
			if _, err := json.Marshal(s); err != nil {
				t.Error(err)
			}
			if svg := picture(t, s); strings.Contains(svg, "No positions") {
				t.Errorf("nothing in the picture:\n%s", svg)
			}
			var records int64
			for _, log := range s.Sets[0].Logs {
				records += log.Records
			}
			if want := expectedRecords(t, filepath.Base(file)); records < want {
				t.Errorf("%d records, want at least %d", records, want)
			}
		})
	}
}

// expectedRecords is how many records another reader finds, where its figures say so.
func expectedRecords(t *testing.T, name string) int64 {
	t.Helper()
	var expected map[string]struct{ Records int64 }
	b, err := os.ReadFile(farmdatatest.Files(t, "../..", "isoxml/expected.json")[0])
	if err == nil {
		err = json.Unmarshal(b, &expected)
	}
	if err != nil {
		t.Fatal(err)
	}
	return expected[name].Records
}

// FuzzOpen: whatever it is, it is opened or it is not; what is opened has a summary and a picture.
func FuzzOpen(f *testing.F) {
	f.Add(farmdatatest.Archive(f, 3))
	f.Add(farmdatatest.TimeLog(f, 3))
	f.Add(farmdatatest.Description(f))
	f.Add([]byte("BMm"))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg := content.Config{ISOXML: isoxml.Config{MaxStream: 1 << 16, MaxXML: 1 << 16}, EFDI: efdi.Config{MaxMessage: 1 << 16}}
		data, err := content.Open(t.Context(), bytes.NewReader(b), int64(len(b)), cfg)
		if err != nil {
			if !errors.Is(err, content.ErrNotFarmData) {
				t.Fatalf("%v is no ErrNotFarmData", err)
			}
			return
		}
		s := summarize(t, data)
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
		if line := s.Line(); strings.ContainsAny(line, "\n\r") || line == "" {
			t.Errorf("the line is %q", line)
		}
		picture(t, s)
	})
}

// TestGridsAreRead: cells are counted, and what is wrong with a grid is found, listed, and counted in the line.
func TestGridsAreRead(t *testing.T) {
	t.Parallel()
	const grid = `<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1"><TZN A="1"><PDV A="0006" B="5"/></TZN><GRD A="52" B="8" C="0.1" D="0.1" E="2" F="2" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`
	for name, tt := range map[string]struct {
		xml, cells string
		count      int64
		found      farmdata.Kind
	}{
		"whole":     {grid, "\x01\x01\x01\x01", 4, ""},
		"too short": {grid, "\x01\x01\x01", 3, farmdata.KindCut},
		"too long":  {grid, "\x01\x01\x01\x01\x01", 4, farmdata.KindSurplus},
		"empty":     {grid, "", 0, farmdata.KindCut},
	} {
		s := summarize(t, open(t, farmdatatest.Zip(t, "TASKDATA.XML", tt.xml, "GRD00001.BIN", tt.cells), content.Config{}))
		g := s.Sets[0].Grids[0]
		found := farmdata.Kind("")
		if len(g.Findings) == 1 {
			found = g.Findings[0].Kind
		}
		if g.Cells != tt.count || found != tt.found || g.Box == nil || strings.Contains(s.Line(), "1 finding") != (tt.found != "") {
			t.Errorf("%s: got %d cells, findings %v, box %v, %s; want %d and %q", name, g.Cells, g.Findings, g.Box, s.Line(), tt.count, tt.found)
		}
	}
	across := summarize(t, open(t, farmdatatest.Zip(t, "TASKDATA.XML", strings.Replace(grid, `B="8"`, `B="179.9"`, 1), "GRD00001.BIN", "\x01\x01\x01\x01"), content.Config{}))
	if got := across.Sets[0].Grids[0].Box; got == nil || got.West < -180 || got.East > 180 || len(across.Sets[0].Findings) > 0 || strings.Contains(picture(t, across), "No positions") {
		t.Errorf("across 180°: got the box %v and findings %v, want a place", got, across.Sets[0].Findings)
	}
	for name, corner := range map[string]string{"no corner": ``, "half a corner": `A="52"`, "beyond the pole": `A="91" B="8"`} {
		s := summarize(t, open(t, farmdatatest.Zip(t, "TASKDATA.XML", strings.Replace(grid, `A="52" B="8"`, corner, 1), "GRD00001.BIN", "\x01\x01\x01\x01"), content.Config{}))
		if g := s.Sets[0].Grids[0]; g.Box != nil || g.Cells != 4 || len(s.Sets[0].Findings) == 0 || !strings.Contains(picture(t, s), "No positions") {
			t.Errorf("%s: got %+v and findings %v, want no place, and 4 cells", name, g, s.Sets[0].Findings)
		}
	}
}

// TestLongNamesAreCut: a long name does not stand whole at each value and total that has it, and the data keeps it.
func TestLongNamesAreCut(t *testing.T) {
	long := strings.Repeat("ä", 10_000)
	for _, archive := range [][]byte{farmdatatest.ArchiveOfTotals(t, 5), farmdatatest.Prescriptions(t, farmdatatest.TaskZones)} {
		data := open(t, archive, content.Config{})
		set := data.Sets[0]
		set.Software, set.Tasks[0].Designator, set.Devices[0].Designator, set.Fields[0].Designator, set.Products[0].Designator = long, long, long, long, long
		for i := range set.Logs {
			for c := range set.Logs[i].Columns {
				set.Logs[i].Columns[c].Device = long
			}
		}
		text, err := json.Marshal(summarize(t, data))
		if err != nil || strings.Contains(string(text), long[:2*200]) || !strings.Contains(string(text), long[:2*199]+"…") {
			t.Errorf("%v, %d bytes:\n%.2000s", err, len(text), text)
		}
		if got := set.Tasks[0].Designator; got != long {
			t.Errorf("the data has %.20q", got)
		}
	}
}

// TestPrescriptionsAreSummarized: a grid that two tasks name is there once with both, a rate is one column in all zones, zones
// with polygons are there, and the picture says what its colors mean.
func TestPrescriptionsAreSummarized(t *testing.T) {
	t.Parallel()
	s := summarize(t, open(t, farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskGridOfValues, farmdatatest.TaskGridAgain, farmdatatest.TaskZones), content.Config{}))
	set := s.Sets[0]
	if len(set.Findings) > 0 || len(set.Grids) != 2 || len(set.Zones) != 3 || !strings.Contains(s.Line(), "2 grids, 3 zones") {
		t.Fatalf("got %d grids, %d zones, findings %v, %s", len(set.Grids), len(set.Zones), set.Findings, s.Line())
	}
	rate := func(v content.Prescribed) string {
		return fmt.Sprint(v.DDI, " ", v.Column.Name, " ", v.Element, " ", v.Count, " ", v.Min, " ", v.Max, " ", v.Unit, " ", v.Products)
	}
	zones, values := set.Grids[0], set.Grids[1]
	if got := rate(zones.Values[0]); got != "0006 Rate DET1 132 120 220 kg/ha [PDT3 PDT1]" || len(zones.Values) != 1 ||
		!slices.Equal(zones.Tasks, []string{"TSK1", "TSK2"}) || !slices.Equal(zones.Fields, []string{"PFD1"}) {
		t.Errorf("got %s of tasks %q and fields %q", got, zones.Tasks, zones.Fields)
	}
	if got := rate(values.Values[1]); got != "0006 Rate DET1 132 19.31 194.96 kg/ha [PDT1]" || len(values.Values) != 2 || values.Tasks[0] != "TSK3" {
		t.Errorf("got %s", got)
	}
	if z := set.Zones[0]; z.Code != 1 || z.Name != "west" || z.Task != "TSK4" || z.Field != "PFD1" || z.Box == nil || rate(z.Values[0]) != "0006 Rate DET1 1 1500 1500 kg/ha [PDT3]" || len(set.Zones[2].Values) != 0 {
		t.Errorf("got %+v", z)
	}
	elsewhere := summarize(t, open(t, farmdatatest.Prescriptions(t, farmdatatest.TaskElsewhere, farmdatatest.TaskOneRate), content.Config{})).Sets[0].Zones
	if len(elsewhere) != 3 || fmt.Sprint(elsewhere[0].Code, elsewhere[0].Elsewhere, " ", rate(elsewhere[0].Values[0])) != "1 [default position lost] 0006 Rate DET1 1 120 120 kg/ha [PDT1]" ||
		fmt.Sprint(elsewhere[1].Code, elsewhere[1].Elsewhere, elsewhere[1].Box) != "9 [outside] <nil>" || elsewhere[2].Task != "TSK7" || elsewhere[2].Values[0].Max != 500 {
		t.Errorf("zones without polygons: %+v", elsewhere)
	}
	svg := picture(t, s)
	for _, want := range []string{"Rate, kg/ha (GRD00001 and 1 more)", ">1500</text>", "Z\"><title>160 kg/ha, Base dressing; Base dressing, rest, Long acre, PDT3; Urea</title>", "Z\"><title>1500 kg/ha, Liming, Long acre, PDT3</title>", "246.7 – 263.3</text>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in %s", want, svg)
		}
	}
}

// A box has in it what goes across the 180th meridian, and not the rest of the world.
func TestBoxesAcrossTheMeridian(t *testing.T) {
	t.Parallel()
	place := func(east float64) farmdata.Point { return farmdata.Point{North: -17, East: east} }
	for _, east := range []float64{-179.9, 179.95} {
		field := farmdata.Field{Polygons: []farmdata.Polygon{{Rings: []farmdata.LineString{{Type: 1, Points: []farmdata.Point{place(179.9), place(east), {North: -16.9, East: east}}}}}}}
		grid := &farmdata.Grid{Type: 1, North: -17, East: 179.9, CellNorth: 0.1, CellEast: math.Mod(east-179.9+360, 360), Rows: 1, Cols: 1, Cells: func(func(*farmdata.Cell, error) bool) {}}
		set := &farmdata.Set{Fields: []farmdata.Field{field}, Tasks: []farmdata.Task{{Grids: []*farmdata.Grid{grid}}}}
		s := testkit.Must(content.Summarize(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t).Sets[0]
		for what, box := range map[string]*content.Box{"field": s.Fields[0].Box, "grid": s.Grids[0].Box} {
			if all := box.West == -180 && box.East == 180; all != (east < 0) || !all && box.West < 179 {
				t.Errorf("%s from 179.9 to %g: got %+v", what, east, *box)
			}
		}
	}
}

// TestPicturesOfGridsAreBounded: a large grid is drawn in blocks, and what is too much is an outline, which is said.
func TestPicturesOfGridsAreBounded(t *testing.T) {
	t.Parallel()
	var xml strings.Builder
	xml.WriteString(`<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1"><TZN A="0"><PDV A="0006" B="5"/></TZN><TZN A="1"><PDV A="0006" B="7"/></TZN>`)
	files := []string{"TASKDATA.XML", ""}
	cells := strings.Repeat("\x00\x01", 150*150/2)
	for i := range 12 {
		fmt.Fprintf(&xml, `<GRD A="52" B="%d" C="0.001" D="0.001" E="150" F="150" G="GRD%05d" I="1"/>`, 8+i, i)
		files = append(files, fmt.Sprintf("GRD%05d.BIN", i), cells)
	}
	xml.WriteString(`</TSK></ISO11783_TaskData>`)
	files[1] = xml.String()
	svg := picture(t, summarize(t, open(t, farmdatatest.Zip(t, files...), content.Config{})))
	if !strings.Contains(svg, "without colors: 4 prescription maps") || strings.Count(svg, "Z") > 50_000 {
		t.Errorf("got %d areas and no %q", strings.Count(svg, "Z"), "without colors")
	}
}

// TestConstantsAreSummarized: what a log has once counts for each record that has nothing else.
func TestConstantsAreSummarized(t *testing.T) {
	t.Parallel()
	header := strings.Replace(farmdatatest.LogHeader, `</TIM>`, `<DLV A="0086" B="-250" C="DET-1"/></TIM>`, 1)
	s := summarize(t, open(t, farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", string(farmdatatest.Log(7))), content.Config{}))
	if c := s.Sets[0].Logs[0].Columns[2]; c.DDI != "0086" || c.Count != 7 || c.Min != -250 || c.Max != -250 || s.Sets[0].Logs[0].Values != 14 {
		t.Errorf("got %+v of %d values, want -250 seven times, beside 14", c, s.Sets[0].Logs[0].Values)
	}
}
