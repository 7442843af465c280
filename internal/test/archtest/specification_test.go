package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The page of the tests of the specification, and where that is, from the top.
const (
	coveragePath      = "internal/test/coverage.md"
	specificationPath = "../shared/spec/gateway-service.md"
)

// The columns of the page.
const (
	colRow = iota
	colAsks
	colClient
	colService
	colTests
	columns
)

// opening is where the page answers for what stands under the title.
const opening = "Opening"

// notShown is the section of the page about what the specification leaves open.
const notShown = "Where the specification shows nothing"

// readSpecification skips the test, loudly, when the specification is not at
// hand, for it is no part of the repository. In CI that is a failure.
func readSpecification(t *testing.T) []section {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top(t), specificationPath))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skipf("THE SPECIFICATION IS NOT AT HAND (%s): %s WAS NOT COMPARED WITH IT", specificationPath, coveragePath)
	}
	if err != nil {
		t.Fatalf("THE SPECIFICATION IS NOT AT HAND: %v", err)
	}
	sections := parseMarkdown(string(text))
	if len(sections) < 3 {
		t.Fatalf("%s has no headings", specificationPath)
	}
	sections[1].heading = opening
	return sections[1:]
}

// TestCoverageNamesTestsThatExist holds every row of the page to the tests and files that it names;
// TestDocumentedNamesExist looks for the exported names.
func TestCoverageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := testFiles(t)
	page := parseMarkdown(readFile(t, coveragePath))
	rows := 0
	for _, sec := range page {
		seen := map[string]bool{}
		for _, table := range sec.tables {
			for _, r := range table.rows {
				rows++
				for _, problem := range checkCoverage(t, tests, r.cells) {
					t.Errorf("%s:%d: %s", coveragePath, r.line, problem)
				}
				key := plain(r.cells[colRow])
				if seen[key] {
					t.Errorf("%s:%d: %q has two rows under %q", coveragePath, r.line, key, sec.heading)
				}
				seen[key] = true
			}
		}
	}
	if rows < 300 {
		t.Errorf("only %d rows were found", rows)
	}
	if !slices.ContainsFunc(page, func(sec section) bool { return sec.heading == notShown }) {
		t.Errorf("%s has no section %q", coveragePath, notShown)
	}
}

func checkCoverage(t *testing.T, tests map[string][]testFile, cells []string) (problems []string) {
	t.Helper()
	if len(cells) != columns || slices.Contains(cells, "") {
		return []string{fmt.Sprintf("%d cells, want %d that are not empty", len(cells), columns)}
	}
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, cell := range cells[colClient:colTests] {
		places := codeSpans(cell)
		reason, nothing := strings.CutPrefix(cell, "nothing:")
		if nothing && reason == "" || !nothing && len(places) == 0 {
			add("%q names neither a file nor an exported name, and gives no reason", cell)
		}
		for _, place := range places {
			if _, err := os.Stat(filepath.Join(top(t), filepath.FromSlash(place))); err != nil && strings.Contains(place, "/") {
				add("there is no file %s", place)
			}
		}
	}
	named := codeSpans(cells[colTests])
	if len(named) == 0 {
		add("%q names no test", cells[colTests])
	}
	for _, name := range named {
		if !isTest(tests, name) {
			add("there is no %s", name)
		}
	}
	return problems
}

// isTest reports whether there is a test dir/TestName/subtest.
func isTest(tests map[string][]testFile, ref string) bool {
	parts := strings.Split(ref, "/")
	n := slices.IndexFunc(parts, func(part string) bool { return len(tests[part]) > 0 })
	if n < 0 {
		return false
	}
	dir := path.Join(parts[:n]...)
	i := slices.IndexFunc(tests[parts[n]], func(file testFile) bool { return file.dir == dir })
	if i < 0 {
		return false
	}
	known := subtests(tests[parts[n]][i].test)
	return !slices.ContainsFunc(parts[n+1:], func(part string) bool { return !known[part] })
}

// subtests returns the names that the subtests of a test can have: the first argument of Run, or what names a row of
// a table, which is its key, its first value, or its field name.
func subtests(test *ast.FuncDecl) map[string]bool {
	names := map[string]bool{}
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if name, err := strconv.Unquote(lit.Value); err == nil {
				names[strings.ReplaceAll(name, " ", "_")] = true
			}
		}
	}
	ast.Inspect(test, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" && len(n.Args) == 2 {
				add(n.Args[0])
			}
		case *ast.KeyValueExpr:
			add(n.Key)
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "name" {
				add(n.Value)
			}
		case *ast.CompositeLit:
			if len(n.Elts) > 0 {
				add(n.Elts[0])
			}
		}
		return true
	})
	return names
}

// TestSpecificationIsCovered holds the page to the specification: every
// heading, row and sentence of it has a row on the page, and no row is about
// something that it does not have.
func TestSpecificationIsCovered(t *testing.T) {
	t.Parallel()
	page := parseMarkdown(readFile(t, coveragePath))
	rows := map[string][]string{}
	for _, sec := range page {
		for _, table := range sec.tables {
			for _, r := range table.rows {
				rows[sec.heading] = append(rows[sec.heading], plain(r.cells[colRow]))
			}
		}
	}
	for _, sec := range readSpecification(t) {
		var want []string
		for n := range sec.clauses {
			want = append(want, fmt.Sprintf("s%d", n+1))
		}
		for _, table := range sec.tables {
			want = append(want, keysOf(table)...)
		}
		if !slices.ContainsFunc(page, func(p section) bool { return p.heading == sec.heading }) {
			t.Errorf("the page has no heading %q", sec.heading)
			continue
		}
		for _, key := range want {
			if !slices.Contains(rows[sec.heading], key) {
				t.Errorf("under %q the page has no row for %q", sec.heading, key)
			}
		}
		for _, key := range rows[sec.heading] {
			if !slices.Contains(want, key) {
				t.Errorf("under %q the page has a row for %q, which the specification has not", sec.heading, key)
			}
		}
		delete(rows, sec.heading)
	}
	delete(rows, notShown)
	for heading := range rows {
		t.Errorf("the specification has no heading %q", heading)
	}
}
