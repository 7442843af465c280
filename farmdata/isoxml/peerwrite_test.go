//go:build peer

package isoxml

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// pythonWithReader is a Python that has the package isoxml.
func pythonWithReader(t *testing.T) string {
	t.Helper()
	python := cmp.Or(os.Getenv("PYTHON"), "python3")
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import isoxml").CombinedOutput(); err != nil {
		t.Skipf("THE PYTHON PACKAGE isoxml IS ABSENT, WHAT WAS WRITTEN IS NOT READ WITH IT: %v\n%s", err, out)
	}
	return python
}

// ours is what an archive that was written has, and the original has not: that the list of links is named, its version,
// an area of 0 for a field that has none, and warnings for what the model does not have.
var ours = regexp.MustCompile(`(?i)^\.attached_?files?\[|^\.version_?m|area=0$|^warning.*(letter case|data_?transfer_?origin)`)

// TestPeerReadsWhatWasWritten: whatever other readers read in an archive that was written they read in the original, too, at the same
// place. Of what the model has nothing is lost, for our own reader finds it equal.
func TestPeerReadsWhatWasWritten(t *testing.T) {
	dir := peerFolder(t)
	for peer, command := range map[string][]string{"npm": {"node", "tree.mjs"}, "Python": {"", "tree.py"}} {
		t.Run(peer, func(t *testing.T) {
			if peer == "Python" {
				command[0] = pythonWithReader(t)
			}
			read := func(t *testing.T, file string) ([]string, error) {
				program := exec.CommandContext(t.Context(), command[0], command[1], file)
				program.Dir = dir
				out, err := program.Output()
				lines := strings.Split(strings.TrimSpace(strings.ToLower(string(out))), "\n")
				for i := range lines { // texts without spaces around them, and DDIs of four digits
					lines[i] = regexp.MustCompile(`=(["'])\s*(.*?)\s*["']$`).ReplaceAllString(lines[i], "=$2")
					lines[i] = regexp.MustCompile(`ddi=([0-9a-f]{2,3})$`).ReplaceAllStringFunc(lines[i], func(ddi string) string { return "ddi=" + fmt.Sprintf("%04s", ddi[4:]) })
				}
				return lines, err
			}
			for name := range expected(t) {
				comparePeers(t, name, read)
			}
		})
	}
}

func comparePeers(t *testing.T, name string, read func(*testing.T, string) ([]string, error)) {
	file := testkit.Must(filepath.Abs(farmFile(t, name)))(t)
	damaged := map[string]bool{}
	content, _ := rewrite(t, openFile(t, file).Sets[0], WriteConfig{Finding: func(f *farmdata.Finding) { damaged[f.File] = true }})
	again := filepath.Join(t.TempDir(), "written.zip")
	testkit.NoError(t, os.WriteFile(again, []byte(content), 0o600))
	got, err := read(t, again)
	if err != nil {
		t.Errorf("%s: the peer does not read what was written: %v", name, err)
		return
	}
	original, err := read(t, file)
	if err != nil {
		t.Logf("%s: the peer does not read the original, but what was written", name)
		return
	}
	if slices.ContainsFunc(original, func(line string) bool { return strings.HasPrefix(line, ".external_file_references[") }) {
		t.Logf("%s: the peer reads what was written; of the original, which is in several files, it does not read all", name)
		return
	}
	slices.Sort(original)
	hash, others := regexp.MustCompile(`: [0-9a-f]{64}$`), 0
	for _, line := range got {
		switch _, ok := slices.BinarySearch(original, line); {
		case ok || ours.MatchString(line):
		case name == "taskdata_with_grid.zip" && strings.Contains(line, "crop"): // one is inside of another, and found there by our reader only
		case hash.MatchString(line):
			others++
		default:
			t.Errorf("%s: the peer reads %s, which is not in the original", name, line)
		}
	}
	if others > len(damaged) {
		t.Errorf("%s: %d logs or grids have other bytes, %d are damaged", name, others, len(damaged))
	}
	t.Logf("%s: the peer reads %d of the %d places of the original in what was written", name, len(got), len(original))
}
