package demo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What is farm data can be read as a whole, and has what its records say. Every machine has a file of each kind.
func TestSamples(t *testing.T) {
	for _, farm := range sampleFarms() {
		for _, machine := range farm.machines {
			kinds := map[string]bool{}
			for _, file := range testkit.Must(farm.files(machine))(t) {
				kinds[file.MessageType] = true
				line := map[string]string{
					"iso:11783:-10:taskdata:zip":      "TaskData 4.3: 1 task, 1 device, 1 field, 1 log, 600 records, 1200 values, ",
					"iso:11783:-10:time_log:protobuf": "EFDI time log: 1 log, 600 records, 1200 values, ",
				}[file.MessageType]
				if line == "" {
					continue
				}
				data := testkit.Must(content.Open(t.Context(), bytes.NewReader(file.Data), int64(len(file.Data)), content.Config{}))(t)
				summary := testkit.Must(content.Summarize(t.Context(), data))(t)
				set := summary.Sets[0]
				if n := len(set.Findings) + len(set.Logs[0].Findings) + len(summary.More); n > 0 || set.Logs[0].Positions != 600 || !strings.HasPrefix(summary.Line(), line) {
					t.Errorf("%s: %q, %d findings, %d positions: %+v", file.Name, summary.Line(), n, set.Logs[0].Positions, set.Findings)
				}
			}
			for _, kind := range []string{"iso:11783:-10:taskdata:zip", "iso:11783:-10:time_log:protobuf", "img:png", "shp:shape:zip"} {
				if !kinds[kind] {
					t.Errorf("%s of %s sends no %s", machine, farm.name, kind)
				}
			}
		}
	}
}
