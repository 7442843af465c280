package isoxml

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TestNumbersOfTaskData says for numbers of each kind what becomes of one that is good, missing, empty, unreadable,
// or out of range: what is kept, and what is found. Absent is not zero.
func TestNumbersOfTaskData(t *testing.T) {
	t.Parallel()
	const ring = `<PFD A="PFD1" D="100"><PLN A="1"><LSG A="1"><PNT A="2" C="52" D="8"/>%s</LSG></PLN></PFD>`
	const device = `<DVC A="DVC-1"><DET A="DET-1" B="1"><DOR A="10"/></DET><DPD A="10" B="0043" F="20"/>%s</DVC>`
	const grid = `<TSK A="TSK1"><TZN A="1"><PDV A="0006" B="5"/></TZN>%s</TSK>`
	const zone = `<TSK A="TSK1">%s<GRD A="52" B="8" C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/></TSK>`
	const guidance = `<PFD A="PFD1" D="100"><GGP A="GGP1"><GPN A="GPN1" C="2" %s/></GGP></PFD>`
	heading := func(s *farmdata.Set) string {
		_, text, _ := strings.Cut(string(taskData(s)), "<GGP A=\"GGP1\">\n")
		text, _, _ = strings.Cut(text, "\n")
		return text
	}
	point := func(s *farmdata.Set) string {
		p := s.Fields[0].Polygons[0].Rings[0].Points
		return fmt.Sprintf("%d points, %g %g %v", len(p), p[len(p)-1].North, p[len(p)-1].East, p[len(p)-1].Valid())
	}
	column := func(s *farmdata.Set) string {
		c := farmdata.Column{DDI: 0x43, ElementID: "DET-1"}
		farmdata.NewDescriptions(s.Devices).Describe(&c)
		return fmt.Sprintf("(%d)*%g %q %d", c.Offset, c.Scale, c.Unit, c.Decimals)
	}
	place := func(s *farmdata.Set) string {
		g := s.Tasks[0].Grids[0]
		return fmt.Sprintf("%g %g %v", g.North, g.East, g.Valid())
	}
	cell := func(s *farmdata.Set) (text string) {
		for cell, err := range s.Tasks[0].Grids[0].Cells {
			if err == nil {
				text += fmt.Sprint(cell.Zone, ":")
				for _, v := range cell.Values {
					text += fmt.Sprint(" ", v.Column.DDI, "=", v.Raw)
				}
			}
		}
		return text
	}
	task := func(s *farmdata.Set) string {
		task := s.Tasks[0]
		return fmt.Sprint(task.Status, " ", task.DefaultZone, " ", len(task.Times), " ", len(task.Products))
	}
	for _, tt := range []struct {
		name, in, xml string
		got           func(*farmdata.Set) string
		kept, found   string
	}{
		{"point", ring, `<PNT A="2" C="52.1" D="8.1"/>`, point, "2 points, 52.1 8.1 true", ""},
		{"point with an exponent", ring, `<PNT A="2" C="5.21e1" D="+8.1E0"/>`, point, "2 points, 52.1 8.1 true", ""},
		{"point at 0, 0", ring, `<PNT A="2" C="0" D="0.0"/>`, point, "2 points, 0 0 false", "position"},
		{"point on the equator", ring, `<PNT A="2" C="0" D="8.1"/>`, point, "2 points, 0 8.1 true", ""},
		{"point without a longitude", ring, `<PNT A="2" C="52.1"/>`, point, "2 points, 0 0 false", "value"},
		{"point with an empty latitude", ring, `<PNT A="2" C="" D="8.1"/>`, point, "2 points, 0 0 false", "value"},
		{"point with neither", ring, `<PNT A="2"/>`, point, "2 points, 0 0 false", "value, value"},
		{"point with a comma", ring, `<PNT A="2" C="52.1" D="8,1"/>`, point, "2 points, 0 0 false", "value"},
		{"point that is no number", ring, `<PNT A="2" C="NaN" D="INF"/>`, point, "2 points, 0 0 false", "value, value"},
		{"point beyond the pole", ring, `<PNT A="2" C="91" D="8.1"/>`, point, "2 points, 91 8.1 false", "position"},
		{"point beyond 180°", ring, `<PNT A="2" C="52" D="-180.5"/>`, point, "2 points, 52 -180.5 false", "position"},
		{"presentation", device, `<DVP A="20" B="5" C="0.01" D="2" E="m"/>`, column, `(5)*0.01 "m" 2`, ""},
		{"presentation without a scale", device, `<DVP A="20" B="5" D="2" E="m"/>`, column, `(0)*1 "mm" -1`, "value"},
		{"presentation with a scale of 0", device, `<DVP A="20" B="5" C="0" D="2" E="m"/>`, column, `(0)*1 "mm" -1`, "value"},
		{"presentation with a comma", device, `<DVP A="20" B="5" C="0,01" D="2" E="m"/>`, column, `(0)*1 "mm" -1`, "value"},
		{"presentation with an unreadable offset", device, `<DVP A="20" B="five" C="0.01" D="2" E="m"/>`, column, `(0)*1 "mm" -1`, "value"},
		{"presentation without decimals", device, `<DVP A="20" B="5" C="0.01" E="m"/>`, column, `(5)*0.01 "m" -1`, ""},
		{"property without a value", device, `<DPT A="11" B="0086"/><DVP A="20" B="5" C="0.01"/>`, func(s *farmdata.Set) string { return fmt.Sprint(len(s.Devices[0].Properties)) }, "0", "value"},
		{"process data without a DDI", `<DVC A="DVC-1">%s</DVC>`, `<DPD A="10"/>`, func(s *farmdata.Set) string { return s.Devices[0].ProcessData[0].DDI.String() }, "FFFF", "value"},
		{"grid", grid, `<GRD A="52" B="8" C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "52 8 true", ""},
		{"grid with a comma", grid, `<GRD A="52" B="8,1" C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "0 0 false", "value, position"},
		{"grid without a corner", grid, `<GRD C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "0 0 false", "value, value, position"},
		{"grid without a size of cells", grid, `<GRD A="52" B="8" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "52 8 false", "value, position"},
		{"grid of negative cells", grid, `<GRD A="52" B="8" C="-0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "52 8 false", "position"},
		{"grid over the pole", grid, `<GRD A="89" B="8" C="1.5" D="0.1" E="1" F="1" G="GRD00001" I="1"/>`, place, "89 8 false", "position"},
		{"grid without rows", grid, `<GRD A="52" B="8" C="0.1" D="0.1" E="1" G="GRD00001" I="1"/>`, cell, "", "value"},
		{"grid of too many columns", grid, `<GRD A="52" B="8" C="0.1" D="0.1" E="99999999999999999999" F="1" G="GRD00001" I="1"/>`, cell, "", "value, value"},
		{"zone", zone, `<TZN A="0"><PDV A="0006" B="5"/></TZN>`, cell, "0: 0006=5", ""},
		{"zone without a code", zone, `<TZN><PDV A="0006" B="5"/></TZN>`, cell, "0:", "value"},
		{"zone with an unreadable code", zone, `<TZN A="zero"><PDV A="0006" B="5"/></TZN>`, cell, "0:", "value"},
		{"zone without an amount", zone, `<TZN A="0"><PDV A="0006"/><PDV A="0007" B="7"/></TZN>`, cell, "0: 0007=7", "value"},
		{"zone with an unreadable amount", zone, `<TZN A="0"><PDV A="0006" B="1,5"/></TZN>`, cell, "0:", "value"},
		{"zone without a DDI", zone, `<TZN A="0"><PDV B="5"/></TZN>`, cell, "0: FFFF=5", "value"},
		{"task", "%s", `<TSK A="TSK1" G="4" H="3"><TZN A="3"/></TSK>`, task, "4 3 0 0", ""},
		{"task with unreadable numbers", "%s", `<TSK A="TSK1" G="four" H="three"/>`, task, "0 -1 0 0", "value, value"},
		{"total without a value", "%s", `<TSK A="TSK1"><TIM A="2021-03-23T21:00:00"><DLV A="0074" B=""/></TIM></TSK>`,
			func(s *farmdata.Set) string { return fmt.Sprint(len(s.Tasks[0].Times[0].Totals)) }, "0", "value"},
		{"amount of a product without a number", "%s", `<PDT A="PDT1"/><TSK A="TSK1"><PAN A="PDT1" B="0006" C="?"/></TSK>`,
			func(s *farmdata.Set) string {
				return fmt.Sprint(s.Tasks[0].Products[0].DDI, s.Tasks[0].Products[0].Raw)
			}, "0000 0", "value"},
		{"amount of nothing", "%s", `<PDT A="PDT1"/><TSK A="TSK1"><PAN A="PDT1" C="5"/><PAN A="PDT1" B="0006"/></TSK>`, task, "0 -1 0 2", "value, value"},
		{"NAME", "%s", `<DVC A="DVC1" D="a00c80000e60000g"/>`, func(s *farmdata.Set) string { return s.Devices[0].Name }, "A00C80000E60000G", "value"},
		{"heading", guidance, `G="0.5"`, heading, `<GPN A="GPN1" C="2" G="0.5"/>`, ""},
		{"heading to the north", guidance, `G="0"`, heading, `<GPN A="GPN1" C="2" G="360"/>`, ""},
		{"no heading", guidance, ``, heading, `<GPN A="GPN1" C="2"/>`, "value"},
		{"unreadable heading", guidance, `G="north"`, heading, `<GPN A="GPN1" C="2"/>`, "value"},
		{"negative area", "%s", `<PFD A="PFD1" D="-5"/>`, func(s *farmdata.Set) string { return fmt.Sprint(s.Fields[0].Area) }, "0", "value"},
		{"time of a task", "%s", `<TSK A="TSK1"><TIM A="yesterday" C="-1" D="4"/></TSK>`,
			func(s *farmdata.Set) string {
				return fmt.Sprint(s.Tasks[0].Times[0].Start.IsZero(), s.Tasks[0].Times[0].Duration)
			}, "true 0s", "value, value"},
		{"place of a task", "%s", `<TSK A="TSK1"><TIM A="2021-03-23T21:00:00"><PTN A="52,1" B="8.1" D="300"/></TIM></TSK>`,
			func(s *farmdata.Set) string {
				p := s.Tasks[0].Times[0].Positions[0]
				return fmt.Sprint(p.Valid(), p.Has == farmdata.HasEast)
			}, "false true", "value, value"},
		{"place of a task, empty", "%s", `<TSK A="TSK1"><TIM A="2021-03-23T21:00:00"><PTN A="" B="8.1" C="" D=" " E="" F="" G=""/></TIM></TSK>`,
			func(s *farmdata.Set) string {
				p := s.Tasks[0].Times[0].Positions[0]
				return fmt.Sprint(p.Valid(), p.Has == farmdata.HasEast)
			}, "false true", "value"},
	} {
		entries := []entry{{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">` + fmt.Sprintf(tt.in, tt.xml) + `</ISO11783_TaskData>`}, {"GRD00001.BIN", "\x00"}}
		if !strings.Contains(entries[0].content, "<GRD") {
			entries = entries[:1]
		}
		set := openSet(t, entries...)
		if got := tt.got(set); got != tt.kept {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.kept)
		}
		if got := farmdatatest.Kinds(set.Findings); got != tt.found {
			t.Errorf("%s: got findings %q, want %q: %v", tt.name, got, tt.found, set.Findings)
		}
	}
}

