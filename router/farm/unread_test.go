package farm_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router/farm"
)

// Of every payload something goes on, unless there is really nothing in it: what was made, marked if a part could not be read, or
// else the payload as it is, with the reason.
func TestNothingUnreadableVanishes(t *testing.T) {
	const nothing = `<ISO11783_TaskData VersionMajor="4"/>`
	header, bin := farmdatatest.LogHeader, string(farmdatatest.Log(3))
	taskData := func(xml string, more ...string) []byte {
		return farmdatatest.Zip(t, append([]string{"TASKDATA.XML", xml}, more...)...)
	}
	log := []string{"TLG00001.XML", header, "TLG00001.BIN", bin}
	inSet := func(xml string) string {
		return `<ISO11783_TaskData VersionMajor="4">` + xml + `</ISO11783_TaskData>`
	}
	field := func(c string) string {
		return `<PFD A="PFD1"><PLN A="1"><LSG A="1"><PNT A="2" C="` + c + `" D="8"/><PNT A="2" C="` + c + `" D="8.1"/><PNT A="2" C="52.1" D="8.1"/></LSG></PLN></PFD>`
	}
	gridOf := func(attributes string) []byte {
		xml := `<TSK A="TSK1" G="1"><TZN A="1"><PDV A="0006" B="5"/></TZN><GRD ` + attributes + ` A="52" B="8" G="GRD00001"/></TSK>`
		cell := "\x01\x00\x00\x00"
		if strings.Contains(attributes, `I="1"`) {
			cell = cell[:1]
		}
		return taskData(inSet(xml), "GRD00001.BIN", strings.Repeat(cell, 4))
	}
	cellsOf := func(cells string) []byte {
		xml := `<TSK A="TSK1" G="1"><TZN A="1"><PDV A="0006" B="5"/></TZN><GRD A="52" B="8" C="0.001" D="0.001" E="2" F="2" G="GRD00001" I="1"/></TSK>`
		return taskData(inSet(xml), "GRD00001.BIN", cells)
	}
	placed := func(ptn string) []byte { // a log with one place for all of its records
		header := `<TIM A="" D="4">` + ptn + `<DLV A="0043" B="" C="DET1"/></TIM>`
		return taskData(inSet(`<TSK A="TSK1" G="4"><TLG A="TLG00001"/></TSK>`), "TLG00001.XML", header, "TLG00001.BIN", strings.Repeat("\x00\x00\x00\x00\x01\x3c\x01\x00\x05\x00\x00\x00", 2))
	}
	// What becomes of it: "made", "partly" (made and marked), "as is" (and marked), "none".
	type outcomes struct{ records, geoJSON, parquet, efdi, summary string }
	for name, test := range map[string]struct {
		payload []byte
		want    outcomes
		reason  string
	}{
		"all of it":           {taskData(farmdatatest.TaskDataXML, log...), outcomes{"made", "made", "made", "made", "made"}, ""},
		"nothing in it":       {taskData(nothing), outcomes{"none", "none", "none", "none", "made"}, ""},
		"one value":           {taskData(strings.Replace(farmdatatest.TaskDataXML, `="20000"`, `="two"`, 1), log...), outcomes{"made", "made", "made", "made", "made"}, ""},
		"encrypted":           {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Flags |= 1 }), outcomes{"as is", "as is", "as is", "as is", "as is"}, "encrypted"},
		"Deflate64":           {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Method = 9 }), outcomes{"as is", "as is", "as is", "as is", "as is"}, "method 9"},
		"another method":      {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Method = 12 }), outcomes{"as is", "as is", "as is", "as is", "as is"}, "method 12"},
		"another document":    {taskData("<html><body>error</body></html>"), outcomes{"as is", "as is", "as is", "as is", "as is"}, "not the XML of TaskData"},
		"zeros":               {taskData(strings.Repeat("\x00", 100)), outcomes{"as is", "as is", "as is", "as is", "as is"}, "TASKDATA.XML"},
		"empty XML":           {taskData(""), outcomes{"as is", "as is", "as is", "as is", "as is"}, "no XML"},
		"XML cut at once":     {taskData(`<ISO11783_TaskData VersionMajor="4">`), outcomes{"as is", "as is", "as is", "as is", "partly"}, "TASKDATA.XML"},
		"XML of logs missing": {farmdatatest.Zip(t, log...), outcomes{"partly", "partly", "partly", "partly", "partly"}, "TASKDATA.XML: missing"},
		"records missing":     {taskData(farmdatatest.TaskDataXML, log[:2]...), outcomes{"as is", "partly", "partly", "partly", "partly"}, "TLG00001.BIN"},
		"records cut":         {taskData(farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", bin[:len(bin)-5]), outcomes{"partly", "partly", "partly", "partly", "partly"}, "TLG00001.BIN: cut"},
		"first record cut":    {taskData(farmdatatest.TaskDataXML, "TLG00001.XML", header, "TLG00001.BIN", bin[:10]), outcomes{"as is", "partly", "partly", "partly", "partly"}, "TLG00001.BIN: cut"},
		"another header":      {taskData(farmdatatest.TaskDataXML, "TLG00001.XML", "<x/>", "TLG00001.BIN", bin), outcomes{"as is", "partly", "partly", "partly", "partly"}, "not the header"},
		"a log without XML":   {farmdatatest.Zip(t, "TLG00001.XML", "<x/>", "TLG00001.BIN", bin), outcomes{"as is", "as is", "as is", "as is", "partly"}, "TASKDATA.XML: missing"},
		"grid of no rows":     {gridOf(`C="0.001" D="0.001" E="2" F="two" I="1"`), outcomes{"none", "as is", "as is", "none", "made"}, "F of GRD"},
		"grid of no size":     {gridOf(`C="0.001" E="2" F="2" I="1"`), outcomes{"none", "as is", "as is", "none", "made"}, "D of GRD"},
		"grid that shrinks":   {gridOf(`C="-0.001" D="0.001" E="2" F="2" I="1"`), outcomes{"none", "as is", "as is", "none", "made"}, "no place on Earth"},
		"grid without zone":   {gridOf(`C="0.001" D="0.001" E="2" F="2" I="2"`), outcomes{"as is", "as is", "as is", "as is", "partly"}, "no treatment zone"},
		"grid of no zone":     {gridOf(`C="0.001" D="0.001" E="2" F="2" I="2" J="one"`), outcomes{"as is", "as is", "as is", "as is", "partly"}, "no treatment zone"},
		"grid":                {gridOf(`C="0.001" D="0.001" E="2" F="2" I="1"`), outcomes{"none", "made", "made", "none", "made"}, ""},
		"grid that is cut":    {cellsOf("\x01\x01\x01"), outcomes{"none", "partly", "partly", "none", "partly"}, "GRD00001.BIN: cut"},
		"grid without cells":  {cellsOf(""), outcomes{"none", "as is", "as is", "none", "partly"}, "GRD00001.BIN: cut"},
		"crossed field":       {taskData(inSet(strings.Replace(field("52"), `D="8.1"/></LSG>`, `D="8"/><PNT A="2" C="52.1" D="8.1"/></LSG>`, 1))), outcomes{"none", "as is", "as is", "none", "made"}, "field has no place"},
		"field at 0, 0":       {taskData(inSet(`<PFD A="PFD1"><PLN A="1"><LSG A="1">` + strings.Repeat(`<PNT A="2" C="0" D="0"/>`, 3) + `</LSG></PLN></PFD>`)), outcomes{"none", "as is", "as is", "none", "made"}, "at 0, 0"},
		"field with commas":   {taskData(inSet(field("52,0"))), outcomes{"none", "as is", "as is", "none", "made"}, "C of PNT"},
		"field off the Earth": {taskData(inSet(field("520"))), outcomes{"none", "as is", "as is", "none", "made"}, "not on Earth"},
		"one of two fields":   {taskData(inSet(field("52,0") + field("52"))), outcomes{"none", "made", "made", "none", "made"}, ""},
		"field of no place":   {taskData(inSet(`<PFD A="PFD1"/>`)), outcomes{"none", "made", "made", "none", "made"}, ""},
		"no field, one value": {taskData(inSet(`<TSK A="TSK1" G="x"/>`)), outcomes{"none", "none", "none", "none", "made"}, ""},
		"place with commas":   {placed(`<PTN A="52,1" B="8.1" D="1"/>`), outcomes{"made", "as is", "as is", "made", "made"}, "A of PTN"},
		"half a place":        {placed(`<PTN A="52.1" D="1"/>`), outcomes{"made", "as is", "as is", "made", "made"}, "B of PTN"},
		"place off the Earth": {placed(`<PTN A="152.1" B="8.1" D="1"/>`), outcomes{"made", "as is", "as is", "made", "made"}, "not on Earth"},
		"no place":            {placed(``), outcomes{"made", "made", "made", "made", "made"}, ""},
		"cut description":     {farmdatatest.Description(t)[:60], outcomes{"as is", "as is", "as is", "partly", "partly"}, "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			records, err1 := farm.NewRecords(farm.RecordsConfig{})
			geoJSON, err2 := farm.NewMap(farm.MapConfig{})
			parquet, err3 := farm.NewMap(farm.MapConfig{Format: farm.FormatGeoParquet})
			efdi, err4 := farm.NewEFDI(farm.EFDIConfig{})
			summary, err5 := farm.NewSummary(farm.ReadConfig{})
			testkit.NoError(t, errors.Join(err1, err2, err3, err4, err5))
			for kind, c := range map[string]struct {
				transform message.HandlerFunc
				want      string
			}{
				"records": {records, test.want.records}, "geojson": {geoJSON, test.want.geoJSON}, "geoparquet": {parquet, test.want.parquet},
				"efdi": {efdi, test.want.efdi}, "summary": {summary, test.want.summary},
			} {
				msg := received(test.payload)
				out := testkit.Must(c.transform(msg))(t)
				got := "none"
				for _, m := range out {
					readable, reason := m.Metadata[farm.KeyReadable], m.Metadata[farm.KeyReason]
					switch {
					case readable == farm.ReadableNo && len(out) == 1 && bytes.Equal(m.Payload, test.payload):
						got = "as is"
					case readable == farm.ReadablePartly:
						got = "partly"
					case readable == "":
						got = "made"
					default:
						got = readable
					}
					if (readable != "") != (reason != "") || !strings.Contains(reason, test.reason) && readable != "" {
						t.Errorf("%s: readable %q with the reason %q, want one with %q", kind, readable, reason, test.reason)
					}
				}
				if got != c.want {
					t.Errorf("%s: got %s (%d messages), want %s", kind, got, len(out), c.want)
				}
			}
		})
	}
}

