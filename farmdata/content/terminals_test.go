package content_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
)

// TestTotalsOfTerminals compares what the logs of real machines say with what their terminals wrote in totals of their own.
func TestTotalsOfTerminals(t *testing.T) {
	t.Parallel()
	const shared = "../../../shared/data"
	if _, err := os.Stat(shared); err != nil {
		message := fmt.Sprintf("REAL FARM FILES ARE ABSENT, TOTALS ARE NOT COMPARED WITH THOSE OF TERMINALS: %v", err)
		if os.Getenv("CI") != "" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	want := map[string]int{"taskdata_big.zip": 133, "taskdata_small.zip": 5, "taskdata_mw_4fc231c3.zip": 1, "taskdata_totals.zip": 7} // other files have no totals
	for _, pattern := range []string{"farm/*.zip", "isoxml/*.zip"} {
		for _, file := range testkit.Must(filepath.Glob(filepath.Join(shared, pattern)))(t) {
			name := filepath.Base(file)
			if compared := compareTotals(t, file); compared != want[name] {
				t.Errorf("%s: %d figures compared, want %d", name, compared, want[name])
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("files are missing: %v", want)
	}
}

// compareTotals returns how many figures it compared.
func compareTotals(t *testing.T, file string) (compared int) {
	totals := func(with bool) []content.Work {
		f := testkit.Must(os.Open(file))(t)
		defer func() { _ = f.Close() }()
		info := testkit.Must(f.Stat())(t)
		data, err := content.Open(t.Context(), f, info.Size(), content.Config{})
		if err != nil {
			return nil // other files of the gateway
		}
		for _, set := range data.Sets {
			for i := range set.Tasks {
				for j := range set.Tasks[i].Times {
					if !with {
						set.Tasks[i].Times[j].Totals = nil
					}
				}
			}
		}
		return testkit.Must(content.Totals(t.Context(), data))(t)
	}
	own := map[string]content.Work{}
	for _, w := range totals(false) {
		own[w.Task.ID+" "+w.Device.ID] = w
	}
	near := func(what string, got, want content.Figure, relative, absolute float64) {
		if got.From == content.FromLog && want.From == content.FromTotals {
			if compared++; math.Abs(got.Value-want.Value) > relative*want.Value+absolute {
				t.Errorf("%s, %s: got %.5g, want about %.5g", filepath.Base(file), what, got.Value, want.Value)
			}
		}
	}
	for _, w := range totals(true) {
		at := own[w.Task.ID+" "+w.Device.ID]
		if at.Incomplete != w.Incomplete || at.Incomplete != (filepath.Base(file) == "taskdata_big.zip" && (w.Task.ID == "TSK9" || w.Task.ID == "")) {
			t.Errorf("%s, %s: got incomplete %v and %v", filepath.Base(file), w.Task.ID, at.Incomplete, w.Incomplete)
		}
		if at.Incomplete {
			continue
		}
		// The machines take way and area of their wheels, and the positions of some files were moved to the north, where ways to the east are shorter.
		near(w.Task.ID+" area", at.Area, w.Area, 0.14, 400)
		near(w.Task.ID+" distance", at.Distance, w.Distance, 0.16, 50)
		near(w.Task.ID+" time", at.Time, w.Time, 0.08, 10)
		for _, r := range w.Rates {
			for _, other := range at.Rates {
				if other.DDI == r.DDI && other.Element == r.Element && (r.DDI == "0057" || r.DDI == "0095") {
					near(w.Task.ID+" total of "+r.DDI, other.Total, r.Total, 0.06, 0.2)
					near(w.Task.ID+" mean of "+r.DDI, other.Mean, r.Mean, 0.06, 0.2)
				}
			}
		}
	}
	return compared
}