// TestNumbersOfLogHeaders does so for the headers of logs, whose numbers say what the bytes of a record are.
func TestNumbersOfLogHeaders(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header, record, kept, found string
	}{
		"constants":                   {`<PTN A="52.5" B="7.5" D="4"/><DLV A="0043" B="3" C="DET-1"/>`, "\x00", "true 52.5 7.5, 1 constant, 0043", ""},
		"unreadable latitude":         {`<PTN A="52,5" B="7.5" D="4"/><DLV A="0043" B="3" C="DET-1"/>`, "\x00", "false 0 7.5, 1 constant, 0043", "value"},
		"latitude only":               {`<PTN A="52.5"/><DLV A="0043" B="3" C="DET-1"/>`, "\x00", "false 52.5 0, 1 constant, 0043", "value"},
		"unreadable constant":         {`<PTN A="52.5" B="7.5"/><DLV A="0043" B="?" C="DET-1"/>`, "\x00", "true 52.5 7.5, 0 constant, 0043", "value"},
		"no DDI":                      {`<PTN A="52.5" B="7.5"/><DLV B="" C="DET-1"/>`, "\x00", "true 52.5 7.5, 0 constant, FFFF", "value"},
		"DDI that is none":            {`<PTN A="52.5" B="7.5"/><DLV A="wide" B="" C="DET-1"/>`, "\x00", "true 52.5 7.5, 0 constant, FFFF", "value"},
		"status of more than a byte":  {`<PTN A="52.5" B="7.5" D="260"/><DLV A="0043" B="" C="DET-1"/>`, "\x00", "true 52.5 7.5, 0 constant, 0043", "value"},
		"PGN beyond its bits":         {`<PTN A="52.5" B="7.5"/><DLV A="DFFE" B="" C="DET-1" D="-1" E="300" F="7"/>`, "\x00", "true 52.5 7.5, 0 constant, DFFE", "value, value"},
		"time of a receiver, no date": {`<PTN A="52.5" B="7.5" H=""/><DLV A="0043" B="" C="DET-1"/>`, "\x00\x00\x00\x00\x00", "true 52.5 7.5, 0 constant, 0043", "value"},
	} {
		set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", `<TIM A="" D="4">` + tt.header + `</TIM>`}, entry{"TLG00001.BIN", "\x00\x00\x00\x00\x98\x3a" + tt.record})
		log := set.Logs[0]
		records, found := farmdatatest.Read(t, log)
		if len(records) != 1 || len(found) != 0 {
			t.Errorf("%s: got %d records and %v, want 1", name, len(records), found)
			continue
		}
		p := records[0].Position
		if got := fmt.Sprintf("%v %g %g, %d constant, %s", p.Valid(), p.North, p.East, len(log.Constants), log.Columns[0].DDI); got != tt.kept {
			t.Errorf("%s: got %s, want %s", name, got, tt.kept)
		}
		if got := farmdatatest.Kinds(set.Findings); got != tt.found {
			t.Errorf("%s: got findings %q, want %q: %v", name, got, tt.found, set.Findings)
		}
	}
}

