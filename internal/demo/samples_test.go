package demo

import (
	"bytes"
	"encoding/json"
	"image/png"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/testkit"
)

func sampleFiles(t *testing.T) map[string]File {
	t.Helper()
	list := testkit.Must(LongAcre())(t)
	byName := map[string]File{}
	for _, p := range list {
		byName[p.Name] = p
	}
	if len(byName) != len(list) || len(list) != 5 {
		t.Fatalf("got %d samples with %d names, want 5 and 5", len(list), len(byName))
	}
	return byName
}

func TestSamplesAreTheSameInEveryRun(t *testing.T) {
	first, second := sampleFiles(t), sampleFiles(t)
	for name, p := range first {
		if !bytes.Equal(p.Data, second[name].Data) {
			t.Errorf("%s differs between two runs", name)
		}
		if p.MessageType != farmfile.MessageType(name) {
			t.Errorf("%s: message type %q, want %q", name, p.MessageType, farmfile.MessageType(name))
		}
	}
}

// What is farm data can be read as a whole, and has what its records say.
func TestSampleFarmData(t *testing.T) {
	files := sampleFiles(t)
	for name, want := range map[string]string{
		"taskdata_long_acre.zip": "TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 600 records, 1200 values, 2026-05-04T06:30:00 to 2026-05-04T06:39:59",
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

func TestSamplePictureAndSummary(t *testing.T) {
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
	if !json.Valid(files["summary_long_acre.json"].Data) {
		t.Error("summary is no JSON")
	}
}

func TestSampleDumpNeedsChunks(t *testing.T) {
	dump := sampleFiles(t)["raw_sensor_dump.bin"].Data
	if len(dump) != 3<<20 {
		t.Errorf("%d bytes, want 3 MiB", len(dump))
	}
}
