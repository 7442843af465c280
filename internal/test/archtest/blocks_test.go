package archtest

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a Markdown file.
type block struct {
	file, language string
	line           int // of the opening fence
	text           string
}

// blocks returns the fenced blocks of a Markdown file.
func blocks(t *testing.T, file string) (list []block) {
	t.Helper()
	var current *block
	for i, line := range strings.SplitAfter(readFile(t, file), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case current == nil && isFence:
			current = &block{file: file, language: fence, line: i + 1}
		case isFence:
			list = append(list, *current)
			current = nil
		case current != nil:
			current.text += line
		}
	}
	if current != nil {
		t.Fatalf("%s:%d: block without an end", file, current.line)
	}
	return list
}

// TestDocumentedBlocks: every block of the documentation is of a language that some
// test reads, and is what it seems to be.
func TestDocumentedBlocks(t *testing.T) {
	t.Parallel()
	targets := regexp.MustCompile("`make ([^`\"]+)`")
	for _, file := range markdownFiles(t) {
		for _, target := range targets.FindAllStringSubmatch(readFile(t, file), -1) {
			checkMake(t, block{file: file}, strings.Fields(target[1]))
		}
		for _, b := range blocks(t, file) {
			switch b.language {
			case "go": // TestDocumentedProgramsCompile, TestDocumentedFragmentsCompile
			case "bash":
				// The tests of cmd/agrimill run those.
				if file != "docs/getting-started.md" && file != "docs/emulator.md" {
					t.Errorf("%s:%d: nobody runs this block; is it sh?", b.file, b.line)
				}
			case "sh":
				checkShell(t, b)
			case "yaml":
				// TestDocumentedConfigurations of cmd/agrimill/internal/config loads those.
				if !strings.HasPrefix(file, "docs/") {
					t.Errorf("%s:%d: nobody loads this block", b.file, b.line)
				}
			case "json":
				if !json.Valid([]byte(b.text)) {
					t.Errorf("%s:%d: not JSON", b.file, b.line)
				}
			case "", "text": // drawings and output
			default:
				t.Errorf("%s:%d: nobody checks %s", b.file, b.line, b.language)
			}
		}
	}
}

// others are the programs of other people that command lines begin with.
var others = []string{"curl", "docker", "export", "journalctl", "jq", "kubectl", "systemctl"}

// shellWords are the keywords that the documentation's loops are made of.
var shellWords = []string{"for", "done", "do"}

// checkShell checks that what command lines name is there: targets of make and
// their variables, packages, commands of agrimill. Those of ./agrimill are run, by a
// test of cmd/agrimill.
func checkShell(t *testing.T, b block) {
	t.Helper()
	text := strings.ReplaceAll(b.text, "\\\n", " ")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " # ")
		words := strings.Fields(line)
		for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
			words = words[1:] // variables before a command
		}
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch first := words[0]; {
		case first == "make":
			checkMake(t, b, words[1:])
		case first == "go":
			checkGo(t, b, words[1:])
		case first == ".ci/run":
			checkSteps(t, b, words[1:])
		case first == "agrimill":
			if page := readFile(t, "docs/agrimill.md"); len(words) < 2 || !strings.Contains(page, "`agrimill "+words[1]) {
				t.Errorf("%s:%d: docs/agrimill.md knows no %s", b.file, b.line, strings.Join(words, " "))
			}
		case first == "./agrimill", slices.Contains(others, first), slices.Contains(shellWords, first):
		default:
			t.Errorf("%s:%d: nobody checks %s", b.file, b.line, strings.TrimSpace(line))
		}
	}
}

// checkMake: the targets and the variables are those of the Makefile.
func checkMake(t *testing.T, b block, words []string) {
	t.Helper()
	makefile := readFile(t, "Makefile")
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "STEP":
			checkSteps(t, b, []string{value})
		case "PART":
			word = "torture-" + value
		}
		pattern := "(?m)^" + regexp.QuoteMeta(word) + ":"
		if name, _, ok := strings.Cut(word, "="); ok {
			pattern = `(?m)^` + regexp.QuoteMeta(name) + ` *[?:]?=|\$\(` + regexp.QuoteMeta(name) + `\)`
		}
		if !regexp.MustCompile(pattern).MatchString(makefile) {
			t.Errorf("%s:%d: the Makefile has no %s", b.file, b.line, word)
		}
	}
}

// checkSteps: the steps are those of CI.
func checkSteps(t *testing.T, b block, words []string) {
	t.Helper()
	script := readFile(t, ".ci/run")
	for _, word := range words {
		if word != "--list" && !strings.Contains(script, "\n"+word+": ") {
			t.Errorf("%s:%d: .ci/run has no step %s", b.file, b.line, word)
		}
	}
}

// checkGo: the packages are there. Files that a command makes are not looked at.
func checkGo(t *testing.T, b block, words []string) {
	t.Helper()
	if !slices.Contains([]string{"build", "run", "test", "get", "tool", "install", "generate"}, words[0]) {
		t.Errorf("%s:%d: go %s", b.file, b.line, words[0])
	}
	for _, word := range words[1:] {
		path, local := strings.CutPrefix(word, "./")
		if !local {
			continue
		}
		files, err := filepath.Glob(filepath.Join(top(t), filepath.FromSlash(strings.TrimSuffix(path, "/...")), "*.go"))
		if err != nil || len(files) == 0 && !strings.HasSuffix(path, "...") {
			t.Errorf("%s:%d: there is no package %s, %v", b.file, b.line, word, err)
		}
	}
}
