package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRunbookQuotesTheProgram checks that each log line and each check of
// /readyz that the runbook explains is one that the code writes.
func TestRunbookQuotesTheProgram(t *testing.T) {
	t.Parallel()
	page := readFile(t, "docs/runbook.md")
	logs := regexp.MustCompile("(?m)^\\| log: `([^`]+)`").FindAllStringSubmatch(page, -1)
	checks := regexp.MustCompile("(?m)^\\| `/readyz` 503, check `([^`]+)`(?: or `([^`]+)`)?").FindAllStringSubmatch(page, -1)
	if len(logs) < 5 || len(checks) < 5 {
		t.Fatalf("only %d log lines and %d checks were found", len(logs), len(checks))
	}
	var source, logged strings.Builder
	// What libraries log at level info is at debug in the program. Errors are attributes of lines.
	inProgram := regexp.MustCompile(`(?:Warn|Error|Info|New|Errorf)\((?:[^"\n]*)"((?:[^"\n\\]|\\.)*)"`)
	inLibrary := regexp.MustCompile(`(?:Warn|Error|New|Errorf)\((?:[^"\n]*)"((?:[^"\n\\]|\\.)*)"`)
	for _, dir := range []string{"cmd", "gateway", "publisher", "router", "sinks", "sources", "subscriber"} {
		calls := inLibrary
		if dir == "cmd" {
			calls = inProgram
		}
		err := filepath.WalkDir(filepath.Join(top(t), dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			source.Write(data)
			for _, call := range calls.FindAllSubmatch(data, -1) {
				logged.Write(append(call[1], '\n'))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, match := range logs {
		if !strings.Contains(logged.String(), match[1]) {
			t.Errorf("docs/runbook.md: nothing logs %q, or only at level debug", match[1])
		}
	}
	for _, match := range checks {
		for _, name := range match[1:] {
			if !strings.Contains(source.String(), `"`+strings.TrimSuffix(name, "NAME")) {
				t.Errorf("docs/runbook.md: /readyz has no check %q", name)
			}
		}
	}
}
