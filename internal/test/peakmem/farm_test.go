package peakmem

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TaskData of 256 MB, unpacked, is read and summarized, with its picture, in at most 64 MB.
func TestTaskDataStaysBelow64MB(t *testing.T) {
	archive, records, cells := farmdatatest.Large(t)
	file := filepath.Join(t.TempDir(), "large.zip")
	testkit.NoError(t, os.WriteFile(file, archive, 0o600))
	size := int64(len(archive))
	var summary *content.Summary
	peak, _ := peakOf(t, func() {
		f := testkit.Must(os.Open(file))(t)
		defer f.Close()
		data := testkit.Must(content.Open(t.Context(), f, size, content.Config{}))(t)
		summary = testkit.Must(content.Summarize(t.Context(), data))(t)
		testkit.NoError(t, json.NewEncoder(io.Discard).Encode(summary))
		testkit.NoError(t, summary.WriteSVG(io.Discard))
	})
	log, grid := summary.Sets[0].Logs[0], summary.Sets[0].Grids[0]
	again := len(log.Findings) == 1 && strings.Contains(log.Findings[0].Text, "the same seconds are there twice") // as the same records are
	if log.Records != records || grid.Cells != cells || !again || len(grid.Findings)+len(summary.Sets[0].Findings) > 0 {
		t.Errorf("%d of %d records and %d of %d cells were read: %v %v %v", log.Records, records, grid.Cells, cells, summary.Sets[0].Findings, log.Findings, grid.Findings)
	}
	if peak > limit {
		t.Errorf("256 MB took %d MB of memory, want at most 64", peak/mega)
	}
	t.Logf("256 MB took %d MB of memory", peak/mega)
}
