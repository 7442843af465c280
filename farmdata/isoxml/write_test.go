package isoxml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// rewrite writes a set and reads what was written.
func rewrite(t testing.TB, set *farmdata.Set, cfg WriteConfig) (string, *farmdata.Set) {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, Write(t.Context(), &b, set, cfg))
	a := open(t, b.String(), Config{})
	if len(a.Sets) != 1 || len(a.Findings) > 0 || a.Sets[0].Path != "TASKDATA" || a.Sets[0].Major != 4 || a.Sets[0].Minor != 3 {
		t.Fatalf("got %d sets, %v, want one of version 4.3 in TASKDATA", len(a.Sets), a.Findings)
	}
	return b.String(), a.Sets[0]
}

// wantEqual compares all that a set has, with its records and cells.
func wantEqual(t testing.TB, got, want *farmdata.Set) {
	t.Helper()
	if g, w := model(t, got), model(t, want); g != w {
		t.Fatalf("read again it is another set:\n%s", firstDifference(g, w))
	}
	for i, log := range want.Logs {
		if g, w := recordsOf(got.Logs[i]), recordsOf(log); !reflect.DeepEqual(g, w) {
			t.Fatalf("%s: read again its %d records are others: %d", log.Name, len(w), len(g))
		}
	}
	for i, task := range want.Tasks {
		for j, grid := range task.Grids {
			if g, w := cellsOf(got.Tasks[i].Grids[j]), cellsOf(grid); !reflect.DeepEqual(g, w) {
				t.Fatalf("%s: read again its %d cells are others: %d", grid.Name, len(w), len(g))
			}
		}
	}
}

