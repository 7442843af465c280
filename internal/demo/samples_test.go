package demo

import (
	"bytes"
	"image/png"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
)

func sampleFiles(t *testing.T) map[string]File {
	t.Helper()
	list := testkit.Must(job{
		customer: "Sample Customer", farm: "Sample Farm", field: "Long Acre", machine: "Sample Sprayer",
		start: time.Date(2026, time.May, 4, 6, 30, 0, 0, time.UTC), north: 52.1000, east: 8.2000,
	}.files())(t)
	byName := map[string]File{}
	for _, p := range list {
		byName[p.Name] = p
	}
	return byName
}

// What is farm data can be read as a whole, and has what its records say.
func TestSampleFarmData(t *testing.T) {
	files := sampleFiles(t)
	for name, want := range map[string]string{
		"taskdata_long_acre.zip": "TaskData 4.3: 1 task, 1 device, 1 field, 1 log, 600 records, 1200 values, 2026-05-04T06:30:00 to 2026-05-04T06:39:59",
		"timelog_long_acre.pb":   "EFDI time log: 1 log, 600 records, 1200 values, 2026-05-04T06:30:00Z to 2026-05-04T06:39:59Z",
	} {
		data, err := content.Open(t.Context(), bytes.NewReader(files[name].Data), int64(len(files[name].Data)), content.Config{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		summary, err := content.Summarize(t.Context(), data)
		if err != nil || summary.Line() != want {
			t.Errorf("%s: got %q, %v, want %q", name, summary.Line(), err, want)
		}
		set := summary.Sets[0]
		if n := len(set.Findings) + len(set.Logs[0].Findings) + len(summary.More); n > 0 || set.Logs[0].Positions != 600 {
			t.Errorf("%s: %d findings, %d positions: %+v", name, n, set.Logs[0].Positions, set.Findings)
		}
	}
}

func TestSamplePicture(t *testing.T) {
	files := sampleFiles(t)
	picture := testkit.Must(png.Decode(bytes.NewReader(files["coverage_long_acre.png"].Data)))(t)
	// A blank picture would decode too.
	colours := map[any]bool{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			colours[picture.At(x, y)] = true
		}
	}
	if len(colours) < 3 {
		t.Errorf("picture of %d colours, want the field, the turns and the work", len(colours))
	}
}