// gpsRecord encodes a record with the times of the machine and of its receiver.
func gpsRecord(day uint16, hour uint32, gpsDay uint16, gpsHour uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, hour*3_600_000)
	b = binary.LittleEndian.AppendUint16(b, day)
	b = binary.LittleEndian.AppendUint32(b, gpsHour*3_600_000)
	b = binary.LittleEndian.AppendUint16(b, gpsDay)
	return string(append(b, 0))
}

// TestClocksThatAreNotSet: the time of a receiver is UTC only where a time zone explains how far it is from the
// machine's. All records are given; that a clock is wrong is found once.
func TestClocksThatAreNotSet(t *testing.T) {
	t.Parallel()
	const day = 15000 // 2021-01-25
	epochMod := uint16(1<<16 - 3652)
	for name, tt := range map[string]struct{ record, wall, utc, found string }{
		"both":                       {gpsRecord(day, 12, day, 10), "2021-01-25T12:00", "2021-01-25T10:00", ""},
		"15 hours west":              {gpsRecord(day, 0, day, 15), "2021-01-25T00:00", "2021-01-25T15:00", ""},
		"16 hours west":              {gpsRecord(day, 0, day, 16), "2021-01-25T00:00", "", "time"},
		"14 hours east":              {gpsRecord(day, 12, day-1, 22), "2021-01-25T12:00", "2021-01-24T22:00", ""},
		"a day ahead":                {gpsRecord(day, 12, day+1, 10), "2021-01-25T12:00", "", "time"},
		"a day behind":               {gpsRecord(day, 12, day-1, 10), "2021-01-25T12:00", "", "time"},
		"1970 modulo 65536":          {gpsRecord(day, 12, epochMod, 10), "2021-01-25T12:00", "", "time"},
		"19.6 years behind":          {gpsRecord(day, 12, day-7168, 10), "2021-01-25T12:00", "", "time"},
		"receiver without a date":    {gpsRecord(day, 12, 0, 0), "2021-01-25T12:00", "", ""},
		"receiver with all bits":     {gpsRecord(day, 12, 0xFFFF, 0), "2021-01-25T12:00", "", ""},
		"receiver beyond midnight":   {gpsRecord(day, 12, day, 25), "2021-01-25T12:00", "", "time"},
		"machine without a date":     {gpsRecord(0, 12, day, 10), "", "2021-01-25T10:00", "time"},
		"machine with all bits":      {gpsRecord(0xFFFF, 12, day, 10), "", "2021-01-25T10:00", "time"},
		"neither has a date":         {gpsRecord(0, 12, 0, 10), "", "", "time"},
		"machine at its epoch":       {gpsRecord(1, 1, day, 10), "", "2021-01-25T10:00", "time"},
		"machine counting from it":   {gpsRecord(300, 1, day, 10), "", "2021-01-25T10:00", "time"},
		"machine in 2157":            {gpsRecord(65000, 12, day, 10), "", "2021-01-25T10:00", "time"},
		"machine in 2150, beside it": {gpsRecord(epochMod, 12, epochMod+300, 10), "2149-06-07T12:00", "", "time"},
		"both at the epoch":          {gpsRecord(1, 12, 1, 10), "1980-01-02T12:00", "1980-01-02T10:00", "time"},
		"machine at it, no receiver": {gpsRecord(1, 12, 0, 0), "1980-01-02T12:00", "", "time"},
		"machine in 1980":            {gpsRecord(366-1, 12, 0, 0), "1980-12-31T12:00", "", "time"},
		"machine in 1981":            {gpsRecord(366, 12, 0, 0), "1981-01-01T12:00", "", ""},
		"machine in 2100":            {gpsRecord(44194, 12, 0, 0), "2100-12-31T12:00", "", ""},
		"machine in 2101":            {gpsRecord(44195, 12, 0, 0), "2101-01-01T12:00", "", "time"},
		"machine after 2100":         {gpsRecord(epochMod, 12, 0xFFFF, 0), "2149-06-07T12:00", "", "time"},
		"no machine, GPS 2149":       {gpsRecord(0, 12, epochMod, 10), "", "", "time, time"},
		"no machine, GPS 1980":       {gpsRecord(0, 12, 1, 10), "", "", "time, time"},
		"machine of no time of day":  {strings.Replace(gpsRecord(day, 0, 0, 0), "\x00\x00\x00\x00", "\xff\xff\xff\xff", 1), "", "", "time, time"},
		"machine in 1980, GPS 2149":  {gpsRecord(1, 12, epochMod, 10), "1980-01-02T12:00", "", "time"},
		"machine in 1980, GPS 25 h":  {gpsRecord(1, 12, day, 25), "1980-01-02T12:00", "", "time"},
		"machine in 2000":            {gpsRecord(7306, 12, day, 10), "2000-01-02T12:00", "", "time"},
		"machine beyond its own day": {gpsRecord(day, 25, day+1, 0), "2021-01-26T01:00", "2021-01-26T00:00", "time, time"},
	} {
		const header = `<TIM A="" D="4"><PTN H="" I=""/></TIM>`
		set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", header}, entry{"TLG00001.BIN", tt.record + tt.record})
		records, found := farmdatatest.Read(t, set.Logs[0])
		if got := farmdatatest.Kinds(found); len(records) != 2 || got != tt.found {
			t.Errorf("%s: got %d records and findings %q, want 2 and %q", name, len(records), got, tt.found)
			continue
		}
		for _, r := range records {
			show := func(s farmdata.Stamp) string { return strings.TrimSuffix(strings.TrimSuffix(s.String(), "Z"), ":00") }
			wall, utc := show(farmdata.Stamp{Wall: r.Stamp.Wall, Local: true}), show(farmdata.Stamp{UTC: r.Stamp.UTC})
			if wall != tt.wall || utc != tt.utc || !r.Stamp.Local {
				t.Errorf("%s: got %q and UTC %q, want %q and %q", name, wall, utc, tt.wall, tt.utc)
			}
		}
	}
}

