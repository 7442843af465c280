package archtest

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesAreShort checks that a reader gets to the end of every example: there are
// few of them, and each is one file, beside which its test may stand.
func TestExamplesAreShort(t *testing.T) {
	t.Parallel()
	const maxPrograms, maxLines = 8, 130
	programs := testkit.Must(filepath.Glob(filepath.Join(top(t), "examples", "*")))(t)
	if n := len(programs); n == 0 || n > maxPrograms {
		t.Errorf("%d programs below examples/, want 1 to %d", n, maxPrograms)
	}
	for _, program := range programs {
		name := filepath.Base(program)
		files := testkit.Must(filepath.Glob(filepath.Join(program, "*.go")))(t)
		var sources, tests []string
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				tests = append(tests, file)
			} else {
				sources = append(sources, file)
			}
		}
		if len(sources) == 0 { // an example of a test
			sources, tests = tests, nil
		}
		if len(sources) != 1 || len(tests) > 1 {
			t.Errorf("examples/%s has %d files and %d tests, want one file and at most one test", name, len(sources), len(tests))
		}
		for _, file := range sources {
			if lines := codeLines(t, file); lines > maxLines {
				t.Errorf("examples/%s has %d lines of code, want at most %d", name, lines, maxLines)
			}
			if lines := codeLines(t, file); (name == "time-logs" || name == "task-from-map") && lines > 60 { // which docs/farm-data.md promises
				t.Errorf("examples/%s has %d lines of code, want at most 60", name, lines)
			}
		}
		entries := testkit.Must(os.ReadDir(program))(t)
		for _, entry := range entries {
			if entry.IsDir() {
				t.Errorf("examples/%s has the folder %s, want one file", name, entry.Name())
			}
		}
	}
}

// codeLines counts the lines of code of a file.
func codeLines(t *testing.T, file string) int {
	t.Helper()
	data := testkit.Must(os.ReadFile(file))(t)
	return countCode(string(data))
}

// countCode counts the lines that are neither empty nor a comment.
func countCode(source string) (n int) {
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			n++
		}
	}
	return n
}