// What the header of a log has once for all records, and cannot be read, is told with its records, once.
func TestRecordsTellOfTheirHeader(t *testing.T) {
	const place = `<PTN A="52.1" B="8.1" D="1"/>`
	for name, test := range map[string]struct{ header, told string }{
		"place with a comma": {`<PTN A="52,1" B="8.1" D="1"/>`, "A of PTN: no number"},
		"half a place":       {`<PTN A="52.1" D="1"/>`, "B of PTN: missing"},
		"altitude":           {`<PTN A="52.1" B="8.1" C="high" D="1"/>`, "C of PTN: no whole number"},
		"constant":           {place + `<DLV A="0006" B="x" C="DET1"/>`, "B of DLV: no whole number"},
		"no DDI":             {place + `<DLV B="1" C="DET1"/>`, "A of DLV: missing"},
		"unknown element":    {place + `<DLV A="0006" B="1" C="DET9"/>`, "no device has the device element"},
		"all of it":          {place, ""},
	} {
		const measured = `<DLV A="0043" B="" C="DET1"/>`
		header := `<TIM A="" D="4">` + measured + test.header + `</TIM>`
		const record = "\x00\x00\x00\x00\x01\x3c\x01\x00\x05\x00\x00\x00"
		payload := farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4"><DVC A="DVC1"><DET A="DET1" B="1"/></DVC>`+
			`<TSK A="TSK1" G="4"><TLG A="TLG00001"/><TLG A="TLG00002"/></TSK><TSK A="TSK2" G="four"/></ISO11783_TaskData>`,
			"TLG00001.XML", header, "TLG00001.BIN", strings.Repeat(record, 3),
			"TLG00002.XML", `<TIM A="" D="4">`+place+measured+`</TIM>`, "TLG00002.BIN", record)
		transform := testkit.Must(farm.NewRecords(farm.RecordsConfig{BatchRecords: 2}))(t)
		out, err := transform(received(payload))
		if err != nil || len(out) != 3 {
			t.Fatalf("%s: got %d messages (%v), want two of one log and one of the other", name, len(out), err)
		}
		for i, m := range out {
			var header farm.BatchHeader
			testkit.NoError(t, json.Unmarshal(m.Payload[:bytes.IndexByte(m.Payload, '\n')], &header))
			want, wantCount := "", ""
			if i == 0 && test.told != "" {
				want, wantCount = test.told, "1"
			}
			got, count := strings.Join(header.Findings, "; "), m.Metadata[farm.KeyFindings]
			if !strings.Contains(got, want) || (got == "") != (want == "") || count != wantCount {
				t.Errorf("%s: message %d tells %q and counts %q, want %q", name, i, got, count, want)
			}
		}
	}
}

