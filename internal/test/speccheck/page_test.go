package speccheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	root     = "../../.."
	pagePath = "internal/test/speccheck/coverage.md"
	specPath = "../shared/spec/gateway-service.md" // from the root of the repository
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

func readPage(t *testing.T) []section {
	t.Helper()
	text := testkit.Must(os.ReadFile(filepath.Join(root, pagePath)))(t)
	return parseMarkdown(string(text))
}

// readSpecification skips the test, loudly, when the specification is not at
// hand, for it is no part of the repository. In CI that is a failure.
func readSpecification(t *testing.T) []section {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, specPath))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skipf("THE SPECIFICATION IS NOT AT HAND (%s): %s WAS NOT COMPARED WITH IT", specPath, pagePath)
	}
	if err != nil {
		t.Fatalf("THE SPECIFICATION IS NOT AT HAND: %v", err)
	}
	sections := parseMarkdown(string(text))
	if len(sections) < 3 {
		t.Fatalf("%s has no headings", specPath)
	}
	sections[1].heading = opening
	return sections[1:]
}

// TestPageNamesWhatExists holds every row of the page to what it names.
func TestPageNamesWhatExists(t *testing.T) {
	t.Parallel()
	s := testkit.Must(readSource(root))(t)
	page := readPage(t)
	rows := 0
	for _, sec := range page {
		for _, table := range sec.tables {
			rows += len(table.rows)
		}
	}
	if rows < 300 {
		t.Errorf("only %d rows were found", rows)
	}
	if !slices.ContainsFunc(page, func(sec section) bool { return sec.heading == notShown }) {
		t.Errorf("%s has no section %q", pagePath, notShown)
	}
	for _, problem := range checkPage(s, page) {
		t.Errorf("%s:%s", pagePath, problem)
	}
}

// checkPage lists what is wrong with the rows, each with its line.
func checkPage(s *source, page []section) (problems []string) {
	for _, sec := range page {
		seen := map[string]bool{}
		for _, table := range sec.tables {
			for _, r := range table.rows {
				for _, problem := range checkRow(s, r.cells) {
					problems = append(problems, fmt.Sprintf("%d: %s", r.line, problem))
				}
				key := plain(r.cells[colRow])
				if seen[key] {
					problems = append(problems, fmt.Sprintf("%d: %q has two rows under %q", r.line, key, sec.heading))
				}
				seen[key] = true
			}
		}
	}
	return problems
}

func checkRow(s *source, cells []string) (problems []string) {
	if len(cells) != columns {
		return []string{fmt.Sprintf("%d cells, want %d", len(cells), columns)}
	}
	add := func(err error) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	for i, cell := range cells {
		if plain(cell) == "" {
			add(fmt.Errorf("cell %d is empty", i+1))
		}
	}
	for _, cell := range cells[colClient:colTests] {
		refs := codeSpans(cell)
		reason, nothing := strings.CutPrefix(cell, "nothing:")
		switch {
		case nothing && len(strings.Fields(reason)) < 1:
			add(fmt.Errorf("%q gives no reason", cell))
		case !nothing && len(refs) == 0:
			add(fmt.Errorf("%q names neither a file nor an exported name", cell))
		}
		for _, ref := range refs {
			add(s.checkPlace(ref))
		}
	}
	tests := codeSpans(cells[colTests])
	if len(tests) == 0 {
		add(fmt.Errorf("%q names no test", cells[colTests]))
	}
	for _, ref := range tests {
		add(s.checkTest(ref))
	}
	return problems
}

// TestSpecificationIsCovered holds the page to the specification: every
// heading, row and sentence of it has a row on the page, and no row is about
// something that it does not have.
func TestSpecificationIsCovered(t *testing.T) {
	t.Parallel()
	for _, problem := range compare(readSpecification(t), readPage(t)) {
		t.Error(problem)
	}
}

func compare(specification, page []section) (problems []string) {
	rows := map[string][]string{}
	for _, sec := range page {
		for _, table := range sec.tables {
			for _, r := range table.rows {
				rows[sec.heading] = append(rows[sec.heading], plain(r.cells[colRow]))
			}
		}
	}
	for _, sec := range specification {
		var want []string
		for n := range sec.sentences {
			want = append(want, fmt.Sprintf("s%d", n+1))
		}
		for _, table := range sec.tables {
			want = append(want, keysOf(table)...)
		}
		if !slices.ContainsFunc(page, func(p section) bool { return p.heading == sec.heading }) {
			problems = append(problems, fmt.Sprintf("the page has no heading %q", sec.heading))
			continue
		}
		for _, key := range want {
			if !slices.Contains(rows[sec.heading], key) {
				problems = append(problems, fmt.Sprintf("under %q the page has no row for %q", sec.heading, key))
			}
		}
		for _, key := range rows[sec.heading] {
			if !slices.Contains(want, key) {
				problems = append(problems, fmt.Sprintf("under %q the page has a row for %q, which the specification has not", sec.heading, key))
			}
		}
		delete(rows, sec.heading)
	}
	delete(rows, notShown)
	for heading := range rows {
		problems = append(problems, fmt.Sprintf("the specification has no heading %q", heading))
	}
	return problems
}
