package content_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TestPicturesOfTheDocs: docs/farm-data.md shows what the program draws. UPDATE=1 draws it.
func TestPicturesOfTheDocs(t *testing.T) {
	t.Parallel()
	for name, archive := range map[string][]byte{
		"map-track.svg": farmdatatest.Harvest(t),
		"map-yield.svg": farmdatatest.Harvest(t),
		"map-grid.svg":  farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskGridAgain),
		"map-zones.svg": farmdatatest.Prescriptions(t, farmdatatest.TaskZones),
	} {
		s := summarize(t, open(t, archive, content.Config{}))
		if name == "map-yield.svg" {
			testkit.NoError(t, s.Color(t.Context(), open(t, archive, content.Config{}), geo.Column{DDI: "0054", Unit: "t/ha"}))
		}
		if len(s.Sets[0].Findings) > 0 {
			t.Errorf("%s: %v", name, s.Sets[0].Findings)
		}
		svg, file := picture(t, s), filepath.Join("..", "..", "docs", "images", name)
		if os.Getenv("UPDATE") != "" {
			testkit.NoError(t, os.WriteFile(file, []byte(svg), 0o600))
		}
		if want, err := os.ReadFile(file); err != nil || svg != string(want) {
			t.Errorf("%s is another picture (%v); UPDATE=1 go test ./farmdata/content -run Docs draws it", file, err)
		}
	}
}

// TestColorsOfLongTracks: a track of any length has a bounded number of parts, each with the mean of what it is of, and is
// interrupted where there is no value and where the machine was away.
func TestColorsOfLongTracks(t *testing.T) {
	t.Parallel()
	column := &farmdata.Column{DDI: 0x54, Scale: 1}
	log := func(records int, raw func(i int) int64) *content.Data {
		return &content.Data{Sets: []*farmdata.Set{{Logs: []*farmdata.Log{{Records: func(yield func(*farmdata.Record, error) bool) {
			for i := range records {
				record := &farmdata.Record{Number: int64(i), Position: farmdata.Position{North: 52 + float64(i)*1e-6, East: 7, Has: farmdata.HasNorth | farmdata.HasEast}}
				if n := raw(i); n >= 0 {
					record.Values = []farmdata.Value{{Column: column, Raw: n}}
				}
				if i == 2 { // somewhere else
					record.Position.East = 8
				}
				if !yield(record, nil) {
					return
				}
			}
		}}}}}}
	}
	for name, tt := range map[string]struct {
		records     int
		raw         func(int) int64
		parts, most int
	}{
		"short":      {10, func(i int) int64 { return 5 }, 7, 7}, // without the first one, and those there and back
		"holes":      {10, func(i int) int64 { return int64(i%2*6 - 1) }, 4, 4},
		"long":       {50_000, func(i int) int64 { return int64(i) }, 1000, 4000},
		"long holes": {50_000, func(i int) int64 { return int64(i%2*6 - 1) }, 1000, 4000},
		"no DDI":     {10, func(int) int64 { return -1 }, 0, 0},
	} {
		data := log(tt.records, tt.raw)
		s := summarize(t, data)
		testkit.NoError(t, s.Color(t.Context(), data, geo.Column{DDI: "0054"}))
		if got := strings.Count(picture(t, s), "M"); got < tt.parts || got > tt.most+1 { // one is the scale
			t.Errorf("%s: got %d parts, want %d to %d", name, got, tt.parts, tt.most)
		}
	}
	if err := summarize(t, log(1, func(int) int64 { return 1 })).Color(t.Context(), log(1, nil), geo.Column{DDI: "yield"}); err == nil {
		t.Error("a DDI that is none is accepted")
	}
}
