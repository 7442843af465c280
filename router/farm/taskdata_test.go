package farm

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

const rates = `{"type":"FeatureCollection","features":[{"type":"Feature","properties":{"rate":183.7,"seed":80},"geometry":{"type":"Polygon",
"coordinates":[[[8,52],[8.001,52],[8.001,52.001],[8,52.001],[8,52]]]}}]}`

var rateColumns = []RateConfig{
	{Column: "rate", DDI: "0006", Unit: "kg/ha", Product: NameConfig{Name: "Urea"}}, {Column: "seed", DDI: "000B", Unit: "seeds/m²"},
}

// A map becomes one message with TaskData, the same each time; each polygon has its rates.
func TestTaskDataOfAMap(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]TaskDataConfig{"zones": {Columns: rateColumns}, "grid": {Columns: rateColumns, Grid: 20}} {
		transform := testkit.Must(NewTransform(TransformConfig{Prescription: &config}))(t)
		var out [2]*message.Message
		for i := range out {
			msg := message.NewMessage("1", []byte(rates))
			msg.Metadata[gateway.KeyMessageType], msg.Metadata[gateway.KeyFilename] = "app:map:geojson", "North 2026.geojson"
			made, err := transform(msg)
			if err != nil || len(made) != 1 {
				t.Fatalf("%s: got %d messages, %v", name, len(made), err)
			}
			out[i] = made[0]
		}
		if out[0].UUID != out[1].UUID || !bytes.Equal(out[0].Payload, out[1].Payload) {
			t.Errorf("%s: the same map made two messages", name)
		}
		if m := out[0].Metadata; m[gateway.KeyMessageType] != TypeTaskData || m[gateway.KeyFilename] != "North 2026.zip" || m[KeySourceType] != "app:map:geojson" {
			t.Errorf("%s: got metadata %v", name, m)
		}
		a := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(out[0].Payload), int64(len(out[0].Payload)), isoxml.Config{}))(t)
		task := a.Sets[0].Tasks[0]
		if len(a.Sets[0].Findings) > 0 || len(a.Sets[0].Tasks) != 1 || task.Designator != "North 2026" || a.Sets[0].Products[0].Designator != "Urea" {
			t.Errorf("%s: got %+v, %v", name, task, a.Sets[0].Findings)
		}
		if name == "zones" {
			if v := task.Zones[0].Values; len(v) != 2 || v[0].Raw != 18370 || v[1].Raw != 80000 || v[1].ProductID != "" {
				t.Errorf("got rates %+v", v)
			}
			continue
		}
		for cell, err := range task.Grids[0].Cells {
			if err != nil || cell.Col < 3 && (cell.Values[0].Raw != 18370 || cell.Values[1].Raw != 80000) { // the center of others is outside
				t.Errorf("got %+v, %v", cell, err)
			}
		}
	}
}

// Messages that differ have different UUIDs, as receivers tell them apart by that: what is made of one map with other columns, another grid
// or another file name, and maps with other columns.
func TestUUIDsOfOtherConfigurations(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	check := func(name, file string, payload []byte, config TransformConfig) {
		msg := message.NewMessage("1", payload)
		msg.Metadata[gateway.KeyFilename] = file
		made, err := testkit.Must(NewTransform(config))(t)(msg)
		if err != nil || len(made) != 1 {
			t.Fatalf("%s: got %d messages, %v", name, len(made), err)
		}
		if before := seen[made[0].UUID]; before != "" {
			t.Errorf("%s has the UUID of %s", name, before)
		}
		seen[made[0].UUID] = name
	}
	for name, config := range map[string]TaskDataConfig{"rate": {Columns: rateColumns[:1]}, "seed": {Columns: rateColumns[1:]}, "grid": {Columns: rateColumns[:1], Grid: 20}} {
		check(name, "North.geojson", []byte(rates), TransformConfig{Prescription: &config})
	}
	check("another file name", "South.geojson", []byte(rates), TransformConfig{Prescription: &TaskDataConfig{Columns: rateColumns[:1]}})
	archive := testkit.Must(testkit.Must(NewTaskData(TaskDataConfig{Columns: rateColumns}))(t)(message.NewMessage("1", []byte(rates))))(t)[0].Payload
	for _, ddi := range []string{"0006", "000B"} {
		check("map of "+ddi, "North.zip", archive, TransformConfig{Map: &MapConfig{Columns: []geo.Column{{DDI: ddi}}}})
	}
}

// What nothing can be made of is a permanent error that says why and has nothing of the map.
func TestTaskDataOfWhatIsNoMap(t *testing.T) {
	t.Parallel()
	transform := testkit.Must(NewTaskData(TaskDataConfig{Columns: rateColumns, ReadConfig: ReadConfig{MaxBytes: 1000}}))(t)
	for name, tt := range map[string]struct{ payload, want string }{
		"no map":       {"secret", "neither GeoJSON nor GeoParquet"},
		"no rate":      {strings.Replace(rates, `"seed"`, `"secret"`, 1), "feature 1: seed is no number"},
		"large":        {rates + strings.Repeat(" ", 1000), "max_bytes"},
		"long in TSK":  {strings.Replace(rates, "8.001", "800", 1), "feature 1: a point is not on Earth"},
		"nothing here": {"", "neither GeoJSON nor GeoParquet"},
	} {
		made, err := transform(message.NewMessage("1", []byte(tt.payload)))
		if len(made) > 0 || err == nil || router.ClassOf(err) != router.ClassPermanent || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %d messages and %v (%v), want a permanent error with %q", name, len(made), err, router.ClassOf(err), tt.want)
		}
	}
	msg := message.NewMessage("1", nil)
	msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeClaimCheck
	if _, err := transform(msg); err == nil || router.ClassOf(err) != router.ClassPermanent {
		t.Errorf("got %v for a payload that nothing opens, want a permanent error", err)
	}
}

func TestTaskDataConfig(t *testing.T) {
	t.Parallel()
	err := TransformConfig{Summary: &ReadConfig{}, Prescription: &TaskDataConfig{
		Columns: []RateConfig{{DDI: "xyz"}, {Column: "a", DDI: "0006", Unit: "l/ha", Product: NameConfig{Name: "a", Column: "b"}}, {Column: "c", DDI: "0B", Unit: "raw"}, {Column: "d", DDI: "000B", Unit: "raw"}, {Column: "e", DDI: "FFFF", Unit: "raw"}}, Grid: -1, ReadConfig: ReadConfig{MaxBytes: -1},
	}}.Validate()
	for _, want := range []string{"cannot be combined", "Columns[0].Column", "Columns[0].DDI", "Columns[1].Unit", "Columns[1].Product.Column", "Columns[3].DDI is that of", "Columns[4].DDI must be", "Grid", "MaxBytes"} {
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a mistake in %s", err, want)
		}
	}
	if _, err := NewTaskData(TaskDataConfig{}); !errors.Is(err, ErrConfig) {
		t.Errorf("got %v without columns", err)
	}
}
