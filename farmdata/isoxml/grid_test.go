package isoxml

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// TestCellsOfGrids says for grids of both types what becomes of one cell that is bad, that is missing, of an unknown kind, and of all
// of them: what is kept, and what is found, in the set and between the cells.
func TestCellsOfGrids(t *testing.T) {
	t.Parallel()
	const codes, values = `I="1"`, `I="2" J="1"`
	four := "\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00"
	for name, tt := range map[string]struct {
		grid, bin        string // no file if bin is "-"
		kept, set, found string
	}{
		"codes":               {codes, "\x01\x02\x01\x02", "1=5 2=6 1=5 2=6", "", ""},
		"one unknown code":    {codes, "\x01\x02\x07\x02", "1=5 2=6 7 2=6", "", "reference"},
		"all codes unknown":   {codes, "\x07\x08\x07\x08", "7 8 7 8", "", "reference"},
		"zone without values": {codes, "\x03\x01\x01\x01", "3 1=5 1=5 1=5", "", ""},
		"one cell missing":    {codes, "\x01\x02\x01", "1=5 2=6 1=5", "", "cut"},
		"one cell too many":   {codes, "\x01\x02\x01\x02\x01", "1=5 2=6 1=5 2=6", "", "surplus"},
		"codes of four bytes": {codes, four, "", "unreadable", ""},
		"no cells":            {codes, "", "", "", "cut"},
		"no file":             {codes, "-", "", "missing", ""},

		"values":             {values, four, "1=1 1=2 1=3 1=4", "", ""},
		"one value cut":      {values, four[:15], "1=1 1=2 1=3", "", "cut"},
		"one value missing":  {values, four[:12], "1=1 1=2 1=3", "", "cut"},
		"a value too many":   {values, four + four[:4], "1=1 1=2 1=3 1=4", "", "surplus"},
		"no values":          {values, "", "", "", "cut"},
		"twice the values":   {values, four + four, "", "unreadable", ""},
		"values of a byte":   {values, "\x01\x02\x03\x04", "", "unreadable", ""},
		"half of the values": {`I="2" J="4"`, four, "", "unreadable", ""},
		"two values":         {`I="2" J="4"`, four + four, "4=1=2 4=3=4 4=1=2 4=3=4", "", ""},
		"two values, cut":    {`I="2" J="4"`, four + four[:4], "4=1=2 4=3=4", "", "cut"},
		"values of no zone":  {`I="2"`, four, "", "unreadable", ""},
		"values of another":  {`I="2" J="9"`, four, "", "unreadable", ""},
		"values of an empty": {`I="2" J="3"`, four, "", "unreadable", ""},
		"values, bad zone":   {`I="2" J="one"`, four, "", "value, unreadable", ""},
		"no type":            {``, four, "", "unreadable", ""},
		"unknown type":       {`I="3"`, four, "", "unreadable", ""},
		"type that is none":  {`I="two"`, four, "", "value, unreadable", ""},
	} {
		xml := `<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1"><TZN A="1"><PDV A="0006" B="5"/></TZN><TZN A="2"><PDV A="0006" B="6"/></TZN><TZN A="3"/><TZN A="4"><PDV A="0006" B="0"/><PDV A="0001" B="0"/></TZN>` +
			`<GRD A="52" B="8" C="0.1" D="0.1" E="2" F="2" G="GRD00001" ` + tt.grid + `/></TSK></ISO11783_TaskData>`
		entries := []entry{{"TASKDATA.XML", xml}}
		if tt.bin != "-" {
			entries = append(entries, entry{"GRD00001.BIN", tt.bin})
		}
		set := openSet(t, entries...)
		var kept []string
		var found []*farmdata.Finding
		for cell, err := range set.Tasks[0].Grids[0].Cells {
			var finding *farmdata.Finding
			if errors.As(err, &finding) {
				found = append(found, finding)
				continue
			}
			text := fmt.Sprint(cell.Zone)
			for _, v := range cell.Values {
				text += fmt.Sprint("=", v.Raw)
			}
			if at := int64(len(kept)); cell.Row != at/2 || cell.Col != at%2 {
				t.Errorf("%s: got cell %d at row %d and column %d", name, at, cell.Row, cell.Col)
			}
			kept = append(kept, text)
		}
		if got := strings.Join(kept, " "); got != tt.kept {
			t.Errorf("%s: got %q, want %q", name, got, tt.kept)
		}
		if got := farmdatatest.Kinds(set.Findings); got != tt.set {
			t.Errorf("%s: got findings %q in the set, want %q: %v", name, got, tt.set, set.Findings)
		}
		if got := farmdatatest.Kinds(found); got != tt.found || len(found) > 0 && found[0].File != "GRD00001.BIN" {
			t.Errorf("%s: got findings %v, want %q", name, found, tt.found)
		}
	}
}