// A filter does not decide by what it could not read, and an expression knows it.
func TestFilterOfUnreadable(t *testing.T) {
	encrypted := farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Flags |= 1 })
	for name, config := range map[string]farm.FilterConfig{
		"nothing": {}, "machine": {Machine: []string{"*"}}, "task": {Task: []string{"*"}}, "DDI": {DDI: []string{"0043"}},
		"box": {Box: &farm.Box{South: -90, West: -180, North: 90, East: 180}}, "span": {From: "2000-01-01T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			for unreadable, want := range map[string]bool{"": false, farm.UnreadableNoMatch: false, farm.UnreadableMatch: true} {
				config.Unreadable = unreadable
				if got := selects(t, config, received(encrypted)); got != want {
					t.Errorf("unreadable: %q: got %v, want %v", unreadable, got, want)
				}
			}
		})
	}
	const (
		taskWithLog = `<TSK A="TSK1" G="4"><TLG A="TLG00001"/></TSK>`
		cell        = `C="0.001" D="0.001" E="1" F="1" G="GRD00001"`
		ring        = `<PFD A="PFD1"><PLN A="1"><LSG A="1"><PNT A="2" C="%" D="8"/><PNT A="2" C="%" D="8.1"/><PNT A="2" C="%" D="8.2"/></LSG></PLN></PFD>`
	)
	north := &farm.Box{South: 60, West: 7, North: 63, East: 9}
	records := strings.Repeat("\x00\x00\x00\x00\x01\x3c\x01\x00\x05\x00\x00\x00", 2) // of 2022, with one value
	for name, test := range map[string]struct {
		xml    string
		config farm.FilterConfig
		want   bool     // with unreadable: match
		log    []string // the header of a log, and its records
	}{
		"operations and comments":  {`<OTQ A="OTQ1"/><CCT A="CCT1"/>`, farm.FilterConfig{Machine: []string{"other"}}, false, nil},
		"reference to nothing":     {`<FRM A="FRM1" I="CTR1"/>`, farm.FilterConfig{Customer: []string{"other"}}, false, nil},
		"element out of place":     {`<CTR A="CTR1"><TLG A="TLG00001"/></CTR>`, farm.FilterConfig{Machine: []string{"other"}}, true, nil},
		"device in something else": {`<X><DVC A="DVC1" D="other"/></X>`, farm.FilterConfig{Machine: []string{"other"}}, true, nil},
		"points in another file":   {`<PFD A="PFD1"><PLN A="1"><LSG A="1"><PNT A="1" J="PNT00001"/></LSG></PLN></PFD>`, farm.FilterConfig{Box: &farm.Box{South: 52, West: 7, North: 53, East: 8}}, true, nil},
		"zone as a polygon here":   {`<TSK A="TSK1"><TZN A="1"><PLN A="2"><LSG A="1"><PNT A="1" C="52.5" D="7.5"/></LSG></PLN></TZN></TSK>`, farm.FilterConfig{Box: &farm.Box{South: 52, West: 7, North: 53, East: 8}}, true, nil},
		"zone as a polygon there":  {`<TSK A="TSK1"><TZN A="1"><PLN A="2"><LSG A="1"><PNT A="1" C="62.5" D="7.5"/></LSG></PLN></TZN></TSK>`, farm.FilterConfig{Box: &farm.Box{South: 52, West: 7, North: 53, East: 8}}, false, nil},
		"boundary with commas":     {strings.ReplaceAll(ring, "%", "52,1"), farm.FilterConfig{Box: north}, true, nil},
		"boundary off the Earth":   {strings.ReplaceAll(ring, "%", "152"), farm.FilterConfig{Box: north}, true, nil},
		"one corner with a comma":  {strings.ReplaceAll(strings.Replace(ring, "%", "52,1", 1), "%", "52.1"), farm.FilterConfig{Box: north}, true, nil},
		"boundary elsewhere":       {strings.ReplaceAll(ring, "%", "52.1"), farm.FilterConfig{Box: north}, false, nil},
		"grid without a corner":    {`<TSK A="TSK1" G="1"><TZN A="1"/><GRD ` + cell + ` I="1"/></TSK>`, farm.FilterConfig{Box: north}, true, nil},
		"boundary and a machine":   {strings.ReplaceAll(ring, "%", "52,1"), farm.FilterConfig{Machine: []string{"other"}}, false, nil},
		"boundary, and a machine":  {strings.ReplaceAll(ring, "%", "52,1"), farm.FilterConfig{Box: north, Machine: []string{"other"}}, false, nil},
		"place and a span":         {strings.ReplaceAll(ring, "%", "152"), farm.FilterConfig{From: "2020-01-01T00:00:00"}, false, nil},
		"log's place with commas":  {taskWithLog, farm.FilterConfig{Box: north}, true, []string{`<PTN A="62,1" B="8.1" D="1"/>`, records}},
		"half of a log's place":    {taskWithLog, farm.FilterConfig{Box: north}, true, []string{`<PTN A="62.1" D="1"/>`, records}},
		"log's place elsewhere":    {taskWithLog, farm.FilterConfig{Box: north}, false, []string{`<PTN A="52.1" B="8.1" D="1"/>`, records}},
		"log without a place":      {taskWithLog, farm.FilterConfig{Box: north}, false, []string{``, records}},
		"times of a task":          {`<TSK A="TSK1" G="4"><TIM A="yesterday" B="today" D="4"/></TSK>`, farm.FilterConfig{From: "2020-01-01T00:00:00"}, true, nil},
		"one of two times":         {`<TSK A="TSK1" G="4"><TIM A="yesterday" D="4"/><TIM A="2019-01-01T00:00:00" D="4"/></TSK>`, farm.FilterConfig{From: "2020-01-01T00:00:00"}, true, nil},
		"time that is another":     {`<TSK A="TSK1" G="4"><TIM A="2019-01-01T00:00:00" D="4"/></TSK>`, farm.FilterConfig{From: "2020-01-01T00:00:00"}, false, nil},
		"clock that is not set":    {taskWithLog, farm.FilterConfig{From: "2020-01-01T00:00:00"}, true, []string{``, strings.ReplaceAll(records, "\x01\x3c", "\xff\xff")}},
		"clock, and a place":       {taskWithLog, farm.FilterConfig{Box: north}, false, []string{``, strings.ReplaceAll(records, "\x01\x3c", "\xff\xff")}},
		"DDI of a zone":            {`<TSK A="TSK1" G="1"><TZN A="1"><PDV A="rate" B="5"/></TZN></TSK>`, farm.FilterConfig{DDI: []string{"0006"}}, true, nil},
		"total without a value":    {`<TSK A="TSK1" G="4"><TIM A="2019-01-01T00:00:00" D="4"><DLV A="0006"/></TIM></TSK>`, farm.FilterConfig{DDI: []string{"0006"}}, true, nil},
		"log without a DDI":        {taskWithLog, farm.FilterConfig{DDI: []string{"0006"}}, true, []string{`<DLV B="" C="DET1"/>`, ""}},
		"DDI that is another":      {taskWithLog, farm.FilterConfig{DDI: []string{"0006"}}, false, []string{`<PTN A="52.1" B="8.1"/>`, records}},
		"grid of no zone":          {`<TSK A="TSK1" G="1"><TZN A="1"/><GRD A="52" B="8" ` + cell + ` I="2"/></TSK>`, farm.FilterConfig{DDI: []string{"0006"}}, true, nil},
		"another encoding":         {"<CTR A=\"CTR1\" B=\"M\xfcller\"/>", farm.FilterConfig{Box: north}, false, nil},
		"byte of no character":     {"<CTR A=\"CTR1\" B=\"M\x01ller\"/>", farm.FilterConfig{DDI: []string{"0006"}}, false, nil},
		"machine of no DDI":        {`<DVC A="DVC1" D="a00c"><DPD A="1" B="wide"/></DVC>`, farm.FilterConfig{Machine: []string{"other"}}, false, nil},
	} {
		test.config.Unreadable = farm.UnreadableMatch
		files := []string{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">` + test.xml + `</ISO11783_TaskData>`}
		if test.log != nil {
			files = append(files, "TLG00001.XML", `<TIM A="" D="4">`+test.log[0]+`<DLV A="0043" B="" C="DET1"/></TIM>`, "TLG00001.BIN", test.log[1])
		}
		if strings.Contains(test.xml, "<GRD") {
			files = append(files, "GRD00001.BIN", "\x01\x00\x00\x00")
		}
		payload := farmdatatest.Zip(t, files...)
		if got := selects(t, test.config, received(payload)); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	inspector := testkit.Must(farm.NewInspector(farm.ReadConfig{}))(t)
	for name, test := range map[string]struct {
		payload  []byte
		readable bool
		reason   string
	}{
		"encrypted": {encrypted, false, "encrypted"},
		"partly":    {farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML), true, "TLG00001"},
		"all":       {farmdatatest.Archive(t, 3), true, ""},
	} {
		contents := testkit.Must(inspector.Contents(received(test.payload)))(t)
		if contents.Readable != test.readable || !strings.Contains(contents.Reason, test.reason) || (contents.Reason == "") != (test.reason == "") {
			t.Errorf("%s: got readable %v with the reason %q, want %v with %q", name, contents.Readable, contents.Reason, test.readable, test.reason)
		}
	}
}
