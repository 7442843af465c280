package farm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router/farm"
)

func TestMap(t *testing.T) {
	all := []geo.Layer{geo.Fields, geo.Tracks, geo.Points, geo.Grids}
	for name, test := range map[string]struct {
		config farm.MapConfig
		want   string // types, file names and numbers of features or rows
	}{
		"the usual":          {farm.MapConfig{}, "farm:map:geojson acre.geojson 2"},
		"all":                {farm.MapConfig{Layers: all}, "farm:map:geojson acre.geojson 7"},
		"fields":             {farm.MapConfig{Layers: []geo.Layer{geo.Fields}}, "farm:map:geojson acre.geojson 1"},
		"grids, without any": {farm.MapConfig{Layers: []geo.Layer{geo.Grids}}, ""},
		"parquet": {farm.MapConfig{Format: farm.FormatGeoParquet, Layers: all},
			"farm:map:geoparquet acre-fields.parquet 1, farm:map:geoparquet acre-tracks.parquet 1, farm:map:geoparquet acre-TLG00001-points.parquet 5"},
		"parquet grids, without any": {farm.MapConfig{Format: farm.FormatGeoParquet, Layers: []geo.Layer{geo.Grids}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			transform := testkit.Must(farm.NewMap(test.config))(t)
			var uuids [2][]string
			for i := range uuids {
				msg := received(farmdatatest.Archive(t, 5))
				msg.Metadata.Set(gateway.KeyFilename, "acre.zip")
				out := testkit.Must(transform(msg))(t)
				var got []string
				for _, m := range out {
					uuids[i] = append(uuids[i], m.UUID)
					count := ""
					if m.Metadata[gateway.KeyMessageType] == farm.TypeGeoJSON {
						var collection struct{ Features []json.RawMessage }
						testkit.NoError(t, json.Unmarshal(m.Payload, &collection))
						count = string(rune('0' + len(collection.Features)))
					} else {
						file := testkit.Must(parquet.OpenFile(bytes.NewReader(m.Payload), int64(len(m.Payload))))(t)
						count = string(rune('0' + file.NumRows()))
						if m.Metadata[farm.KeyLayer] == "" {
							t.Error("no layer")
						}
					}
					got = append(got, m.Metadata[gateway.KeyMessageType]+" "+m.Metadata[gateway.KeyFilename]+" "+count)
				}
				if strings.Join(got, ", ") != test.want {
					t.Errorf("got %s, want %s", strings.Join(got, ", "), test.want)
				}
			}
			if strings.Join(uuids[0], " ") != strings.Join(uuids[1], " ") {
				t.Errorf("a repetition makes other messages: %v", uuids)
			}
		})
	}
}

// TestMapToOrder: a map has the values that were asked for, in a unit, and what they refer to; a grid that two tasks name is one file.
func TestMapToOrder(t *testing.T) {
	config := farm.MapConfig{Layers: []geo.Layer{geo.Points}, Columns: []geo.Column{{DDI: "0043", As: "width", Unit: "cm"}}, Add: []geo.Attribute{geo.Field}}
	transform := testkit.Must(farm.NewMap(config))(t)
	out, err := transform(received(farmdatatest.Archive(t, 2)))
	if err != nil || len(out) != 1 || strings.Count(string(out[0].Payload), `"field_name":"Long acre"`) != 2 || strings.Count(string(out[0].Payload), `"width":900}`) != 2 {
		t.Errorf("got %s, %v", out[0].Payload, err)
	}
	for name, config := range map[string]farm.MapConfig{"unit": {Columns: []geo.Column{{Unit: "stones"}}}, "attribute": {Add: []geo.Attribute{"weather"}}, "letter case": {Columns: []geo.Column{{DDI: "0001", As: "Rate"}, {DDI: "0006", As: "rate"}}}} {
		if _, err := farm.NewMap(config); !errors.Is(err, farm.ErrConfig) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	tasks := []string{farmdatatest.TaskGridOfZones, farmdatatest.TaskGridAgain, farmdatatest.TaskOtherMeaning, farmdatatest.TaskZones}
	transform = testkit.Must(farm.NewMap(farm.MapConfig{Format: farm.FormatGeoParquet, Layers: []geo.Layer{geo.Grids, geo.Zones}}))(t)
	msg := received(farmdatatest.Prescriptions(t, tasks...))
	msg.Metadata.Set(gateway.KeyFilename, "plan.zip")
	out, err = transform(msg)
	var files []string
	for _, m := range out {
		files = append(files, m.Metadata[farm.KeyLayer]+" "+m.Metadata[gateway.KeyFilename])
	}
	want := []string{"grids plan-GRD00001.parquet", "grids plan-GRD00001-1.parquet", "zones plan-TSK4-zones.parquet"}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("got %q, %v, want %q", files, err, want)
	}
}

