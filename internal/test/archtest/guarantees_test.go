package archtest

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// TestGuaranteesNameTestsThatExist checks docs/guarantees.md against the tests: each sentence of a promise
// is in the table of internal/test/guarantees.md, by its first words, with at least one test, and each of them exists. Those
// that make test leaves out have the target that runs them. Sentences about limits need no test.
func TestGuaranteesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	var rows []guaranteeRow
	for _, section := range sections(readFile(t, "internal/test/guarantees.md")) {
		if section.title == "Tests" {
			rows = guaranteeRows(section.text)
		}
	}
	used := map[string]bool{}
	for _, section := range sections(readFile(t, "docs/guarantees.md")) {
		if section.title == "Measured" {
			continue
		}
		for _, s := range sentences(section.text) {
			found := slices.IndexFunc(rows, func(row guaranteeRow) bool { return strings.HasPrefix(s.text, row.sentence) })
			if found < 0 {
				if !s.limit {
					t.Errorf("%q: the table has no test of %q", section.title, s.text)
				}
				continue
			}
			if used[rows[found].sentence] {
				t.Errorf("%q begins more than one sentence", rows[found].sentence)
			}
			used[rows[found].sentence] = true
		}
	}
	tests := testFiles(t)
	for _, row := range rows {
		if !used[row.sentence] {
			t.Errorf("no sentence begins with %q", row.sentence)
		}
		checkGuaranteeRow(t, tests, row)
	}
}

// checkGuaranteeRow checks the tests of a row: `TestName` behind their package and a colon, or behind
// "each sink" for a suite, and (`make TARGET`) behind what does not run with make test.
func checkGuaranteeRow(t *testing.T, tests map[string][]testFile, row guaranteeRow) {
	t.Helper()
	name := regexp.MustCompile("`(Test\\w+)`(?: \\(`make ([^`]+)`\\))?")
	for part := range strings.SplitSeq(row.tests, "; ") {
		where, list, _ := strings.Cut(part, ": ")
		found := name.FindAllStringSubmatch(list, -1)
		if len(found) == 0 {
			t.Errorf("%q: no test in %q", row.sentence, part)
		}
		for _, match := range found {
			i := slices.IndexFunc(tests[match[1]], func(file testFile) bool {
				return file.dir == where || strings.HasPrefix(where, "each ")
			})
			switch target := match[2]; {
			case i < 0:
				t.Errorf("%q: there is no %s in %s", row.sentence, match[1], where)
			case tests[match[1]][i].tagged && target == "":
				t.Errorf("%q: %s does not run with make test; name its target", row.sentence, match[1])
			case target != "":
				checkMake(t, block{file: "internal/test/guarantees.md"}, strings.Fields(target))
			}
		}
	}
}

// guaranteeRow is a row of the table: the first words of a sentence, and its tests.
type guaranteeRow struct{ sentence, tests string }

func guaranteeRows(text string) (rows []guaranteeRow) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) == 2 && !strings.HasPrefix(cells[0], "---") && strings.TrimSpace(cells[0]) != "sentence" {
			rows = append(rows, guaranteeRow{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1])})
		}
	}
	return rows
}

// sentence is one of a section, without the addresses of its links; limit tells that its paragraph is
// about what is not promised.
type sentence struct {
	text  string
	limit bool
}

func sentences(text string) (list []sentence) {
	text = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		paragraph = strings.Join(strings.Fields(paragraph), " ")
		limit := regexp.MustCompile(`^\*\*Limits?\.\*\* `).FindString(paragraph)
		begin := 0
		paragraph = paragraph[len(limit):]
		for _, end := range regexp.MustCompile("\\. [A-Z`]").FindAllStringIndex(paragraph, -1) {
			list = append(list, sentence{paragraph[begin : end[0]+1], limit != ""})
			begin = end[0] + 2
		}
		list = append(list, sentence{paragraph[begin:], limit != ""})
	}
	return list
}

// TestFaultMatrixNamesTestsThatExist checks the tests that the fault matrix
// names; those of the rows are checked beside it.
func TestFaultMatrixNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := testNames(t)
	names := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(readFile(t, "internal/test/faulttest/matrix.md"), -1)
	if len(names) < 80 {
		t.Errorf("only %d tests were found", len(names))
	}
	for _, name := range names {
		if tests[name] == nil {
			t.Errorf("the fault matrix names %s, which does not exist", name)
		}
	}
}

// markdownSection is what follows a heading of the second level.
type markdownSection struct{ title, text string }

func sections(page string) (list []markdownSection) {
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		list = append(list, markdownSection{title, text})
	}
	return list
}

// testNames returns the folders of all test and fuzz functions of the module.
func testNames(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for name, files := range testFiles(t) {
		for _, file := range files {
			names[name] = append(names[name], file.dir)
		}
	}
	return names
}

// testFile is where a test is; tagged tells that make test leaves it out.
type testFile struct {
	dir    string
	tagged bool
	test   *ast.FuncDecl
}

// testFiles returns where the tests, fuzz functions and examples of the module are.
func testFiles(t *testing.T) map[string][]testFile {
	t.Helper()
	declaration := regexp.MustCompile(`^(Test|Fuzz|Example)\w*$`)
	names := map[string][]testFile{}
	eachTestFile(t, func(files *token.FileSet, file *ast.File) {
		dir := testkit.Must(filepath.Rel(top(t), filepath.Dir(files.Position(file.Pos()).Filename)))(t)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && declaration.MatchString(f.Name.Name) {
				names[f.Name.Name] = append(names[f.Name.Name], testFile{filepath.ToSlash(dir), hasTag(file), f})
			}
		}
	})
	return names
}