// model is a set as JSON, without its records and cells.
func model(t testing.TB, set *farmdata.Set) string {
	plain := *set
	plain.Path, plain.Findings, plain.Logs = "", nil, nil
	plain.Major, plain.Minor = 4, 3
	for _, log := range set.Logs {
		l := *log
		l.Size = 0
		plain.Logs = append(plain.Logs, &l)
	}
	b := testkit.Must(json.MarshalIndent(plain, "", " "))(t)
	return strings.ReplaceAll(string(b), "null", "[]") // an empty list is as good as none
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			from := max(0, i-5)
			return fmt.Sprintf("got\n%s\nwant\n%s", strings.Join(g[from:i+1], "\n"), strings.Join(w[from:i+1], "\n"))
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

// recordsOf are the records of a log, without what their positions have no more than a place for.
func recordsOf(log *farmdata.Log) (list []farmdata.Record) {
	for record, err := range log.Records {
		if err == nil {
			r := *record
			r.Position, r.Values = known(record.Position), append([]farmdata.Value(nil), record.Values...)
			list = append(list, r)
		}
	}
	return list
}

// known is a position without what it has no more than a place for.
func known(p farmdata.Position) farmdata.Position {
	for _, part := range []struct {
		has   farmdata.PositionField
		clear func()
	}{
		{farmdata.HasNorth, func() { p.North = 0 }}, {farmdata.HasEast, func() { p.East = 0 }}, {farmdata.HasUp, func() { p.Up = 0 }},
		{farmdata.HasStatus, func() { p.Status = 0 }}, {farmdata.HasPDOP, func() { p.PDOP = 0 }}, {farmdata.HasHDOP, func() { p.HDOP = 0 }},
		{farmdata.HasSatellites, func() { p.Satellites = 0 }},
	} {
		if p.Has&part.has == 0 {
			part.clear()
		}
	}
	return p
}

func cellsOf(grid *farmdata.Grid) (list []farmdata.Cell) {
	for cell, err := range grid.Cells {
		if err == nil {
			c := *cell
			c.Values = append([]farmdata.Value(nil), cell.Values...)
			list = append(list, c)
		}
	}
	return list
}

// What was read of real archives, and written, reads equal; and the same set makes the same bytes.
func TestWriteOfRealArchives(t *testing.T) {
	t.Parallel()
	for name := range expected(t) {
		archive := openFile(t, farmFile(t, filepath.Base(name)))
		for _, set := range archive.Sets {
			lost := 0
			counting := WriteConfig{Finding: func(*farmdata.Finding) { lost++ }}
			first, again := rewrite(t, set, counting)
			wantEqual(t, again, set)
			var second bytes.Buffer
			if err := Write(t.Context(), &second, again, counting); err != nil || second.String() != first {
				t.Errorf("%s: written again it is not the same: %v", name, err)
			}
			if lost > 0 && Write(t.Context(), io.Discard, set, WriteConfig{}) == nil {
				t.Errorf("%s: got no error without anybody to tell that %d places cannot be read", name, lost/2)
			}
		}
	}
}

// everything is a set with each kind of objects, and a grid of each type.
const everything = `<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="3" ManagementSoftwareManufacturer="maker &amp; &lt;son&gt; &quot;x&quot; &#10;'y'" ManagementSoftwareVersion="1" TaskControllerManufacturer="tc" TaskControllerVersion="2" DataTransferOrigin="1">
<BSN A="BSN1" B="base" C="52.1" D="8.2" E="-3"/><CTR A="CTR1" B="Müller" C="Ä" D="Weg 1" E="7" F="01234" G="Ort" H="NI" I="DE" J="+49" K="+491" L="+492" M="a@b"/><FRM A="FRM1" B="Hof" C="Weg 2" I="CTR1"/><WKR A="WKR1" B="w" C="v" H="NI" J="1" K="2" L="B" M="c@d"/><PGP A="PGP1" B="seed" C="2"/><VPN A="VPN1" B="-5" C="0.000000001" D="3" E="kg/ha"/>
<PDT A="PDT1" B="wheat" C="PGP1" D="VPN1" E="0006" F="2" G="9" H="800000" I="45000" J="60"><PRN A="PDT1" B="4"/></PDT><CPC A="CPC1" B="sow"><OTR A="OTQ1"/></CPC><OTQ A="OTQ1" B="drill"/><CCT A="CCT1" B="wind" C="3" D="CCG1"><CCL A="CCL1" B="calm"/></CCT><CCG A="CCG1" B="weather"/><CTP A="CTP1" B="crop" C="PGP1"><CVT A="CVT1" B="variety" C="PDT1"/></CTP>
<DVC A="DVC1" B="spreader" C="1.0" D="a00086000de02812" E="s" F="31" G="FF"><DET A="DET1" B="1" C="1" D="body" E="1" F="0"><DOR A="10"/></DET><DET A="DET2" B="2" C="2" E="1" F="1"/>
<DPD A="10" B="0006" C="2" D="8" E="rate" F="20"/><DPT A="11" B="0086" C="-70000" D="x" E="20"/><DVP A="20" B="5" C="0.001" D="2" E="m"/></DVC>
<PFD A="PFD1" B="c" C="field" D="10000" E="CTR1" F="FRM1" G="CTP1" H="CVT1" I="PFD2"><PLN A="1" B="b" C="9" D="3" E="PLN1"><LSG A="1" C="3000" D="100000" E="4" F="LSG1"><PNT A="2" C="52.123456789" D="-8.1" E="-7" F="255" G="PNT1" H="0.02" I="0.03"/></LSG></PLN><LSG A="3" B="tram"/><PNT A="1" B="flag" C="1" D="2"/>
<GGP A="GGP1" B="g"><GPN A="GPN1" B="p" C="1" D="1" E="2" F="3" G="12.5" H="3" I="4" J="0.1" K="0.2" L="BSN1" M="EPSG:25832" N="8" O="9"><LSG A="5"/><PLN A="1"/></GPN><PLN A="1"/></GGP></PFD><PFD A="PFD2" C="parent"/>
<TSK A="TSK1" B="spread" C="CTR1" D="FRM1" E="PFD1" F="WKR1" G="1" H="1" I="2" J="3"><TZN A="1" B="one" C="5"><PLN A="2"/><PDV A="0006" B="5" C="PDT1" D="DET1" E="VPN1"/></TZN><TZN A="2"><PDV A="0006" B="6"/></TZN><TZN A="3"/>
<TIM A="2026-05-01T08:00:00.5" B="2026-05-01T09:00:00+02:00" C="3600" D="4"><PTN A="52" B="8" C="1" D="4" E="1.25" F="0.7" G="12"/><DLV A="0074" B="100" C="DET1"/></TIM>
<OTP A="CPC1" B="OTQ1"/><WAN A="WKR1"><ASP A="2026-05-01T08:00:00Z" B="2026-05-01T09:00:00Z" D="4"/></WAN><CNN A="DVC1" B="DET1" C="DVC1" D="DET2"/><CAN A="CCT1" B="CCL1" C="x"><ASP A="2026-05-01T08:00:00Z" B="2026-05-01T09:00:00Z" D="4"/></CAN>
<DAN A="A00086000DE02812" B="FF" C="DVC1"><ASP A="2026-05-01T08:00:00Z" B="2026-05-01T09:00:00Z" D="4"/></DAN><PAN A="PDT1" B="0048" C="7" D="1" E="DET1" F="VPN1"><ASP A="2026-05-01T07:00:00" B="2026-05-01T08:00:00" D="4"/></PAN><GAN A="GGP1"><ASP A="2026-05-01T07:00:00" B="2026-05-01T08:00:00" D="4"/></GAN>
<TLG A="TLG00001"/><GRD A="52" B="8" C="0.1" D="0.1" E="2" F="2" G="GRD00001" I="1"/><GRD A="52" B="8" C="0.1" D="0.1" E="2" F="1" G="GRD00002" I="2" J="1"/></TSK>
<TSK A="TSK2" G="1"><TZN A="1"><PDV A="0006" B="5"/></TZN><TZN A="2"/><GRD A="52" B="8" C="0.1" D="0.1" E="2" F="2" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`

func everythingSet(t testing.TB) *farmdata.Set {
	const header = `<TIM A="" D="4"><PTN A="" B="" C="" D="4" E="" F="1.23" G="" H="" I=""/><DLV A="0006" B="" C="DET1"/><DLV A="DFFE" B="" C="DET1" D="65096" E="0" F="15"/><DLV A="0043" B="3000"/></TIM>`
	record := func(n byte) string {
		return "\x80\xee\x36\x00\x98\x3a" + "\x40\xdd\x4a\x1f\xc0\x68\x78\x04\xff\xff\xff\xff" + "\x05\x00" + string([]byte{n}) + "\x80\xee\x36\x00\x98\x3a" + "\x02\x00\x28\x23\x00\x00\x01\x01\x00\x00\x00"
	}
	set := openSet(t, entry{"TASKDATA.XML", everything}, entry{"TLG00001.XML", header}, entry{"TLG00001.BIN", record(3) + record(255)},
		entry{"LINKLIST.XML", `<ISO11783LinkList><LGP A="LGP1" B="1" C="gln" D="ns" E="g"><LNK A="CTR1" B="{1}" C="l"/></LGP></ISO11783LinkList>`},
		entry{"GRD00001.BIN", "\x01\x02\x02\x01"}, entry{"GRD00002.BIN", "\xff\xff\xff\xff\x07\x00\x00\x00"})
	return set
}

// What is read of a set with everything is what testdata/everything.json has, which UPDATE=1 writes: each attribute and each part of a
// record at its place, which reading what was written does not show. What is written of it reads equal.
func TestEverything(t *testing.T) {
	t.Parallel()
	set := everythingSet(t)
	if empty := unset(reflect.ValueOf(*set)); len(empty) > 0 {
		t.Fatalf("the test has no value for %v: what is new in the model has to be written, and tested", empty)
	}
	got := model(t, set) + "\n" + string(testkit.Must(json.MarshalIndent(recordsOf(set.Logs[0]), "", " "))(t)) + "\n"
	const golden = "testdata/everything.json"
	if os.Getenv("UPDATE") != "" {
		testkit.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
	}
	if want := string(testkit.Must(os.ReadFile(golden))(t)); got != want {
		t.Error(firstDifference(got, want))
	}
	_, again := rewrite(t, set, WriteConfig{})
	wantEqual(t, again, set)
	for _, finding := range again.Findings {
		if !strings.Contains(finding.Detail, "no map shows") {
			t.Errorf("got a finding in what was written: %v", finding)
		}
	}
}

// unset returns the fields of the model that have no value anywhere in a set.
func unset(set reflect.Value) (names []string) {
	fields := map[string]bool{}
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		switch {
		case v.Kind() == reflect.Pointer && !v.IsNil():
			walk(v.Elem())
		case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[farmdata.Set]().PkgPath() && v.Type() != reflect.TypeFor[farmdata.Stamp]():
			for i := range v.NumField() {
				name := v.Type().Name() + "." + v.Type().Field(i).Name
				fields[name] = fields[name] || !v.Field(i).IsZero()
				walk(v.Field(i))
			}
		}
	}
	walk(set)
	for name, has := range fields {
		other := map[string]bool{"Set.Path": true, "Set.Findings": true, "ZoneValue.Missing": true, "Position.FieldStatus": true, "ProductRelation.Missing": true}
		if !has && !other[name] && !strings.HasPrefix(name, "Finding.") && !strings.HasPrefix(name, "Column.") {
			names = append(names, name)
		}
	}
	return names
}