// A map of damaged data says that it lacks something.
func TestMapOfDamage(t *testing.T) {
	cut := farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader, "TLG00001.BIN", string(farmdatatest.Log(3)[:50]))
	for _, format := range []string{farm.FormatGeoJSON, farm.FormatGeoParquet} {
		transform := testkit.Must(farm.NewMap(farm.MapConfig{Format: format, Layers: []geo.Layer{geo.Tracks}}))(t)
		out, err := transform(received(cut))
		if err != nil || len(out) != 1 || out[0].Metadata[farm.KeyFindings] != "1" {
			t.Errorf("%s: %v, %v, want one finding", format, out[0].Metadata, err)
		}
	}
}

// A map says that it lacks rates for places elsewhere.
func TestMapWithoutZonesElsewhere(t *testing.T) {
	for _, format := range []string{farm.FormatGeoJSON, farm.FormatGeoParquet} {
		transform := testkit.Must(farm.NewMap(farm.MapConfig{Format: format, Layers: []geo.Layer{geo.Grids}}))(t)
		out, err := transform(received(farmdatatest.Prescriptions(t, farmdatatest.TaskElsewhere)))
		if err != nil || len(out) != 1 || out[0].Metadata[farm.KeyFindings] != "1" || out[0].Metadata[farm.KeyReadable] != "" {
			t.Errorf("%s: %v, %v, want one finding", format, out[0].Metadata, err)
		}
	}
}

// A field whose boundary encloses nothing is on no map, whatever else it has.
func TestMapOfFlatBoundary(t *testing.T) {
	ring := func(kind string, north ...string) string {
		points := ""
		for i, at := range north {
			points += fmt.Sprintf(`<PNT A="2" C="%s" D="9.%d"/>`, at, i)
		}
		return `<PLN A="` + kind + `"><LSG A="1">` + points + `</LSG></PLN>`
	}
	flat := farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData><PFD A="PFD1" C="field" D="1">`+ring("1", "50", "50", "50")+ring("6", "50", "50.1", "50")+`</PFD></ISO11783_TaskData>`)
	out, err := testkit.Must(farm.NewMap(farm.MapConfig{}))(t)(received(flat))
	if err != nil || len(out) != 1 || out[0].Metadata[gateway.KeyMessageType] != "" || out[0].Metadata[farm.KeyReadable] == "" {
		t.Errorf("%v, %d messages, the first %v, want the payload as it is", err, len(out), out[0].Metadata)
	}
}

// A cell counts as its coordinates, however well equal ones compress.
func TestMapOfManyCells(t *testing.T) {
	const taskData = `<ISO11783_TaskData><TSK A="TSK1" G="1"><TZN A="0"><PDV A="0006" B="1"/></TZN>` +
		`<GRD A="52" B="8" C="0.0001" D="0.0001" E="100" F="100" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`
	grid := farmdatatest.Zip(t, "TASKDATA.XML", taskData, "GRD00001.BIN", string(make([]byte, 100*100)))
	for limit, want := range map[int64]string{100 * 100 * 80: farm.TypeGeoParquet, 100*100*80 - 1: ""} {
		transform := testkit.Must(farm.NewMap(farm.MapConfig{Format: farm.FormatGeoParquet, MaxOutput: limit}))(t)
		out, err := transform(received(grid))
		if err != nil || len(out) != 1 || out[0].Metadata[gateway.KeyMessageType] != want {
			t.Errorf("max_output %d: %v, %d messages, the first %v", limit, err, len(out), out[0].Metadata)
		}
	}
}

// Limits end the work, and the payload passes as it is.
func TestMapLimits(t *testing.T) {
	for name, config := range map[string]farm.MapConfig{
		"too much":                    {MaxOutput: 100},
		"too much in parquet":         {MaxOutput: 1000, Format: farm.FormatGeoParquet},
		"too long":                    {ReadConfig: farm.ReadConfig{MaxTime: 1}},
		"too long in parquet":         {ReadConfig: farm.ReadConfig{MaxTime: 1}, Format: farm.FormatGeoParquet},
		"too long for single records": {ReadConfig: farm.ReadConfig{MaxTime: 1}, Layers: []geo.Layer{geo.Points}},
	} {
		t.Run(name, func(t *testing.T) {
			transform := testkit.Must(farm.NewMap(config))(t)
			msg := received(farmdatatest.Archive(t, 1000))
			out, err := transform(msg)
			if err != nil || len(out) != 1 || out[0] != msg || !strings.Contains(out[0].Metadata[farm.KeyReason], "limit") {
				t.Errorf("%d messages, %v, reason %q; want the message with its reason", len(out), err, msg.Metadata[farm.KeyReason])
			}
		})
	}
	if _, err := farm.NewMap(farm.MapConfig{Format: "svg", Layers: []geo.Layer{"roads"}, MaxOutput: -1}); err == nil ||
		!strings.Contains(err.Error(), "Format") || !strings.Contains(err.Error(), "Layers") || !strings.Contains(err.Error(), "MaxOutput") {
		t.Errorf("got %v, want three mistakes", err)
	}
}
