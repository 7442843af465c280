package isoxml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// shared is where real files and the figures of an independent reader are. They
// are no part of this repository.
const shared = "../../../shared/data"

// absent ends a test that has nothing to compare with: loudly, and in CI as a failure.
func absent(t testing.TB, err error) {
	t.Helper()
	const message = "REAL FARM FILES ARE ABSENT, WHAT IS READ IS NOT COMPARED WITH AN INDEPENDENT READER: %v"
	if os.Getenv("CI") != "" {
		t.Fatalf(message, err)
	}
	t.Skipf(message, err)
}

// farmFile returns the path of a real file.
func farmFile(t testing.TB, name string) string {
	t.Helper()
	if _, err := os.Stat(shared); err != nil {
		absent(t, err)
	}
	for _, dir := range []string{"farm", "isoxml"} {
		if file := filepath.Join(shared, dir, name); exists(file) {
			return file
		}
	}
	t.Fatalf("%s is missing", name)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// openFile opens a real archive and closes it at the end of the test.
func openFile(t testing.TB, file string) *Archive {
	t.Helper()
	f := testkit.Must(os.Open(file))(t)
	t.Cleanup(func() { _ = f.Close() })
	info := testkit.Must(f.Stat())(t)
	archive, err := Open(t.Context(), f, info.Size(), Config{})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return archive
}

// Figures of one archive, as the independent reader (npm package isoxml) gives them.
type figures struct {
	Version, Software         string
	Tasks                     []*string
	Farms, Customers, Records int
	Products, Values          int
	Devices                   []struct {
		Designator, Name string
		Elements         int
	}
	Fields []struct {
		Designator string
		Area       int64
		Polygons   int
		Points     []int
	}
	Grids []struct {
		Type        string
		Rows, Cols  int64
		South, West float64
	}
	Logs []logFigures
}

type logFigures struct {
	File            string
	Task            string
	Records, Values int
	Bbox            []float64
	First, Last     time.Time
	SumByDDI        map[string]float64
	ValueNames      []valueFigures
}

type valueFigures struct {
	DDI, Device, Unit string
	Scale             float64
	Offset            int64
	Min, Max          *int64
}

func expected(t *testing.T) map[string]figures {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(shared, "isoxml", "expected.json"))
	if errors.Is(err, fs.ErrNotExist) {
		absent(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]figures
	testkit.NoError(t, json.Unmarshal(data, &all))
	if len(all) != 7 {
		t.Fatalf("figures of %d archives, want 7", len(all))
	}
	return all
}

// TestAgreesWithIndependentReader compares everything that the reference tells:
// names, counts, areas, times, places, sums, units, scales and ranges.
func TestAgreesWithIndependentReader(t *testing.T) {
	t.Parallel()
	for name, want := range expected(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			archive := openFile(t, farmFile(t, name))
			if len(archive.Sets) != 1 {
				t.Fatalf("%d sets, want one", len(archive.Sets))
			}
			set := archive.Sets[0]
			compareSet(t, set, want)
			var named []*farmdata.Log
			for _, log := range set.Logs {
				if log.TaskID != "" {
					named = append(named, log)
				}
			}
			if len(named) != len(want.Logs) {
				t.Fatalf("%d logs of tasks, want %d", len(named), len(want.Logs))
			}
			for i, log := range named {
				compareLog(t, set, log, want.Logs[i])
			}
		})
	}
}