// What TaskData has no form for, and what the rest of the set says otherwise, is refused with its place.
func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(set *farmdata.Set)
		want   string
	}{
		"spaces around":        {func(s *farmdata.Set) { s.Customers[0].LastName = " x" }, "Customers[0].LastName"},
		"part of an address":   {func(s *farmdata.Set) { s.Customers[0].City = "\xff" }, "Customers[0].City"},
		"no UTF-8":             {func(s *farmdata.Set) { s.Customers[0].LastName = "\xff" }, "Customers[0].LastName"},
		"control character":    {func(s *farmdata.Set) { s.Fields[0].Designator = "a\x01b" }, "Fields[0].Designator"},
		"text of a megabyte":   {func(s *farmdata.Set) { s.Farms[0].Designator = strings.Repeat("x", 2<<20) }, "cannot be written"},
		"not a number":         {func(s *farmdata.Set) { s.Devices[0].Presentations[0].Scale = math.NaN() }, "Devices[0].Presentations[0].Scale"},
		"half a second":        {func(s *farmdata.Set) { s.Tasks[0].Times[0].Duration = time.Second / 2 }, "Tasks[0].Times[0].Duration"},
		"year 10000":           {func(s *farmdata.Set) { s.Tasks[0].Times[0].Start.Wall = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "Tasks[0].Times[0].Start"},
		"receiver's time":      {func(s *farmdata.Set) { s.Tasks[0].Times[0].Start.UTC = time.Now() }, "Tasks[0].Times[0].Start"},
		"negative area":        {func(s *farmdata.Set) { s.Fields[0].Area = -1 }, "Fields[0].Area"},
		"missing amount":       {func(s *farmdata.Set) { s.Tasks[0].Zones[0].Values[0].Missing = true }, "Tasks[0].Zones[0].Values[0].Raw"},
		"log of no task":       {func(s *farmdata.Set) { s.Tasks[0].LogNames = nil; s.Logs[0].Name = "LOG" }, "Logs[0]"},
		"task of a log":        {func(s *farmdata.Set) { s.Logs[0].TaskID = "TSK2" }, "Logs[0].TaskID"},
		"log that is no log":   {func(s *farmdata.Set) { s.Tasks[0].LogNames = append(s.Tasks[0].LogNames, "TLG2") }, "Logs[1]"},
		"unit of no device":    {func(s *farmdata.Set) { s.Logs[0].Columns[0].Unit = "t" }, "Logs[0].Columns[0].Unit"},
		"name with a slash":    {func(s *farmdata.Set) { s.Tasks[0].Grids[0].Name = "../GRD" }, `"../GRD.BIN"`},
		"other grid, a name":   {func(s *farmdata.Set) { s.Tasks[0].Grids[1].Name = "grd00001" }, "different contents"},
		"columns of no zone":   {func(s *farmdata.Set) { s.Tasks[0].Grids[1].Zone = 9 }, "Tasks[0].Grids[1].Columns"},
		"type of a grid":       {func(s *farmdata.Set) { s.Tasks[0].Grids[0].Type, s.Tasks[0].Grids[0].Columns = 3, nil }, "neither of type 1"},
		"cells of other rows":  {func(s *farmdata.Set) { s.Tasks[0].Grids[0].Rows = 1 }, "surplus"},
		"cells that end":       {func(s *farmdata.Set) { s.Tasks[0].Grids[0].Rows = 3 }, "GRD00001.BIN: cut"},
		"no cells":             {func(s *farmdata.Set) { s.Tasks[0].Grids[0].Cells = nil }, "GRD00001.BIN: missing"},
		"no records":           {func(s *farmdata.Set) { s.Logs[0].Records = nil }, "TLG00001.BIN: missing"},
		"values of no zone":    {cell(0, func(c *farmdata.Cell) { c.Values = []farmdata.Value{{Raw: 8}} }), "not those of its zone"},
		"code of a cell":       {cell(0, func(c *farmdata.Cell) { c.Zone = 256 }), "not one of 0 to 255"},
		"values of a cell":     {cell(1, func(c *farmdata.Cell) { c.Values = nil }), "does not have the values"},
		"large value":          {cell(1, func(c *farmdata.Cell) { c.Values = []farmdata.Value{{Raw: 1 << 31}} }), "beyond 32 bits"},
		"products of no zone":  {cell(0, func(c *farmdata.Cell) { c.Products = []string{"PDT2"} }), "products are not"},
		"instant":              {record(func(r *farmdata.Record) { r.Stamp.Local = false }), "instant"},
		"microsecond":          {record(func(r *farmdata.Record) { r.Stamp.Wall = r.Stamp.Wall.Add(1000) }), "milliseconds"},
		"before 1980":          {record(func(r *farmdata.Record) { r.Stamp.Wall = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC) }), "milliseconds"},
		"receiver's other day": {record(func(r *farmdata.Record) { r.Stamp.UTC = r.Stamp.UTC.AddDate(0, 0, 2) }), "time"},
		"value of a record":    {record(func(r *farmdata.Record) { r.Values[0].Raw = -1 << 40 }), "beyond 32 bits"},
		"many values": {record(func(r *farmdata.Record) {
			r.Values = make([]farmdata.Value, 256)
			for i := range r.Values {
				r.Values[i].Column = &farmdata.Column{}
			}
		}), "Logs[0].Columns[3]"},
		"field status":    {record(func(r *farmdata.Record) { r.Position.Has |= farmdata.HasFieldStatus }), "position"},
		"no place in one": {record(func(r *farmdata.Record) { r.Position.Has &^= farmdata.HasNorth }), "attribute A of PTN"},
		"precise place":   {record(func(r *farmdata.Record) { r.Position.North += 1e-9 }), "attribute A of PTN"},
	} {
		set := everythingSet(t)
		tt.change(set)
		err := Write(t.Context(), io.Discard, set, WriteConfig{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %s", name, err, tt.want)
		}
	}
}

