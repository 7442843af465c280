package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGuaranteesNameTestsThatExist checks docs/guarantees.md against the tests:
// guarantees.md beside this file has the same sections, each of them names some
// tests, and each test exists.
func TestGuaranteesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	shown := map[string]string{}
	for _, section := range sections(readFile(t, "internal/test/archtest/guarantees.md")) {
		shown[section.title] = section.text
	}
	tests := testNames(t)
	for _, section := range sections(readFile(t, "docs/guarantees.md")) {
		found := 0
		for line := range strings.Lines(shown[section.title]) {
			where, _, _ := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
			for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(line, -1) {
				found++
				dirs := tests[name[1]]
				// A suite is named by a sentence instead of its package.
				if len(dirs) == 0 || !strings.HasPrefix(where, "each ") && !slices.Contains(dirs, where) {
					t.Errorf("%q names %s of %s, which is in %q", section.title, name[1], where, dirs)
				}
			}
		}
		if found == 0 {
			t.Errorf("%q names no test", section.title)
		}
		delete(shown, section.title)
	}
	for title := range shown {
		t.Errorf("%q is no guarantee", title)
	}
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
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string][]string{}
	err := filepath.WalkDir(top(t), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(top(t), filepath.Dir(path))
		for _, match := range declaration.FindAllSubmatch(source, -1) {
			names[string(match[1])] = append(names[string(match[1])], filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
