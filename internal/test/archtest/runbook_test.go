package archtest

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// quotedLines returns what a page says that the log has: what sentences about the log quote, if it is three words or
// more, and the messages of lines in blocks. The value is whether the sentence speaks of level debug.
func quotedLines(page string) map[string]bool {
	lines := map[string]bool{}
	about, quote := regexp.MustCompile(`(?i)\blogs?\b`), regexp.MustCompile("`([A-Za-z][a-z]*(?: [A-Za-z0-9',;-]+){2,})`")
	program := regexp.MustCompile(`^(agrimill|make|kubectl|systemctl|journalctl|helm|nats) `)
	for _, sentence := range regexp.MustCompile(`\. |\.\n|\n\n|\|`).Split(page, -1) {
		if !about.MatchString(sentence) {
			continue
		}
		for _, match := range quote.FindAllStringSubmatch(strings.ReplaceAll(sentence, "\n", " "), -1) {
			if !program.MatchString(match[1]) {
				lines[match[1]] = strings.Contains(sentence, "debug")
			}
		}
	}
	for _, match := range regexp.MustCompile(`\bmsg"?[=:] ?"([^"\n]+)"`).FindAllStringSubmatch(page, -1) {
		lines[match[1]] = false
	}
	return lines
}

// TestRunbookQuotesTheProgram checks that each log line that the documentation
// quotes, and each check of /readyz that the runbook explains, is one that the
// code writes.
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
	inProgram := regexp.MustCompile(`(?:Warn|Limited|Error|Info|New|Errorf)\((?:[^"\n]*)"((?:[^"\n\\]|\\.)*)"`)
	inLibrary := regexp.MustCompile(`(?:Warn|Limited|Error|New|Errorf)\((?:[^"\n]*)"((?:[^"\n\\]|\\.)*)"`)
	for _, dir := range []string{"cmd", "gateway", "publisher", "router", "sinks", "sources", "stores", "subscriber"} {
		calls := inLibrary
		if dir == "cmd" {
			calls = inProgram
		}
		testkit.NoError(t, filepath.WalkDir(filepath.Join(top(t), dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			source.Write(data)
			for _, call := range calls.FindAllSubmatch(data, -1) {
				logged.Write(append(call[1], '\n'))
			}
			return err
		}))
	}
	for _, match := range logs {
		if !strings.Contains(logged.String(), match[1]) {
			t.Errorf("docs/runbook.md: nothing logs %q, or only at level debug", match[1])
		}
	}
	found := 0
	for _, file := range markdownFiles(t) {
		if !strings.HasPrefix(file, "docs/") {
			continue
		}
		for line, debug := range quotedLines(readFile(t, file)) {
			found++
			if !strings.Contains(logged.String(), line) && !(debug && strings.Contains(source.String(), line)) {
				t.Errorf("%s: nothing logs %q, or only at level debug", file, line)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d lines are quoted in docs", found)
	}
	for _, match := range checks {
		for _, name := range match[1:] {
			if !strings.Contains(source.String(), `"`+strings.TrimSuffix(name, "NAME")) {
				t.Errorf("docs/runbook.md: /readyz has no check %q", name)
			}
		}
	}
}