// cell changes the first cell of a grid of the first task.
func cell(grid int, change func(*farmdata.Cell)) func(*farmdata.Set) {
	return func(s *farmdata.Set) {
		g := s.Tasks[0].Grids[grid]
		cells := g.Cells
		g.Cells = func(yield func(*farmdata.Cell, error) bool) {
			for c, err := range cells {
				if err == nil && c.Row == 0 && c.Col == 0 {
					changed := *c
					change(&changed)
					c = &changed
				}
				if !yield(c, err) {
					return
				}
			}
		}
	}
}

// record changes the first record of the first log.
func record(change func(*farmdata.Record)) func(*farmdata.Set) {
	return func(s *farmdata.Set) {
		log := s.Logs[0]
		records := log.Records
		log.Records = func(yield func(*farmdata.Record, error) bool) {
			for r, err := range records {
				if err == nil && r.Number == 0 {
					r = r.Clone()
					change(r)
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// FuzzWrite: no XML makes a set panic, and what is read without findings is written, and reads equal.
func FuzzWrite(f *testing.F) {
	record := []byte(sampleRecord(1000, 10, 20, value{0, 1}, value{1, 2}))
	f.Add(everything, sampleHeader, record, []byte("\x01\x02\x02\x01"))
	f.Add(sample, sampleHeader, record, []byte(""))
	f.Add(`<ISO11783_TaskData><TSK><GRD E="3" F="3" G="TLG00001" I="2" J="1"/><TZN A="1"><PDV A="0001" B="1"/></TZN></TSK></ISO11783_TaskData>`, `<TIM><PTN A="1" H="" I=""/></TIM>`, record, []byte(""))
	f.Add(`<ISO11783_TaskData></ISO11783_TaskData>`, `<TIM><PTN A="1"/></TIM>`, []byte("\x01"), []byte(""))
	f.Add(`<ISO11783_TaskData><TSK><TLG A="TLG00001"/></TSK></ISO11783_TaskData>`, `<TIM><PTN A="1"/></TIM>`, []byte("\x01"), []byte(""))
	f.Add(`<ISO11783_TaskData><TSK><GRD E="1" F="1" G="TLG00001" I="1"/></TSK></ISO11783_TaskData>`, "0", []byte("0"), []byte(""))
	f.Add("\xff\xfe<\x00a\x00/\x00>\x00", `<?xml version="1.0" encoding="windows-1252"?><TIM>`+"\x80</TIM>", record, []byte(""))
	f.Fuzz(func(t *testing.T, main, header string, bin, cells []byte) {
		archive, err := OpenFS(t.Context(), fstest.MapFS{"TASKDATA.XML": {Data: []byte(main)}, "TLG00001.XML": {Data: []byte(header)}, "TLG00001.BIN": {Data: bin}, "GRD00001.BIN": {Data: cells}}, fuzzLimits)
		if err != nil {
			t.Fatalf("a folder with TASKDATA.XML: %v", err)
		}
		read := archive.Sets[0]
		checkSet(t, read)
		found := len(read.Findings)
		for _, finding := range read.Findings { // which are about a name that nobody gave, or a map
			if finding.Kind == farmdata.KindOrphan && strings.Contains(finding.Detail, "no task") || finding.Kind == farmdata.KindUnsupported && strings.Contains(finding.Detail, "map") {
				found--
			}
		}
		var b bytes.Buffer
		missing := map[string]bool{}
		err = Write(t.Context(), &b, read, WriteConfig{Finding: func(f *farmdata.Finding) {
			found++
			missing[path.Base(f.File)] = missing[path.Base(f.File)] || f.Kind == farmdata.KindMissing && strings.Contains(f.Detail, "log")
		}})
		if err != nil && found > 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again := open(t, b.String(), Config{}).Sets[0]
		for _, set := range []*farmdata.Set{read, again} { // a log that no task names is there again only if a grid has its file
			set.Logs = slices.DeleteFunc(set.Logs, func(l *farmdata.Log) bool {
				named := slices.ContainsFunc(read.Tasks, func(task farmdata.Task) bool { return slices.Contains(task.LogNames, l.Name) })
				return !named && missing[l.Name+".BIN"]
			})
		}
		wantEqual(t, again, read)
	})
}