// TestDictionaryAgreesWithMachines compares units and resolutions of the dictionary with those in which real machines present their values. Where they
// differ, the npm package has what the dictionary has (TestPeerDictionary).
func TestDictionaryAgreesWithMachines(t *testing.T) {
	t.Parallel()
	faults := "00D4 0147 014B 01E4 01E8 01EB 01F6 020E"
	agree, differ := map[farmdata.DDI]bool{}, map[string]bool{}
	for name := range expected(t) {
		for _, device := range openFile(t, farmFile(t, name)).Sets[0].Devices {
			for _, d := range device.ProcessData {
				compareDictionary(&device, d.DDI, d.PresentationID, agree, differ)
			}
			for _, d := range device.Properties {
				compareDictionary(&device, d.DDI, d.PresentationID, agree, differ)
			}
		}
	}
	equal(t, "DDIs that differ", strings.Join(slices.Sorted(maps.Keys(differ)), " "), faults)
	equal(t, "DDIs that agree", len(agree), 48)
}

func compareDictionary(device *farmdata.Device, ddi farmdata.DDI, presentation int, agree map[farmdata.DDI]bool, differ map[string]bool) {
	at := slices.IndexFunc(device.Presentations, func(p farmdata.Presentation) bool { return p.ObjectID == presentation && presentation != 0 })
	meaning, known := ddi.Meaning()
	if at < 0 || !known {
		return
	}
	p := device.Presentations[at]
	from, ok1 := farmdata.ParseUnit(meaning.Unit)
	to, ok2 := farmdata.ParseUnit(p.Unit)
	if !ok1 || !ok2 {
		return // a word that is no unit, or none
	}
	if factor, _, ok := from.To(to); ok && math.Abs(meaning.Scale*factor/p.Scale-1) < 1e-5 { // some write few digits
		agree[ddi] = true
	} else {
		differ[ddi.String()] = true
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func compareSet(t *testing.T, set *farmdata.Set, want figures) {
	t.Helper()
	equal(t, "version", fmt.Sprintf("%d.%d", set.Major, set.Minor), want.Version)
	equal(t, "software", set.Software, want.Software)
	equal(t, "farms", len(set.Farms), want.Farms)
	equal(t, "customers", len(set.Customers), want.Customers)
	equal(t, "products", len(set.Products), want.Products)
	equal(t, "tasks", len(set.Tasks), len(want.Tasks))
	equal(t, "devices", len(set.Devices), len(want.Devices))
	equal(t, "fields", len(set.Fields), len(want.Fields))
	if t.Failed() {
		return
	}
	var grids []*farmdata.Grid
	for i, task := range set.Tasks {
		designator := ""
		if want.Tasks[i] != nil {
			designator = *want.Tasks[i]
		}
		equal(t, "task", task.Designator, designator)
		grids = append(grids, task.Grids...)
	}
	for i, device := range set.Devices {
		equal(t, "device", device.Designator, want.Devices[i].Designator)
		equal(t, "NAME", device.Name, want.Devices[i].Name)
		equal(t, "device elements", len(device.Elements), want.Devices[i].Elements)
	}
	for i, field := range set.Fields {
		equal(t, "field", field.Designator, want.Fields[i].Designator)
		equal(t, "area", field.Area, want.Fields[i].Area)
		equal(t, "polygons", len(field.Polygons), want.Fields[i].Polygons)
		var points []int
		for _, polygon := range field.Polygons {
			for _, ring := range polygon.Rings {
				points = append(points, len(ring.Points))
			}
		}
		equal(t, "points of "+field.Designator, fmt.Sprint(points), fmt.Sprint(want.Fields[i].Points))
	}
	if equal(t, "grids", len(grids), len(want.Grids)); t.Failed() {
		return
	}
	for i, grid := range grids {
		w := want.Grids[i]
		equal(t, "grid type", fmt.Sprint(grid.Type), w.Type)
		equal(t, "rows", grid.Rows, w.Rows)
		equal(t, "cols", grid.Cols, w.Cols)
		equal(t, "south", grid.North, w.South)
		equal(t, "west", grid.East, w.West)
		cells := int64(0)
		for _, err := range grid.Cells {
			if err != nil {
				t.Error(err)
			}
			cells++
		}
		equal(t, "cells", cells, w.Rows*w.Cols)
	}
}

// damaged are the logs that end in garbage, which the reference takes for records
// as long as it can: how many places on Earth, and findings, are in them.
var damaged = map[string]struct {
	findings int
	bounds   bool // the records of the reference are all on Earth
}{
	"TLG00010": {findings: 2, bounds: false},
	"TLG00011": {findings: 2, bounds: true}, // of which one is a date of 2123
}

func compareLog(t *testing.T, set *farmdata.Set, log *farmdata.Log, want logFigures) {
	t.Helper()
	equal(t, "log", log.Name, want.File)
	for _, task := range set.Tasks {
		if task.ID == log.TaskID {
			equal(t, log.Name+" task", task.Designator, want.Task)
		}
	}
	got := tally(log)
	what := func(of string) string { return log.Name + " " + of }
	equal(t, what("records"), got.records, want.Records)
	equal(t, what("values"), got.values, want.Values)
	equal(t, what("first"), got.first, want.First)
	equal(t, what("last"), got.last, want.Last)
	damage, isDamaged := damaged[log.Name]
	isDamaged = isDamaged && len(set.Logs) == 26 // taskdata_big.zip
	if !isDamaged {
		damage.findings, damage.bounds = 0, true
	}
	equal(t, what("findings"), got.findings, damage.findings)
	equal(t, what("DDIs"), len(got.sums), len(want.SumByDDI))
	for ddi, sum := range want.SumByDDI {
		equal(t, what("sum of "+ddi), float64(got.sums[strings.TrimSuffix(ddi, "_DET")]), sum)
	}
	for i, bound := range want.Bbox {
		if !damage.bounds {
			break
		}
		equal(t, what(fmt.Sprintf("bbox %d", i)), got.bbox[i], bound)
	}
	if equal(t, what("columns"), len(log.Columns), len(want.ValueNames)); t.Failed() {
		return
	}
	for i := range log.Columns {
		c, w := &log.Columns[i], want.ValueNames[i]
		of := what(w.DDI)
		equal(t, of, c.DDI.String(), w.DDI)
		equal(t, of+" device", strings.Trim(c.Device+" - "+c.Element, " -"), w.Device)
		equal(t, of+" unit", c.Unit, strings.TrimPrefix(w.Unit, "n.a."))
		equal(t, of+" scale", c.Scale, w.Scale)
		equal(t, of+" offset", c.Offset, w.Offset)
		if w.Min != nil && !isDamaged {
			equal(t, of+" min", got.ranges[c][0], *w.Min)
			equal(t, of+" max", got.ranges[c][1], *w.Max)
		}
	}
}

// tallied is what the reference tells about the records of a log.
type tallied struct {
	records, values, findings int
	first, last               time.Time
	bbox                      [4]float64
	sums                      map[string]int64
	ranges                    map[*farmdata.Column][2]int64
}

func tally(log *farmdata.Log) tallied {
	inf := math.Inf(1)
	got := tallied{bbox: [4]float64{inf, inf, -inf, -inf}, sums: map[string]int64{}, ranges: map[*farmdata.Column][2]int64{}}
	for record, err := range log.Records {
		if err != nil {
			got.findings++
			continue
		}
		got.records++
		if got.first.IsZero() {
			got.first = record.Stamp.Wall
		}
		got.last = record.Stamp.Wall
		valid := record.Position.Valid()
		if p := record.Position; valid {
			got.bbox = [4]float64{min(got.bbox[0], p.East), min(got.bbox[1], p.North), max(got.bbox[2], p.East), max(got.bbox[3], p.North)}
		}
		for _, v := range record.Values {
			got.values++
			got.sums[v.Column.DDI.String()] += v.Raw
			if valid {
				r, ok := got.ranges[v.Column]
				if !ok {
					r = [2]int64{v.Raw, v.Raw}
				}
				got.ranges[v.Column] = [2]int64{min(r[0], v.Raw), max(r[1], v.Raw)}
			}
		}
	}
	return got
}
