package content_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TestPicturesOfTheDocs: docs/farm-data.md shows what the program draws. UPDATE=1 draws it.
func TestPicturesOfTheDocs(t *testing.T) {
	t.Parallel()
	for name, archive := range map[string][]byte{
		"map-track.svg": farmdatatest.Harvest(t),
		"map-grid.svg":  farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskGridAgain),
		"map-zones.svg": farmdatatest.Prescriptions(t, farmdatatest.TaskZones),
	} {
		s := summarize(t, open(t, archive, content.Config{}))
		if len(s.Sets[0].Findings) > 0 {
			t.Errorf("%s: %v", name, s.Sets[0].Findings)
		}
		svg, file := picture(t, s), filepath.Join("..", "..", "docs", "images", name)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, []byte(svg), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || svg != string(want) {
			t.Errorf("%s is another picture (%v); UPDATE=1 go test ./farmdata/content -run Docs draws it", file, err)
		}
	}
}