// TestClocksThatDisagree: it is said which of two times counts, and not that one is wrong which may be right.
func TestClocksThatDisagree(t *testing.T) {
	t.Parallel()
	const day = 15000
	for record, want := range map[string]string{
		gpsRecord(day, 12, day+1, 10): "more than 15 hours apart; the machine's is used",
		gpsRecord(1, 12, day, 10):     "more than 15 hours apart; the receiver's is used",
		gpsRecord(65000, 12, day, 10): "more than 15 hours apart; the receiver's is used",
		gpsRecord(day, 12, day, 25):   "beyond the end of the day; it is left out",
	} {
		set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", `<TIM A="" D="4"><PTN H="" I=""/></TIM>`}, entry{"TLG00001.BIN", record})
		if _, found := farmdatatest.Read(t, set.Logs[0]); len(found) != 1 || !strings.Contains(found[0].Error(), want) {
			t.Errorf("got %v, want %q", found, want)
		}
	}
}

// A rate is one column in all zones, also in value presentations with other IDs that say the same; one that a zone has twice, or in
// another scale, is another one. Of zones with the same code the first one counts.
func TestZonesOfAGridShareItsColumns(t *testing.T) {
	t.Parallel()
	const xml = `<ISO11783_TaskData VersionMajor="4"><VPN A="VPN1" B="0" C="0.01" D="1" E="kg/ha"/><VPN A="VPN2" B="0" C="0.01" D="1" E="kg/ha"/><VPN A="VPN3" B="0" C="1" D="1" E="kg/ha"/>
<TSK A="TSK1"><TZN A="0"><PDV A="0006" B="5" E="VPN1"/></TZN><TZN A="1"><PDV A="0007" B="6"/><PDV A="0006" B="7" E="VPN2"/></TZN><TZN A="2"><PDV A="0006" B="8" E="VPN1"/><PDV A="0006" B="9" E="VPN1"/></TZN>
<TZN A="3"><PDV A="0006" B="7" E="VPN3"/></TZN><TZN A="1"><PDV A="0006" B="8"/></TZN><GRD A="52" B="8" C="0.1" D="0.1" E="4" F="1" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`
	grid := openSet(t, entry{"TASKDATA.XML", xml}, entry{"GRD00001.BIN", "\x00\x01\x02\x03"}).Tasks[0].Grids[0]
	index := map[*farmdata.Column]int{}
	for i := range grid.Columns {
		index[&grid.Columns[i]] = i
	}
	var got []string
	for cell, err := range grid.Cells {
		testkit.NoError(t, err)
		for _, v := range cell.Values {
			got = append(got, fmt.Sprintf("%d:%d=%d*%g", cell.Zone, index[v.Column], v.Raw, v.Column.Scale))
		}
	}
	if want := "0:0=5*0.01 1:1=6*1 1:0=7*0.01 2:0=8*0.01 2:2=9*0.01 3:3=7*1"; strings.Join(got, " ") != want || len(grid.Columns) != 5 { // with that of the second zone 1
		t.Errorf("got %v of %d columns, want %s of 5", got, len(grid.Columns), want)
	}
}
